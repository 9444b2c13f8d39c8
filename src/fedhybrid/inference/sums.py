"""What sites send once the fit stands: sums over their rows at x̂, and no row. NumPy; a look costs one message from every site.

look      score Σw·s, information Σw·h·aaᵀ, deviance, log-likelihood, …           at any coefficients
spread    how far a site's own score is from 0, against its own information: tests of heterogeneity
meat      Σ(w·s)²·aaᵀ, or of its own sum of scores, for robust and clustered standard errors
bins      predicted and observed means by tenths of the prediction, for calibration
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.linalg import cho_solve

from ..validation import Site
from .exact import exact_sum
from .families import Family

Array = Any
TENTHS = 10
RANK = 1e-10  # directions in which a site's information is less than this part of its largest say nothing
FITTED_ALONE = 1e-10  # a row whose leverage is 1 but for less than this has a coefficient of its own, and a residual of mere rounding


class Table(NamedTuple):
    """One site's rows as inference sees them: the intercept's column is a column."""

    A: Array
    y: Array
    w: Array
    offset: Array

    @classmethod
    def of(cls, site: Site, intercept: bool) -> "Table":
        if not intercept:
            return cls(site.A, site.y, site.w, site.offset)
        ones = np.ones((site.A.shape[0], 1))
        A = scipy.sparse.hstack([site.A, ones], format="csr") if scipy.sparse.issparse(site.A) else np.hstack([site.A, ones])
        return cls(A, site.y, site.w, site.offset)

    @classmethod
    def with_intercept_first(cls, rows: Any, intercept: bool) -> "Table":
        """Rows of a design, in the order in which coefficients are told."""
        n = len(rows.y)
        A = np.hstack([np.ones((n, 1)), rows.A]) if intercept else rows.A
        return cls(A, rows.y, np.ones(n) if rows.w is None else rows.w, np.zeros(n) if rows.offset is None else rows.offset)

    @property
    def alone(self) -> "Table":
        """Without columns: for a model of nothing but the offsets."""
        return self._replace(A=np.zeros((len(self.y), 0)))

    @property
    def ones(self) -> "Table":
        return self._replace(A=np.ones((len(self.y), 1)))

    def eta(self, x: Array, m: int) -> Array:
        """(N, m) linear predictions; x is a table of columns × m, kept flat."""
        return self.A @ x.reshape(self.A.shape[1], m) + self.offset[:, None]


class Look(NamedTuple):
    score: Array  # q
    information: Array  # q × q
    rows: Array  # of positive weight
    weight: Array
    losses: Array
    constants: Array
    deviance: Array
    squares: Array  # Pearson's χ²
    targets: Array  # m: Σw·y
    log_weight: Array  # Σ log w, which the density of a weighted normal response has


def total(parts: Iterable[Any]) -> Any:
    """The sum of sites' messages, field by field, to the last bit the same in every order."""
    parts = list(parts)
    return type(parts[0])(*(exact_sum([part[k] for part in parts]) for k in range(len(parts[0]))))


def look(table: Table, family: Family, x: Array, *, curved: bool = True) -> Look:
    """curved: with the information; without, it is 0 × 0."""
    eta = table.eta(x, family.m)
    slopes = table.w[:, None] * family.slopes(eta, table.y)
    held = table.w > 0
    return Look(
        score=_flat(table.A.T @ slopes),
        information=weighted_gram(table.A, table.w[:, None, None] * family.bends(eta, table.y)) if curved else np.zeros((0, 0)),
        rows=np.count_nonzero(held),
        weight=math.fsum(table.w),
        losses=_sum(table.w, family.losses(eta, table.y)),
        constants=_sum(table.w, family.constants(table.y)),
        deviance=_sum(table.w, family.deviances(eta, table.y)),
        squares=_sum(table.w, family.squares(eta, table.y)),
        targets=table.w @ family.targets(table.y),
        log_weight=math.fsum(np.log(table.w[held])),
    )


def weighted_gram(A: Array, B: Array) -> Array:
    """Σⱼ aⱼaⱼᵀ ⊗ Bⱼ, with coordinates in the order of a flat table of columns × m."""
    p, m = A.shape[1], B.shape[1]
    H = np.zeros((p, m, p, m))
    for k in range(m):
        for j in range(k, m):
            block = _gram(A, B[:, k, j])
            H[:, k, :, j] = block
            H[:, j, :, k] = block.T
    return H.reshape(p * m, p * m)


