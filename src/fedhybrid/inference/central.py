"""The same model from one pooled table, by other means: to verify a fit with.

Iteratively reweighted least squares, each step an orthogonal factorisation of the table itself; several classes by scikit-learn. No line
of it is shared with the federated fit, but for the design that both read.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from ..status import InvalidData
from .fit import Fit
from .sums import Table

Array = Any
STEPS = 200
ENOUGH = 1e-13  # relative change of the coefficients


def _itself(eta: Array) -> Array:
    return eta


def _of_a_coin(eta: Array) -> Array:
    return expit(eta) * expit(-eta)


# of every family the mean of a response and its variance, by the linear prediction
LINKS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "gaussian": (_itself, np.ones_like),
    "binomial": (expit, _of_a_coin),
    "poisson": (np.exp, np.exp),
}


class Central(NamedTuple):
    x: Array
    errors: Array | None  # model-based; None where there is a penalty


class Difference(NamedTuple):
    """The largest difference of two fits, and where it is."""

    coefficient: float  # relative to the coefficient or, where that is larger, its standard error
    where: str
    error: float  # relative, of the standard errors; NaN where one of the fits has none


def compare(fit: Fit, table: Table) -> Difference:
    """A fit against the central one on the rows of this table, whose columns are in the order of the fit's names."""
    central = centrally(fit, table)
    size = np.abs(central.x) if central.errors is None else np.maximum(np.abs(central.x), central.errors)
    if fit.why_no_errors:  # a penalised coefficient may be 0
        size = np.maximum(size, 1e-3 * np.linalg.norm(central.x))
    off = np.abs(fit.x - central.x) / np.where(size > 0, size, 1.0)
    worst = int(np.argmax(off))
    error = np.nan
    if central.errors is not None and fit.covariance is not None and fit.kind == "model":
        error = float(np.max(np.abs(fit.bse.to_numpy() / central.errors - 1.0)))
    return Difference(float(off[worst]), fit.names[worst], error)


def centrally(fit: Fit, table: Table) -> Central:
    penalty = _penalties(fit, table)
    if fit.classes:
        return Central(_by_classes(table, len(fit.classes)), None)
    x, root = _reweighted(fit.family_name, table, penalty)
    if np.any(penalty > 0):
        return Central(x, None)
    unscaled = np.linalg.pinv(root)
    eta = table.A @ x + table.offset
    n = table.w.sum() if fit.counted else np.count_nonzero(table.w)
    dispersion = np.sum(table.w * (table.y - eta) ** 2) / (n - len(x)) if fit.uses_t else 1.0
    return Central(x, np.sqrt(dispersion * np.sum(unscaled**2, axis=1)))


def _penalties(fit: Fit, table: Table) -> Array:
    """One per column of the table, for a sum over rows instead of their mean."""
    p = table.A.shape[1] - fit.intercept
    given = np.broadcast_to(np.asarray(fit.penalty, float), p) if np.ndim(fit.penalty) == 0 else np.asarray(fit.penalty, float)[:p]
    return table.w.sum() * (np.append(0.0, given) if fit.intercept else given)


def _reweighted(family: str, table: Table, penalty: Array) -> tuple[Array, Array]:
    """Coefficients, and the triangle R of √W·A = QR at the end. Columns are brought to one scale first."""
    scale = np.sqrt(np.maximum(np.mean(table.A**2, axis=0), np.finfo(float).tiny))
    A, w, y = table.A / scale, table.w, table.y
    ridge = np.sqrt(penalty) / scale
    mean, variance = LINKS[family]
    start = np.log(max(float(np.average(y, weights=w)), 1e-3)) if family == "poisson" else 0.0
    x, eta, best = np.zeros(A.shape[1]), np.full(len(y), start) + table.offset, np.inf
    for _ in range(STEPS):
        v = np.maximum(variance(eta), 1e-300)
        root = np.sqrt(w * v)
        target = root * (eta - table.offset + (y - mean(eta)) / v)
        rows, goal = np.vstack([root[:, None] * A, np.diag(ridge)]), np.append(target, np.zeros(len(ridge)))
        x_next = np.linalg.lstsq(rows, goal, rcond=1e-15)[0]
        move = float(np.linalg.norm(x_next - x))
        x, eta = x_next, A @ x_next + table.offset
        if not np.all(np.isfinite(eta)) or (move >= best and best <= 1e-9 * np.linalg.norm(x)) or move <= ENOUGH * np.linalg.norm(x):
            break
        best = min(best, move)
    if not np.all(np.isfinite(x)):
        raise InvalidData("the central fit did not converge on this table; are the data separable?")
    root = np.sqrt(w * variance(eta))
    return x / scale, np.linalg.qr(root[:, None] * table.A, mode="r")


def _by_classes(table: Table, classes: int) -> Array:
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt(np.maximum(np.mean(table.A**2, axis=0), np.finfo(float).tiny))
    model = LogisticRegression(C=np.inf, fit_intercept=False, solver="newton-cg", tol=1e-12, max_iter=10_000)
    model.fit(table.A / scale, table.y, sample_weight=table.w)
    found = model.coef_ if len(model.coef_) == classes else np.vstack([np.zeros(model.coef_.shape[1]), model.coef_])
    return ((found[1:] - found[0]) / scale).T.reshape(-1)
