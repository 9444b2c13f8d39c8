"""The search: a whole grid at once does what its settings do one by one, and stages find the same best."""

import csv
import functools

import numpy as np
import pytest
from samples import error, sample

import fedhybrid as fh
from fedhybrid.measure import measure, objective, optimum
from fedhybrid.tune import tune, zoom

DATA = sample("squared", sizes=(9, 0, 1, 14, 6), reg=0.5)
UPDATES = ("newton", "newton", "gradient", "newton", "gradient")
STEPS = (0.02, 0.1, 0.3, 0.6, 1.0, 50.0)


@functools.cache
def fleet():
    return DATA.fleet(update=UPDATES)


@functools.cache
def pooled():
    oracle = DATA.oracle()
    H, g = sum(f.hess(np.zeros(4)) for f in oracle), sum(f.grad(np.zeros(4)) for f in oracle)
    return np.linalg.solve(H, -g)


def gaps_by_hand(step_size, steps):
    """Gradient descent, one client after the other, and the gap by the quadratic form: nothing cancels."""
    oracle, x = DATA.oracle(), np.zeros(4)
    H = sum(f.hess(x) for f in oracle)
    drop = pooled() @ H @ pooled()
    gaps = []
    for _ in range(steps):
        x = x - step_size * sum(f.grad(x) for f in oracle)
        gaps.append((x - pooled()) @ H @ (x - pooled()) / drop)
    return np.array(gaps)


def test_the_optimum_is_the_pooled_one():
    best = optimum(fleet())
    assert error(best.x, pooled()) <= 1e-12
    assert best.value == pytest.approx(sum(f.value(pooled()) for f in DATA.oracle()), rel=1e-13)
    assert objective(fh.Serial(fleet()), pooled()) == pytest.approx(best.value, rel=1e-13)


def test_every_setting_of_a_grid_does_what_it_does_alone():
    found = tune(fh.gd, {"step_size": STEPS}, fleet(), rounds=60, target=1e-6, keep=1.0)
    expected = []
    for step_size in STEPS:
        below = np.flatnonzero(gaps_by_hand(step_size, 60) <= 1e-6)
        expected.append(below[0] + 1 if len(below) else np.inf)
    assert found.rounds.tolist() == expected
    assert np.isfinite(expected).sum() >= 3  # so that this means something
    assert np.isinf(expected).sum() >= 2
    assert found.best == {"step_size": STEPS[int(np.argmin(expected))]}


def test_a_curve_is_the_gap_after_every_step():
    found = tune(fh.gd, {"step_size": [0.3]}, fleet(), rounds=40, target=1e-30)
    assert np.abs(found.curve.gap - gaps_by_hand(0.3, 40)).max() <= 1e-14
    assert found.curve.rounds.tolist() == list(range(1, 41))
    assert found.curve.floats_up.tolist() == [5 * 4 * k for k in range(1, 41)]


def test_a_setting_that_diverges_ends_as_infinite_and_disturbs_no_other():
    without = tune(fh.gd, {"step_size": STEPS[:-1]}, fleet(), rounds=60, target=1e-6, keep=1.0)
    found = tune(fh.gd, {"step_size": STEPS}, fleet(), rounds=60, target=1e-6, keep=1.0)
    assert found.gap[-1] == np.inf
    assert found.steps[-1] <= 20
    assert np.array_equal(found.rounds[:-1], without.rounds)
    assert error(found.curve.gap, without.curve.gap) <= 1e-12


GRID = {"mu": np.geomspace(0.05, 5.0, 5), "a": [(a, 1.0) for a in (0.03, 0.3, 1.0)], "b": [(b, c) for b in (0.03, 0.3) for c in (0.1, 0.5)]}


def test_stages_find_the_best_of_the_whole_grid():
    whole = tune(fh.fedhybrid, GRID, fleet(), rounds=400, keep=1.0)
    staged = tune(fh.fedhybrid, GRID, fleet(), rounds=400)
    assert len(whole.settings) == 60
    assert staged.best == whole.best
    assert staged.rounds.min() == whole.rounds.min()
    assert staged.steps.sum() < 0.5 * whole.steps.sum()


def test_little_memory_means_chunks_and_the_same_answer():
    whole = tune(fh.fedhybrid, GRID, fleet(), rounds=60, keep=1.0)
    chunks = tune(fh.fedhybrid, GRID, fleet(), rounds=60, keep=1.0, memory=60_000)
    assert np.array_equal(whole.rounds, chunks.rounds)
    assert chunks.best == whole.best
    assert error(chunks.curve.gap, whole.curve.gap) <= 1e-9


def test_settings_one_after_the_other_do_what_they_do_side_by_side():
    whole = tune(fh.fedhybrid, GRID, fleet(), rounds=200)
    in_turn = tune(fh.fedhybrid, GRID, fleet(), rounds=200, lanes=1)
    assert np.array_equal(whole.rounds, in_turn.rounds)
    assert np.array_equal(whole.steps, in_turn.steps)
    assert in_turn.best == whole.best


def test_the_best_setting_alone_makes_the_curve_that_the_search_saw():
    found = tune(fh.fedhybrid, GRID, fleet(), rounds=200)
    alone, seconds = measure(fh.fedhybrid(**found.best), fh.Stacked(fleet()), optimum(fleet()), rounds=len(found.curve.gap), until=0.0)
    assert np.abs(alone.gap - found.curve.gap).max() <= 1e-14
    assert seconds > 0


def test_a_method_without_parameters_is_its_own_best():
    found = tune(fh.lbfgs, [{}], fleet(), rounds=60)
    assert found.best == {}
    assert 2 < found.rounds[0] < 60


def test_the_table_is_tidy_and_best_first(tmp_path):
    found = tune(fh.fedhybrid, GRID, fleet(), rounds=100)
    found.to_csv(tmp_path / "settings.csv")
    rows = list(csv.DictReader((tmp_path / "settings.csv").read_text().splitlines()))
    assert list(rows[0]) == ["mu", "a_gradient", "a_newton", "b_gradient", "b_newton", "rounds", "gap", "steps"]
    assert len(rows) == 60
    assert float(rows[0]["mu"]) == found.best["mu"]
    assert (float(rows[0]["a_gradient"]), float(rows[0]["a_newton"])) == found.best["a"]
    assert [float(row["rounds"]) for row in rows] == sorted(found.rounds.tolist())


def test_neighbours_of_a_setting():
    around = zoom({"mu": 2.0, "a": (1.0, 4.0)}, 2.0)
    assert len(around) == 27
    assert around[0] == {"mu": 2.0, "a": (1.0, 4.0)}
    assert {"mu": 1.0, "a": (2.0, 2.0)} in around


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({"step_size": []}, {}, "empty"),
        ({"step_size": [0.1, -1.0]}, {}, "positive"),
        ({"step_size": [0.1]}, {"keep": 0.0}, "keep"),
        ({"step_size": [0.1]}, {"rounds": 0}, "rounds"),
        ({"size": [0.1]}, {}, "size"),
    ],
)
def test_a_search_that_cannot_be_is_refused_with_a_sentence(grid, options, message):
    with pytest.raises(fh.InvalidConfig, match=message):
        tune(fh.gd, grid, fleet(), **options)


def test_settings_of_different_forms_are_refused():
    with pytest.raises(fh.InvalidConfig, match="same parameters"):
        tune(fh.fedhybrid, [{"mu": 1.0, "a": 1.0, "b": 0.1}, {"mu": 1.0, "a": (1.0, 1.0), "b": 0.1}], fleet())