def _gram(A: Array, b: Array) -> Array:
    if scipy.sparse.issparse(A):
        return (A.T @ A.multiply(b[:, None])).toarray()
    return A.T @ (b[:, None] * A)


def _sum(w: Array, values: Array) -> float:
    return math.fsum(w * values)


def _flat(table: Array) -> Array:
    return np.asarray(table).reshape(-1)


# ── robust standard errors ────────────────────────────────────────────────────────────────────────────────────────────────────


class Meat(NamedTuple):
    matrix: Array


def meat(table: Table, family: Family, x: Array, bread: Array, kind: str, frequency: bool) -> Meat:
    """Of a sandwich bread·meat·bread. kind: HC0 … HC3, or "site": the site is one cluster. bread: the information's Cholesky factor."""
    eta = table.eta(x, family.m)
    slopes = family.slopes(eta, table.y)
    if kind == "site":
        score = _flat(table.A.T @ (table.w[:, None] * slopes))
        return Meat(np.outer(score, score))
    scale = table.w if frequency else table.w**2
    if kind in ("HC2", "HC3"):
        left = np.where(table.w > 0, 1.0 - leverages(table, family, eta, bread, frequency), 1.0)
        scale = scale / np.where(left > FITTED_ALONE, left, math.nan) ** (1 if kind == "HC2" else 2)
    return Meat(weighted_gram(table.A, scale[:, None, None] * slopes[:, :, None] * slopes[:, None, :]))


def leverages(table: Table, family: Family, eta: Array, bread: Array, frequency: bool) -> Array:
    """hⱼ = wⱼ·φ″·aⱼᵀ(ΣH)⁻¹aⱼ, of one row where weights count rows; for predictions of one column."""
    A = table.A.toarray() if scipy.sparse.issparse(table.A) else table.A
    weights = family.bends(eta, table.y)[:, 0, 0] * (1.0 if frequency else table.w)
    return weights * np.einsum("jp,pj->j", A, cho_solve(bread, A.T))


# ── do sites agree? ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Spread(NamedTuple):
    """For Rao's test that all sites have the same coefficients, and Cochran's of each coefficient by one step from x̂."""

    statistic: Array  # sᵢᵀHᵢ⁻¹sᵢ
    rank: Array  # of Hᵢ
    told: Array  # 1 where the site's rows alone determine every coefficient, else 0
    ones: Array  # q: 1/vᵢ
    steps: Array  # q: δᵢ/vᵢ
    squares: Array  # q: δᵢ²/vᵢ


def spread(seen: Look, dispersion: float, change: Callable[[Array], Array]) -> Spread:
    """Of one site, from its own look at x̂. change: from the coordinates of the look to those in which coefficients are told."""
    score, information = np.asarray(seen.score), np.asarray(seen.information)
    zero = np.zeros(len(score))
    size = np.sqrt(np.where(np.diag(information) > 0, np.diag(information), 1.0))  # units are taken out before ranks are judged
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    seen_well = values > RANK * max(values[-1], 1.0)
    root = (vectors[:, seen_well] / np.sqrt(values[seen_well])).T / size  # rows: root·H·rootᵀ = 1
    along = root @ score
    rank = int(seen_well.sum())
    if rank < len(score):
        return Spread(along @ along / dispersion, rank, 0.0, zero, zero, zero)
    step = change(-(root.T @ along))
    variance = dispersion * np.sum(change(root) ** 2, axis=0)
    return Spread(along @ along / dispersion, rank, 1.0, 1.0 / variance, step / variance, step**2 / variance)


# ── calibration ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Bins(NamedTuple):
    """By tenths of the predicted probability."""

    rows: Array
    weight: Array
    predicted: Array  # Σw·p
    observed: Array  # Σw·y


def bins(table: Table, family: Family, x: Array) -> Bins:
    p = family.mean(table.eta(x, 1))[:, 0]
    tenth = np.minimum((TENTHS * p).astype(int), TENTHS - 1)

    def each(values: Array) -> Array:
        return np.bincount(tenth, values, TENTHS)

    return Bins(each((table.w > 0).astype(float)), each(table.w), each(table.w * p), each(table.w * table.y))
