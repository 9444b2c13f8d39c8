"""The paper's experiments, run: all of them quickly, and what they show where a full search is worth its time."""

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reference.search import LeastSquares, best_setting

import fedhybrid as fh
from fedhybrid.experiments.candidates import fedh
from fedhybrid.experiments.paper import FIGURES, SIZES, problem
from fedhybrid.experiments.study import FULL, ground, study

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the raw data files are not in {DATA}")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """`fedhybrid reproduce --quick`, the real command."""
    out = tmp_path_factory.mktemp("quick")
    command = [sys.executable, "-m", "fedhybrid", "reproduce", "--quick", "--out", str(out)]
    done = subprocess.run(command, env=os.environ | {"FEDHYBRID_DATA": str(DATA)}, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def rows(out, figure):
    return list(csv.DictReader((out / f"{figure}.csv").read_text().splitlines()))


def rounds_to(found, method, gap, **where):
    """The first round of a method at or below a gap, from the CSV alone."""
    chosen = [row for row in found if row["method"] == method and all(row[key] == value for key, value in where.items())]
    return min((int(row["round"]) for row in chosen if float(row["gap"]) <= gap), default=math.inf)


@needs_data
def test_every_figure_is_there_as_csv_and_picture(quick):
    out, text = quick
    for name, figure in FIGURES.items():
        setups = figure.setups if name == "table" else (figure.setup,)
        expected = {(f"setup {setup}", candidate.label) for setup in setups for candidate in figure.candidates(SIZES[setup])}
        assert {(row["problem"], row["method"]) for row in rows(out, name)} == expected
        assert f"{name}:" in text
        assert name == "table" or ((out / f"{name}.png").stat().st_size > 10_000 and (out / f"{name}.pdf").stat().st_size > 5_000)
    assert "http" not in (out / "index.html").read_text()


@needs_data
@pytest.mark.parametrize("figure", [name for name in FIGURES if name.startswith(("fig2", "fig4"))])
def test_more_newton_clients_leave_a_smaller_gap(figure, quick):
    """Also with a coarse search: from none to half to all; what the full search shows is in docs/reproduce.md."""
    found = rows(quick[0], figure)
    labels = list(dict.fromkeys(row["method"] for row in found))
    last = {label: min(float(row["gap"]) for row in found if row["method"] == label) for label in labels}
    assert labels[0] == "FedH-G"
    assert labels[-1] == "FedH-N"
    assert last["FedH-N"] < last[labels[2]] < last["FedH-G"]


@needs_data
def test_local_steps_end_away_from_the_optimum_and_control_variates_do_not(quick):
    found = rows(quick[0], "local")
    last = {row["method"]: float(row["gap"]) for row in found}
    assert min(last["FedAvg(5)"], last["FedAvg(20)"], last["FedProx"]) > 10 * max(last["GD"], last["SCAFFOLD(5)"])


@needs_data
def test_the_table_has_three_seeds_of_four_setups(quick):
    found = rows(quick[0], "table")
    assert {(row["problem"], row["seed"]) for row in found} == {(f"setup {k}", str(seed)) for k in (1, 2, 3, 4) for seed in (0, 1, 2)}
    for setup in ("setup 1", "setup 2"):  # on the others a coarse search may favour either
        for seed in "012":
            assert rounds_to(found, "FedH-N", 1e-8, problem=setup, seed=seed) < rounds_to(found, "GD", 1e-8, problem=setup, seed=seed)


@needs_data
def test_a_second_run_finds_everything_done(quick):
    out, text = quick
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*.json")}
    command = [sys.executable, "-m", "fedhybrid", "reproduce", "fig1a", "--quick", "--out", str(out)]
    done = subprocess.run(command, env=os.environ | {"FEDHYBRID_DATA": str(DATA)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*.json")} == before
    assert done.stdout.split("Page")[0] in text


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_tuned_fedh_n_is_as_good_as_an_independent_search_finds(seed, tmp_path):
    place = problem(1, seed)
    found = study(place, fedh(place.n, place.n), FULL, tmp_path, lambda: ground(place))
    setting, rounds = best_setting(LeastSquares(fh.datasets.setup_1(seed).sites), np.random.default_rng(seed))
    print(f"seed {seed}: {found.rounds_to(1e-8):.0f} rounds with {found.setting}; an independent search: {rounds} with {setting}")
    assert found.rounds_to(1e-8) <= 1.1 * rounds
