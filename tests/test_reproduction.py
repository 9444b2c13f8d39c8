"""The paper's experiments, run: a few of them quickly, in the long tier all; and what they show where a full search is worth its time."""

import csv
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from reference.search import LeastSquares, best_setting

import fedhybrid as fh
from fedhybrid.experiments.candidates import fedh
from fedhybrid.experiments.paper import FIGURES, SIZES, problem
from fedhybrid.experiments.reproduce import reproduce
from fedhybrid.experiments.study import FULL, QUICK, ground, study

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the raw data files are not in {DATA}")


FEW = ("fig2a", "fig4b", "local")  # of three setups; both losses


def run(out, *names):
    """`fedhybrid reproduce --quick`, the real command; what it said."""
    command = [sys.executable, "-m", "fedhybrid", "reproduce", *names, "--quick", "--out", str(out)]
    done = subprocess.run(command, env=os.environ | {"FEDHYBRID_DATA": str(DATA)}, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Made(NamedTuple):
    out: Path
    text: str
    figures: tuple


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    out = tmp_path_factory.mktemp("few")
    return Made(out, run(out, *FEW), FEW)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("everything")
    return Made(out, run(out), tuple(FIGURES))


@pytest.fixture(params=["few", pytest.param("everything", marks=pytest.mark.slow)])
def quick(request):
    return request.getfixturevalue(request.param)


def rows(out, figure):
    return list(csv.DictReader((out / f"{figure}.csv").read_text().splitlines()))


def rounds_to(found, method, gap, **where):
    """The first round of a method at or below a gap, from the CSV alone."""
    chosen = [row for row in found if row["method"] == method and all(row[key] == value for key, value in where.items())]
    return min((int(row["round"]) for row in chosen if float(row["gap"]) <= gap), default=math.inf)


@needs_data
def test_every_figure_is_there_as_csv_and_picture(quick):
    for name in quick.figures:
        figure = FIGURES[name]
        setups = figure.setups if name == "table" else (figure.setup,)
        expected = {(f"setup {setup}", candidate.label) for setup in setups for candidate in figure.candidates(SIZES[setup])}
        assert {(row["problem"], row["method"]) for row in rows(quick.out, name)} == expected
        assert f"{name}:" in quick.text
        pictures = [quick.out / f"{name}.{kind}" for kind in ("png", "pdf")]
        assert name == "table" or (pictures[0].stat().st_size > 10_000 and pictures[1].stat().st_size > 5_000)
    assert "http" not in (quick.out / "index.html").read_text()


@needs_data
def test_more_newton_clients_leave_a_smaller_gap(quick):
    """Also with a coarse search: from none to half to all; what the full search shows is in docs/reproduce.md."""
    figures = [name for name in quick.figures if name.startswith(("fig2", "fig4"))]
    assert len(figures) >= 2
    for figure in figures:
        found = rows(quick.out, figure)
        labels = list(dict.fromkeys(row["method"] for row in found))
        last = {label: min(float(row["gap"]) for row in found if row["method"] == label) for label in labels}
        assert labels[0] == "FedH-G", figure
        assert labels[-1] == "FedH-N", figure
        assert last["FedH-N"] < last[labels[2]] < last["FedH-G"], figure


@needs_data
def test_local_steps_end_away_from_the_optimum_and_control_variates_do_not(quick):
    found = rows(quick.out, "local")
    last = {row["method"]: float(row["gap"]) for row in found}
    assert min(last["FedAvg(5)"], last["FedAvg(20)"], last["FedProx"]) > 10 * max(last["GD"], last["SCAFFOLD(5)"])


def assert_table(out, setups, seeds):
    found = rows(out, "table")
    assert {(row["problem"], row["seed"]) for row in found} == {(f"setup {k}", str(seed)) for k in setups for seed in seeds}
    for setup in ("setup 1", "setup 2"):  # on the others a coarse search may favour either
        for seed in map(str, seeds):
            assert rounds_to(found, "FedH-N", 1e-8, problem=setup, seed=seed) < rounds_to(found, "GD", 1e-8, problem=setup, seed=seed)


@needs_data
@pytest.mark.slow
def test_the_table_has_three_seeds_of_four_setups(everything):
    assert_table(everything.out, (1, 2, 3, 4), (0, 1, 2))


@needs_data
def test_a_table_of_two_setups_is_of_the_same_form(few, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDHYBRID_DATA", str(DATA))
    monkeypatch.setitem(FIGURES, "table", FIGURES["table"]._replace(setups=(1, 2), seeds=(0,)))
    shutil.copytree(few.out / "runs", tmp_path / "runs")  # one of them has been measured
    (section,) = reproduce(["table"], QUICK, tmp_path)
    assert section.name == "table"
    assert_table(tmp_path, (1, 2), (0,))


@needs_data
def test_a_second_run_finds_everything_done(quick):
    before = {path: path.stat().st_mtime_ns for path in quick.out.glob("runs/*/*.json")}
    assert before
    again = run(quick.out, quick.figures[0])
    assert {path: path.stat().st_mtime_ns for path in quick.out.glob("runs/*/*.json")} == before
    assert again.split("Page")[0] in quick.text


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_tuned_fedh_n_is_as_good_as_an_independent_search_finds(seed, tmp_path):
    place = problem(1, seed)
    found = study(place, fedh(place.n, place.n), FULL, tmp_path, lambda: ground(place))
    setting, rounds = best_setting(LeastSquares(fh.datasets.setup_1(seed).sites), np.random.default_rng(seed))
    print(f"seed {seed}: {found.rounds_to(1e-8):.0f} rounds with {found.setting}; an independent search: {rounds} with {setting}")
    assert found.rounds_to(1e-8) <= 1.1 * rounds
