"""The pooled fit, whoever holds the rows: the library against exact fractions, extended precision and scikit-learn."""

from typing import NamedTuple

import numpy as np
import pytest
from reference.pooled import least_squares_exact, logistic_high_precision
from sklearn.linear_model import LogisticRegression

import fedhybrid as fh

TOL = {"squared": 1e-10, "logistic": 1e-8}
LOSSES = {"squared": fh.squared, "logistic": fh.logistic}
METHODS = {"default": lambda: None, "newton": fh.newton}


class Shape(NamedTuple):
    """Rows of every site, and columns; the shapes are few because each is compiled."""

    sizes: tuple[int, ...]
    d: int


QUICK = {
    "squared": [
        Shape((12,), 1),
        Shape((3, 30), 2),
        Shape((5, 9, 17, 2), 5),
        Shape((1, 2, 4, 8, 16), 3),
        Shape((6,) * 20, 10),
    ],
    "logistic": [
        Shape((40,), 2),
        Shape((10, 30), 1),
        Shape((8, 25, 40), 3),
        Shape((12,) * 20, 6),
    ],
}
SLOW = {
    "squared": [
        *QUICK["squared"],
        Shape((20, 20), 4),
        Shape((1,) * 20, 4),
        Shape((7, 11, 13), 7),
        Shape((40, 3, 3, 3), 8),
        Shape((10,) * 8, 9),
    ],
    "logistic": [*QUICK["logistic"], Shape((60, 5, 5), 4), Shape((30,) * 5, 8), Shape((20,) * 10, 10)],
}
VARIANTS = ("plain", "weights", "intercept", "one label", "shifted", "penalty by column")


class Pooled(NamedTuple):
    sites: list
    reg: object
    intercept: bool
    plain_sites: list  # with the column of ones, in full
    plain_reg: np.ndarray


def problem(loss, shape, variant, penalised, seed):
    """Sites that differ: their rows are shifted and scaled against each other."""
    rng = np.random.default_rng(seed)
    d = shape.d
    truth = rng.normal(size=d) / np.sqrt(d)
    spread = 3.0 if variant == "shifted" else 0.5
    sites = []
    for i, rows in enumerate(shape.sizes):
        A = rng.normal(size=(rows, d)) * rng.uniform(0.5, 2.0) + (spread * rng.normal(size=d) if len(shape.sizes) > 1 else 0.0)
        z = A @ truth + 0.3
        y = z + rng.normal(size=rows) if loss == "squared" else (z - np.median(z) + 2 * rng.logistic(size=rows) > 0).astype(float)
        if variant == "one label" and loss == "logistic":
            y = np.full(rows, float(i % 2)) if len(shape.sizes) > 1 else y
        w = rng.integers(0, 4, size=rows) + 0.5 if variant == "weights" else np.ones(rows)
        sites.append((A, y, w))
    if variant == "one label" and loss == "logistic" and len(shape.sizes) == 2:  # two sites apart would be separable
        sites[0][1][: shape.sizes[0] // 2] = 1.0
    reg = 0.0 if not penalised else 10.0 ** rng.uniform(-2, 0)
    if variant == "penalty by column" and penalised:
        reg = reg * rng.uniform(0.5, 2.0, size=d)
    intercept = variant == "intercept"
    plain_sites = [(np.hstack([A, np.ones((len(A), 1))]), y, w) for A, y, w in sites] if intercept else sites
    columns = np.broadcast_to(np.asarray(reg, float), d)
    return Pooled(sites, reg, intercept, plain_sites, np.append(columns, 0.0) if intercept else columns.copy())


def well_posed(loss, it):
    """Enough rows for the columns, no separation, a moderate condition number."""
    A = np.vstack([A * np.sqrt(w)[:, None] for A, _, w in it.plain_sites])
    values = np.linalg.eigvalsh(A.T @ A / sum(w.sum() for *_, w in it.plain_sites) + np.diag(it.plain_reg))
    if values[0] <= 1e-3 * values[-1]:
        return False
    if loss == "squared":
        return True
    y = np.concatenate([y for _, y, _ in it.plain_sites])
    if y.min() == y.max():
        return False
    try:
        truth = logistic_high_precision(it.plain_sites, it.plain_reg)
    except ArithmeticError:
        return False
    return bool(np.linalg.norm(truth) < 20)


def oracle(loss, it):
    return (least_squares_exact if loss == "squared" else logistic_high_precision)(it.plain_sites, it.plain_reg)


def by_sklearn(it):
    """scikit-learn on the pooled rows, for one penalty of all columns: C = 1/(reg·Σw)."""
    A, y, w = (np.concatenate(part) for part in zip(*it.sites, strict=True))
    C = 1.0 / (float(it.reg) * w.sum()) if float(it.reg) > 0 else np.inf
    model = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-13, max_iter=200, fit_intercept=it.intercept)
    model.fit(A, y, sample_weight=w)
    return np.append(model.coef_[0], model.intercept_) if it.intercept else model.coef_[0]


def problems(loss, shapes, per_shape, first_seed):
    """`per_shape` well-posed problems of every shape, cycling through the variants and through reg = 0 and > 0."""
    for k, shape in enumerate(shapes):
        found, seed = 0, first_seed + 1000 * k
        while found < per_shape:
            variant = VARIANTS[(found + k) % len(VARIANTS)]
            it = problem(loss, shape, variant, penalised=found % 3 != 0 or sum(shape.sizes) <= shape.d, seed=seed)
            seed += 1
            if seed > first_seed + 1000 * k + 300:
                raise AssertionError(f"{shape}, {variant}: no well-posed problem in 300")
            if well_posed(loss, it):
                found += 1
                yield f"{loss} {shape} {variant} seed {seed - 1}", it


