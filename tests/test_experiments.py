"""From candidates to pages: what is searched, what is kept, what a restart skips, and what ends up in the files."""

import csv
import functools
import json
import math

import numpy as np
import pytest
from samples import sample
from typer.testing import CliRunner

import fedhybrid as fh
from fedhybrid.cli import app
from fedhybrid.experiments import study as study_module
from fedhybrid.experiments.candidates import candidate, fedh
from fedhybrid.experiments.own import Own, own_problem, read_table
from fedhybrid.experiments.paper import FIGURES, hybrids, problem
from fedhybrid.experiments.reproduce import compare
from fedhybrid.experiments.study import QUICK, Problem, ground, study
from fedhybrid.measure import optimum

SHORT = QUICK._replace(rounds=60)


def small_problem():
    data = sample("logistic", sizes=(9, 5, 14, 6), reg=0.5)

    def fleet(newton, keep_rows):
        return data.fleet(update=["newton"] * newton + ["gradient"] * (4 - newton), keep_rows=keep_rows)

    return Problem("small", 0, 4, fleet)


def studied(label, folder, effort=SHORT):
    place = small_problem()
    return study(place, candidate(label, place.n), effort, folder, lambda: ground(place))


# ── candidates ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fedh_searches_only_what_its_clients_use():
    assert set(fedh(0, 8).search) == {"mu", "a_gradient", "b_gradient"}
    assert set(fedh(8, 8).search) == {"mu", "a_newton", "b_newton"}
    assert set(fedh(3, 8).search) == {"mu", "a_gradient", "b_gradient", "a_newton", "b_newton"}
    assert [fedh(K, 8).label for K in (0, 3, 8)] == ["FedH-G", "FedH-3", "FedH-N"]


def test_a_grid_covers_its_ranges_and_follows_the_problems_scale():
    gd = candidate("gd", 5)
    steps = [setting["step_size"] for setting in gd.settings(12, 4.0, False)]
    assert steps == pytest.approx(np.geomspace(20.0, 1e-4, 12) / 4.0)  # two a decade
    mus = {setting["mu"] for setting in fedh(8, 8).settings(512, 4.0, False)}
    assert (min(mus), max(mus)) == (1e-4, pytest.approx(10.0))  # the paper's range, whatever the scale


def test_neighbours_stay_inside_the_ranges():
    around = fedh(8, 8).around({"mu": 10.0, "a": (1.0, 1.0), "b": (0.5, 0.5)}, 4.0, 1.0)
    assert {setting["mu"] for setting in around} == {10.0, 2.5}
    assert {setting["a"][1] for setting in around} == {1.0, 0.4}
    assert {setting["b"][1] for setting in around} == {0.5, 0.125, 1.0}


def test_every_method_can_be_a_candidate():
    for name, entry in fh.ALGORITHMS.items():
        chosen = candidate(name, 4)
        for setting in chosen.settings(8, 1.0, False):
            assert isinstance(chosen.factory(**setting), fh.Algorithm)
        assert name == "fedhybrid" or chosen.label == entry.label != ""


OWN = '''
"""Gradient descent again, as somebody else's file."""
import fedhybrid as fh
from fedhybrid.algorithms import Range

SEARCH = {"step": Range(1e-3, 1.0, -1)}


def mine(*, step):
    return fh.gd(step_size=step)
'''


