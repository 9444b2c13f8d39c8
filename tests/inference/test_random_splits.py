"""However rows are dealt, the fit is that of the pooled table: 1 to 20 sites, unequal, shifted, three families."""

from typing import NamedTuple

import numpy as np
import pytest
import statsmodels.api as sm
from pooled_models import FAMILIES

import fedhybrid as fh

COLUMNS = 4
LIMITS = {"coefficients": 1e-8, "standard errors": 1e-7, "p-values": 1e-6}  # relative; of a coefficient near 0, to its standard error
QUICK = {"sites": (1, 2, 6, 20), "draws": 2}  # 24 splits; the sizes of so many sites are always the same, as every shape is compiled
FULL = {"sites": range(1, 21), "draws": 4}  # 240 splits


class Worst(NamedTuple):
    error: float
    where: str


def sizes_of(sites):
    """Far apart, from one row on."""
    rng = np.random.default_rng(sites)
    sizes = np.maximum(1, np.round(rng.lognormal(2.5, 1.2, sites))).astype(int)
    sizes[0] += max(0, 90 - sizes.sum())  # enough rows for a maximum of the likelihood
    return sizes


def split_of(family, sites, draw):
    """Every site's rows, around a mean of its own, by one model."""
    rng = np.random.default_rng([sites, draw, len(family)])
    truth = rng.normal(0.0, 0.3, COLUMNS)
    found = {}
    for k, rows in enumerate(sizes_of(sites)):
        A = rng.normal(size=(rows, COLUMNS)) * np.array([1.0, 0.2, 3.0, 1.0]) + rng.normal(0.0, draw, COLUMNS)
        eta = 0.2 + np.clip(A @ truth, -4.0, 4.0)
        if family == "gaussian":
            y = 5.0 + 10.0 * eta + rng.normal(size=rows)
        elif family == "binomial":
            y = (rng.uniform(size=rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
        else:
            y = rng.poisson(np.exp(eta)).astype(float)
        found[f"site {k}"] = (A, y)
    return found


def errors_of(split, family):
    fit = fh.fit(split, family=family)
    A, y = (np.concatenate(parts) for parts in zip(*split.values(), strict=True))
    model = sm.GLM(y, sm.add_constant(A, has_constant="add"), family=FAMILIES[family])
    pooled = model.fit(tol=1e-14, tol_criterion="params", maxiter=100, use_t=family == "gaussian")
    assert fit.status is fh.Status.SOLVED, fit.message
    size = np.maximum(np.abs(pooled.params), pooled.bse)
    return {
        "coefficients": np.max(np.abs(fit.x - pooled.params) / size),
        "standard errors": np.max(np.abs(fit.bse.to_numpy() / pooled.bse - 1.0)),
        "p-values": np.max(np.abs(fit.pvalues.to_numpy() - pooled.pvalues) / np.maximum(pooled.pvalues, 1e-12)),
    }


def check(sites, draws):
    worst = {name: Worst(0.0, "") for name in LIMITS}
    splits = 0
    for family in FAMILIES:
        for n in sites:
            for draw in range(draws):
                splits += 1
                for name, error in errors_of(split_of(family, n, draw), family).items():
                    worst[name] = max(worst[name], Worst(float(error), f"{family}, {n} sites, draw {draw}"))
    for name, (error, where) in worst.items():
        print(f"{name:<16} off by {error:.1e} at most, of {splits} splits ({where})")
    assert all(worst[name].error <= limit for name, limit in LIMITS.items()), worst


def test_two_dozen_random_splits_are_the_pooled_fit():
    check(**QUICK)


@pytest.mark.slow
def test_more_than_two_hundred_random_splits_are_the_pooled_fit():
    check(**FULL)