def check(name, loss, it, method):
    """Solve, and hold the result against the oracle. Returns error/size, error/bound and rounds."""
    fleet = fh.Fleet(it.sites, loss=LOSSES[loss], reg=it.reg, weighting="row", intercept=it.intercept)
    result = fh.solve(fleet, METHODS[method](), tol=TOL[loss])
    truth = oracle(loss, it)
    size = max(1.0, float(np.linalg.norm(truth)))
    error = float(np.linalg.norm(result.x - truth))
    assert result.status is fh.Status.SOLVED, f"{name}: {result} (error {error:.1e}, bound {result.error_bound:.1e})"
    assert error <= result.error_bound * (1 + 1e-6) + 1e-14 * size, f"{name}: error {error:.2e} above the bound {result.error_bound:.2e}"
    assert error <= TOL[loss] * max(1.0, np.linalg.norm(result.x)), f"{name}: error {error:.2e}"
    return error / size, error / max(result.error_bound, 1e-14 * size), result.rounds


def check_all(loss, shapes, per_shape, method, first_seed):
    seen, failures = [], []
    for name, it in problems(loss, shapes, per_shape, first_seed):
        try:
            seen.append(check(name, loss, it, method))
        except AssertionError as failure:
            failures.append(str(failure).splitlines()[0])
    worst = np.max(seen, axis=0) if seen else (np.nan,) * 3
    print(
        f"{loss}, {method}: {len(seen)} of {len(seen) + len(failures)} solved and right; worst relative error {worst[0]:.1e}, "
        f"error/bound {worst[1]:.2f}, rounds {int(worst[2])} (median {np.median([s[2] for s in seen]):.0f})"
    )
    assert not failures, f"{len(failures)} of {len(seen) + len(failures)}:\n" + "\n".join(failures)


# Newton's method on two shapes of either loss; on all of them in the long tier, as every shape is some ten programs to compile.
ways = pytest.mark.parametrize(
    ("method", "shapes"),
    [
        pytest.param("default", slice(None), id="default"),
        pytest.param("newton", slice(2, 4), id="newton, two shapes"),
        pytest.param("newton", slice(None), marks=pytest.mark.slow, id="newton"),
    ],
)


@ways
def test_least_squares_is_the_pooled_fit_in_exact_fractions(method, shapes):
    check_all("squared", QUICK["squared"][shapes], 3, method, first_seed=0)


@ways
def test_logistic_regression_is_the_pooled_fit_in_extended_precision(method, shapes):
    check_all("logistic", QUICK["logistic"][shapes], 3, method, first_seed=50_000)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_many_more_problems_are_the_pooled_fit(loss, method):
    check_all(loss, SLOW[loss], 16 if loss == "squared" else 20, method, first_seed=100_000)


def test_the_oracle_agrees_with_scikit_learn_and_so_does_the_library():
    worst = 0.0
    for _, it in problems("logistic", [QUICK["logistic"][2]], 6, first_seed=200_000):
        if np.ndim(it.reg) or it.reg == 0:
            continue
        other = by_sklearn(it)
        assert np.linalg.norm(oracle("logistic", it) - other) <= 1e-9 * max(1.0, np.linalg.norm(other))
        fleet = fh.Fleet(it.sites, loss=fh.logistic, reg=it.reg, intercept=it.intercept)
        worst = max(worst, float(np.linalg.norm(fh.solve(fleet).x - other)) / max(1.0, np.linalg.norm(other)))
    print(f"worst distance to scikit-learn {worst:.1e}")
    assert 0 < worst <= 1e-8


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_fit_does_not_depend_on_who_holds_the_rows(loss):
    (_, it), *_ = problems(loss, [Shape((8, 25, 40), 3)], 1, first_seed=300_000)
    A, y, w = (np.concatenate(part) for part in zip(*it.sites, strict=True))
    order = np.random.default_rng(0).permutation(len(y))
    fits = []
    for cuts in ([8, 33], [40, 65], [1, 2]):
        sites = [(A[part], y[part], w[part]) for part in np.split(order, cuts)]
        fits.append(fh.solve(fh.Fleet(sites, loss=LOSSES[loss], reg=it.reg), tol=TOL[loss]).x)
    for fit in fits[1:]:
        assert np.linalg.norm(fit - fits[0]) <= 2 * TOL[loss] * max(1.0, np.linalg.norm(fit))


def test_a_weight_of_two_is_the_row_twice():
    (_, it), *_ = problems("squared", [Shape((5, 9, 17, 2), 5)], 1, first_seed=400_000)
    whole = [(A, y, np.where(np.arange(len(y)) % 2, 2.0, 1.0)) for A, y, _ in it.sites]
    twice = [(np.repeat(A, w.astype(int), axis=0), np.repeat(y, w.astype(int))) for A, y, w in whole]
    weighted = fh.solve(fh.Fleet(whole, loss=fh.squared, reg=0.1), tol=1e-10)
    assert weighted.status is fh.Status.SOLVED
    assert np.linalg.norm(weighted.x - least_squares_exact(twice, 0.1)) <= 1e-10 * max(1.0, np.linalg.norm(weighted.x))


def test_client_weighting_is_not_the_pooled_fit_and_is_its_own_optimum():
    (_, it), *_ = problems("squared", [Shape((3, 30), 2)], 1, first_seed=500_000)
    result = fh.solve(fh.Fleet(it.sites, loss=fh.squared, reg=0.1, weighting="client"), tol=1e-10)
    assert np.linalg.norm(result.x - least_squares_exact(it.sites, 0.1, weighting="client")) <= 1e-10 * max(1.0, np.linalg.norm(result.x))
    assert np.linalg.norm(result.x - least_squares_exact(it.sites, 0.1)) > 1e-3
