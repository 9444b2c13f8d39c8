"""Logistic regression at four hospitals of 199, 172, 30 and 85 rows, where two well-known federated packages are off by 1 to 33 %.

There the sites send sums over their rows, and the server takes a mean of them that is weighted by the sites' numbers of rows: a row at a
site of 199 counts for 6.6 of those at a site of 30. The more sites differ, the more it shows.
"""

import numpy as np
import pytest
import statsmodels.api as sm

import fedhybrid as fh

ROWS, FEATURES = (199, 172, 30, 85), 13


def hospitals(shift):
    """Patients of every site lie around a point of its own, and fare a little differently."""
    rng = np.random.default_rng(13)
    truth = rng.normal(0.0, 0.5, FEATURES)
    sites = {}
    for name, rows in zip(("north", "east", "south", "west"), ROWS, strict=True):
        A = rng.normal(size=(rows, FEATURES)) + shift * rng.normal(size=FEATURES)
        own = truth + 0.6 * shift * rng.normal(size=FEATURES)
        sites[name] = (A, (rng.uniform(size=rows) < 1.0 / (1.0 + np.exp(-(A @ own) / 2.0))).astype(float))
    return sites


def by_newton(sites, weight_of):
    """Newton's method in plain NumPy on Σ weight·(sum over a site's rows); and standard errors by the same sums."""
    x = np.zeros(FEATURES + 1)
    for _ in range(50):
        g, H = 0.0, 0.0
        for rows, y in sites.values():
            A = np.column_stack([np.ones(len(rows)), rows])
            p = 1.0 / (1.0 + np.exp(-(A @ x)))
            g = g + weight_of(len(y)) * (A.T @ (p - y))
            H = H + weight_of(len(y)) * (A.T @ ((p * (1.0 - p))[:, None] * A))
        x = x - np.linalg.solve(H, g)
    return x, np.sqrt(np.diag(np.linalg.inv(H)))


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
def test_the_case_that_nvflare_and_tno_get_wrong_is_the_pooled_fit_here(shift):
    sites = hospitals(shift)
    A, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    pooled = sm.GLM(y, sm.add_constant(A), family=sm.families.Binomial()).fit(tol=1e-14, tol_criterion="params", maxiter=100)
    scale = np.linalg.norm(pooled.params)

    fit = fh.fit(sites, family="binomial", update={"north": "newton", "east": "newton", "south": "gradient", "west": "gradient"})
    assert fit.status is fh.Status.SOLVED
    off, off_errors = np.linalg.norm(fit.x - pooled.params) / scale, np.max(np.abs(fit.bse / pooled.bse - 1.0))
    assert off <= 1e-8
    assert off_errors <= 1e-7

    right, _ = by_newton(sites, lambda rows: 1.0)  # sums of sums: what the packages mean to do
    assert np.linalg.norm(right - pooled.params) / scale <= 1e-8
    wrong, wrong_errors = by_newton(sites, lambda rows: rows / sum(ROWS))  # what they do
    wrongly = np.linalg.norm(wrong - pooled.params) / scale
    assert wrongly > 0.01
    assert np.mean(wrong_errors / pooled.bse) > 1.3
    print(
        f"shift {shift}: off by {off:.1e}, errors by {off_errors:.1e}; a weighted mean of sums is off by {100 * wrongly:.1f} %, its errors "
        f"are {np.mean(wrong_errors / pooled.bse):.2f} times as large"
    )