def test_a_method_of_ones_own_is_one_file(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    place = small_problem()
    chosen = candidate(f"{tmp_path / 'mine.py'}:mine", 4)
    found = study(place, chosen, SHORT, tmp_path, lambda: ground(place))
    assert found.label == "mine"
    assert found.rounds_to(1e-8) < math.inf


def test_a_method_of_ones_own_that_does_not_say_where_to_search_is_told_how(tmp_path):
    (tmp_path / "mine.py").write_text(OWN.replace("SEARCH", "OTHER"))
    with pytest.raises(fh.InvalidConfig, match=r'Add SEARCH = \{"step": Range'):
        candidate(f"{tmp_path / 'mine.py'}:mine", 4)


def test_a_changed_file_is_another_method(tmp_path):
    names = []
    for text in (OWN, OWN + "\n"):
        (tmp_path / "mine.py").write_text(text)
        names.append(candidate(f"{tmp_path / 'mine.py'}:mine", 4).name)
    assert names[0] != names[1]


@pytest.mark.parametrize("name", ["nonsense", "fedh-9", "fedh-x", "missing.py:f"])
def test_an_unknown_candidate_is_refused(name):
    with pytest.raises(fh.InvalidConfig, match=name.split(":")[0]):
        candidate(name, 4)


# ── studies ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_call_takes_what_is_on_disk(tmp_path, monkeypatch):
    first = studied("gd", tmp_path)
    monkeypatch.setattr(study_module, "tune", None)  # would raise if it were called
    again = studied("gd", tmp_path)
    assert again.setting == first.setting
    assert all(np.array_equal(a, b) for a, b in zip(again.curve, first.curve, strict=True))


def test_other_fixed_parameters_are_another_question(tmp_path):
    place = small_problem()
    chosen = candidate("fedavg", 4)
    found = [
        study(place, chosen._replace(factory=functools.partial(fh.fedavg, local_steps=steps)), SHORT, tmp_path, lambda: ground(place))
        for steps in (1, 5)
    ]
    assert found[0].rounds_to(1e-8) < math.inf == found[1].rounds_to(1e-8)


@pytest.mark.parametrize("damage", ["cut short", "other search", "not JSON"])
def test_what_is_on_disk_is_not_taken_if_it_is_broken_or_of_another_question(damage, tmp_path):
    first = studied("gd", tmp_path)
    (path,) = tmp_path.glob("*/*.json")
    record = path.read_text()
    marked = json.dumps(json.loads(record) | {"setting": {"step_size": 123.0}})
    if damage == "other search":
        path.write_text(marked)
        found = studied("gd", tmp_path, SHORT._replace(rounds=80))
    else:
        path.write_text(marked[: len(marked) // 2] if damage == "cut short" else "{}")
        found = studied("gd", tmp_path)
    assert found.setting == first.setting


def test_a_study_finds_the_step_size_that_a_loop_over_the_grid_finds(tmp_path):
    found = studied("gd", tmp_path)
    place = small_problem()
    chosen, curvature = candidate("gd", 4), ground(place).curvature
    data = sample("logistic", sizes=(9, 5, 14, 6), reg=0.5)
    oracle = data.oracle()
    x_star = np.zeros(4)
    for _ in range(20):
        x_star -= np.linalg.solve(sum(f.hess(x_star) for f in oracle), sum(f.grad(x_star) for f in oracle))
    F_star, F_zero = (sum(f.value(x) for f in oracle) for x in (x_star, np.zeros(4)))

    def rounds(step_size):
        x = np.zeros(4)
        for k in range(1, 61):
            x = x - step_size * sum(f.grad(x) for f in oracle)
            if (sum(f.value(x) for f in oracle) - F_star) / (F_zero - F_star) <= 1e-8:
                return k
        return math.inf

    by_hand = [rounds(setting["step_size"]) for setting in chosen.settings(SHORT.settings, curvature, True)]
    assert found.rounds_to(1e-8) == min(by_hand) < math.inf


# ── files and pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_comparison_writes_tidy_rows_pictures_and_a_page_that_needs_no_network(tmp_path):
    section = compare(Own("diabetes", 4), ["gd", "lbfgs", "fedh-2"], SHORT, tmp_path)
    rows = list(csv.DictReader((tmp_path / "compare.csv").read_text().splitlines()))
    assert list(rows[0]) == ["problem", "method", "parameters", "seed", "round", "gap", "floats_up", "floats_down", "flops", "seconds"]
    assert {row["method"] for row in rows} == {"GD", "L-BFGS", "FedH-2"}
    descent = [row for row in rows if row["method"] == "GD"]
    assert [int(row["round"]) for row in descent] == list(range(1, len(descent) + 1))
    assert [int(row["floats_up"]) for row in descent] == [4 * 11 * k for k in range(1, len(descent) + 1)]
    assert json.loads(descent[0]["parameters"]) == section.measured[0].setting
    assert all(float(row["seconds"]) > 0 and float(row["flops"]) > 0 for row in rows)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "compare.pdf").read_bytes().startswith(b"%PDF")
    page = (tmp_path / "index.html").read_text()
    assert "data:image/png;base64" in page
    assert "http" not in page
    assert all(label in page for label in ("GD", "L-BFGS", "FedH-2"))


def test_the_paper_has_its_ten_figures_on_its_setups():
    assert {name: FIGURES[name].setup for name in FIGURES if name.startswith("fig")} == {
        "fig1a": 1, "fig1b": 4, "fig2a": 2, "fig2b": 3, "fig3a": 1, "fig3b": 3, "fig4a": 1, "fig4b": 1, "fig4c": 2, "fig4d": 4,
    }  # fmt: skip
    assert [candidate.newton for candidate in hybrids(20)] == [0, 5, 10, 15, 20]
    assert problem(1, 0).fleet(5, False).updates.count("newton") == 5


# ── the user's own data ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_csv_file_is_read_with_its_response(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("a,label,b\n1,0,2\n3,1,4\n5,0,6\n")
    A, y = read_table(str(path), "label")
    assert A.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert y.tolist() == [0, 1, 0]
    assert read_table(str(path))[1].tolist() == [2, 4, 6]


def test_a_libsvm_file_is_read(tmp_path):
    path = tmp_path / "own.libsvm"
    path.write_text("+1 1:2 3:1\n-1 2:5\n")
    A, y = read_table(str(path))
    assert A.toarray().tolist() == [[2, 0, 1], [0, 5, 0]]
    assert y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,x\n", "line 2, column b: this is not a number; write categories"),
        ("a,b\n1,\n", "line 2, column b.*fill"),
        ("a,b\n", "at least one row"),
        ("a,b\n1,2\n5\n", "line 3 has 1 cells, but the header has 2 names"),
    ],
)
def test_a_csv_file_that_cannot_be_used_is_refused_by_name(text, message, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(fh.InvalidData, match=r"bad\.csv.*" + message):
        read_table(str(path))


@pytest.mark.parametrize(
    ("name", "loss"), [("breast_cancer", "logistic"), ("diabetes", "squared"), ("iris", "softmax"), ("wine", "softmax")]
)
def test_the_loss_follows_the_response(name, loss):
    place = own_problem(Own(name, 4))
    assert place.fleet(4, False).loss.name == loss
    assert place.fleet(1, False).updates.count("newton") == 1


def test_robust_regression_is_compared_with_its_own_optimum():
    fleet = own_problem(Own("diabetes", 4, loss="huber")).fleet(4, False)
    A, y = (np.concatenate([getattr(site, part) for site in fleet.sites]) for part in ("A", "y"))
    A = np.column_stack([A, np.ones(len(A))])
    x = optimum(fleet).x
    slope = A.T @ np.clip(A @ x - y, -1.0, 1.0) / len(y) + 0.01 * x * (np.arange(len(x)) < len(x) - 1)
    assert np.linalg.norm(slope) < 1e-8


def test_compare_on_the_command_line(tmp_path):
    words = f"compare --data diabetes --methods gd,lbfgs --clients 4 --partition by-response --quick --out {tmp_path}"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert "L-BFGS" in done.output
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "partition.png").stat().st_size > 5_000
    summary = list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))
    assert [row["method"] for row in summary] == ["GD", "L-BFGS"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare --data nowhere", "neither a file"),
        ("compare --data diabetes --methods nonsense", "not a method"),
        ("compare --data diabetes --partition odd", "not known"),
        ("compare --data diabetes --clients 100000", "100000"),
        ("compare --data diabetes --loss odd", "not known"),
        ("compare --data diabetes --methods gd,cocoa", "needs a penalty"),
        ("compare --data diabetes --methods gd,gd", "none twice"),
        ("compare --data diabetes --methods ,", "at least one method"),
        ("compare --data diabetes --partition dirichlet:0", "alpha"),
        ("reproduce fig9", "not one of the figures"),
    ],
)
def test_a_mistake_on_the_command_line_is_a_sentence(words, message, tmp_path):
    done = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output
