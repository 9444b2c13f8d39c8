"""Sites that leave and join: the fit is that of who is there, started from the one before."""

import functools

import numpy as np
import pytest
from reference.pooled import least_squares_exact, logistic_high_precision
from samples import sample

import fedhybrid as fh

SIZES = (20, 15, 10, 18)
NAMES = ("a", "b", "c", "d")
UPDATES = ("newton", "gradient", "newton", "gradient")
EXACT = {"squared": least_squares_exact, "logistic": logistic_high_precision}


@functools.cache
def problem(loss, weighting="row"):
    data = sample(loss, sizes=SIZES, d=4, reg=0.2)
    return data, data.fleet(weighting, UPDATES, names=NAMES)


def without(data, *gone):
    return [site for name, site in zip(NAMES, data.plain_sites, strict=True) if name not in gone]


def away(result, x_star):
    return np.linalg.norm(result.x - x_star) / max(1.0, np.linalg.norm(x_star))


@pytest.mark.parametrize("weighting", ["row", "client"])
@pytest.mark.parametrize("algorithm", [None, fh.fedhybrid()])
@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.slow)])
def test_who_leaves_and_who_comes_back_is_as_if_it_had_always_been_so(loss, algorithm, weighting):
    data, fleet = problem(loss, weighting)
    everyone = fh.solve(fleet, algorithm, tol=1e-11)
    fewer = fh.solve(fleet.without("b"), algorithm, tol=1e-11, warm=everyone)
    assert fewer.status is fh.Status.SOLVED
    assert away(fewer, EXACT[loss](without(data, "b"), 0.2, weighting)) <= 1e-10
    assert any("left" in note and note.endswith(": b.") for note in fewer.notes)
    again = fh.solve(fleet.without("b").joined({"b": data.sites[1]}, update="gradient"), algorithm, tol=1e-11, warm=fewer)
    assert away(again, EXACT[loss](data.plain_sites, 0.2, weighting)) <= 1e-10
    assert any("joined" in note and note.endswith(": b.") for note in again.notes)


@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.slow)])
def test_a_warm_start_takes_fewer_rounds_than_a_cold_one(loss):
    _, fleet = problem(loss)
    before = fh.solve(fleet, fh.fedhybrid())
    cold, warm = (fh.solve(fleet.without("c"), fh.fedhybrid(), warm=start) for start in (None, before))
    same = fh.solve(fleet, fh.fedhybrid(), warm=before)
    assert warm.rounds < cold.rounds
    assert same.rounds <= 10
    assert same.notes == fleet.notes


def test_a_fleet_without_a_site_is_the_fleet_of_the_others():
    data, fleet = problem("logistic")
    kept = [0, 2, 3]
    alone = fh.Fleet(
        [data.sites[i] for i in kept], loss=fh.logistic, reg=0.2, update=[UPDATES[i] for i in kept], names=[NAMES[i] for i in kept]
    )
    assert fleet.without("b").fingerprint == alone.fingerprint
    assert fleet.without("b").joined({"b": data.sites[1]}, update={"b": "gradient"}).names == ("a", "c", "d", "b")


def test_mistakes_are_refused():
    data, fleet = problem("logistic")
    wrong = (
        lambda: fleet.without("z"),
        lambda: fleet.without(*NAMES),
        lambda: fleet.joined({"a": data.sites[0]}),
        lambda: fleet.joined({}),
        lambda: fleet.joined({"e": data.sites[0]}, update={"a": "newton"}),
        lambda: fh.solve(fleet, warm="result"),
        lambda: fh.solve(fleet, warm=fh.solve(sample("squared", d=3).fleet())),
    )
    for mistake in wrong:
        with pytest.raises(fh.InvalidConfig):
            mistake()
