"""From an optimum to everything that a `Fit` holds: which sums are asked for, and what is made of them.

The server's side of inference. It sees the sums of sums.py and never a row; each question is one round.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ..scaling import Scaling
from .families import Family
from .fit import Calibration, Heterogeneity, SiteLine
from .sums import Bins, Look, Spread, Table, bins, look, meat, spread, total

Array = Any
MOST_COEFFICIENTS = 4096  # beyond which no sum of Hessians is asked for
NULL_STEPS = 50
ROUNDING = 1e-28  # residual squares, beside those of the responses, that are of rounding alone
FITTED_EXACTLY = "the model fits every row exactly: what is left over is rounding, and so are errors, tests and the log-likelihood."
NO_SPREAD = "There are no more rows than coefficients, or one site alone has rows that count, which leaves nothing to tell a spread by."
OF_ITS_OWN = (
    "A row has a coefficient of its own, such as the only row of a level: its leverage is 1. HC2 and HC3 are not defined; HC0, HC1 are."
)


class Questions:
    """Asks all sites at once, each time one round, and counts."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tuple(tables)
        self.rounds = 0
        self.floats_up = 0

    def __call__(self, question: Callable[[Table], Any], tables: Sequence[Table] | None = None) -> list[Any]:
        self.rounds += 1
        return self.within(question, tables)

    def within(self, question: Callable[[Table], Any], tables: Sequence[Table] | None = None) -> list[Any]:
        """In the same message as the question before."""
        replies = [question(table) for table in (self.tables if tables is None else tables)]
        self.floats_up += sum(_floats(np.shape(part)) for reply in replies for part in reply)
        return replies


def _floats(shape: tuple[int, ...]) -> int:
    """Of a symmetric matrix, one half and the diagonal."""
    return shape[0] * (shape[0] + 1) // 2 if len(shape) == 2 else math.prod(shape)


class Answers(NamedTuple):
    """The sums at x̂, and what follows from them."""

    seen: Look
    covariance: Array | None  # in the coordinates in which coefficients are told
    why_no_errors: str
    dispersion: float
    null: Look
    shares: tuple[float, ...]
    exactly_fitted: bool
    heterogeneity: Heterogeneity | None
    calibration: Calibration | None


def ask(
    questions: Questions,
    looks: Sequence[Look],
    family: Family,
    z: Array,
    scaling: Scaling,
    *,
    intercept: bool,
    kind: str,
    counted: bool,
    no_errors: str,
) -> Answers:
    """All questions, to sites that hold their tables in the coordinates of z. looks: of every site, at z."""
    seen = total(looks)
    n, q = float(seen.weight if counted else seen.rows), len(z)
    left = n - q
    dispersion = float(seen.squares) / left if family.estimates_dispersion and left > 0 else 1.0
    null = _null(questions, family, seen, intercept)
    exact = _exactly_fitted(seen, null, family)
    factor, why = _factored(seen.information, q, left, family, no_errors)
    covariance, shares, agreement = None, tuple(math.nan for _ in looks), None
    if factor is not None:
        inverse = cho_solve(factor, np.eye(q))
        shares = tuple(float(np.sum(inverse * each.information)) / q for each in looks)
        covariance = dispersion * inverse
        if kind != "model":
            middle = total(questions(lambda table: meat(table, family, z, factor, kind, counted))).matrix
            covariance = inverse @ middle @ inverse * _small_sample(kind, n, q, sum(bool(each.rows) for each in looks))
        covariance = scaling.covariance(covariance)
        covariance = 0.5 * (covariance + covariance.T)
        if not np.all(np.isfinite(covariance)):
            why = why or (OF_ITS_OWN if kind in ("HC2", "HC3") else NO_SPREAD)
        if sum(bool(each.rows) for each in looks) > 1 and not no_errors and dispersion > 0 and not exact:
            agreement = _agreement(questions, looks, dispersion, scaling, q)
    calibration = None
    if family.name == "binomial":
        calibration = _calibration(total(questions(lambda table: bins(table, family, z))))
    return Answers(seen, None if why else covariance, why, dispersion, null, shares, exact, agreement, calibration)


def _exactly_fitted(seen: Look, null: Look, family: Family) -> bool:
    """Where only rounding is left over, of which nothing follows."""
    responses = null.squares + np.sum(np.square(seen.targets)) / seen.weight  # about their mean, and of it
    return bool(family.estimates_dispersion and seen.squares <= ROUNDING * responses)


def _agreement(questions: Questions, looks: Sequence[Look], dispersion: float, scaling: Scaling, q: int) -> Heterogeneity:
    known = dict(zip(map(id, questions.tables), looks, strict=True))  # a site has its own look still
    held = [table for table in questions.tables if known[id(table)].rows]
    return _heterogeneity(total(questions(lambda table: spread(known[id(table)], dispersion, scaling.original), held)), q)


def _factored(information: Array, q: int, left: float, family: Family, no_errors: str) -> tuple[Any, str]:
    if q > MOST_COEFFICIENTS:
        return None, f"There are {q} coefficients; a sum of Hessians is asked for up to {MOST_COEFFICIENTS}."
    if not np.all(np.isfinite(information)):
        return None, no_errors or "At the coefficients that were reached the sum of Hessians is not finite."
    try:
        factor = cho_factor(information, lower=True)
    except LinAlgError:
        return None, no_errors or "The columns do not determine the coefficients: the sum of Hessians is singular."
    if family.estimates_dispersion and left <= 0:
        return factor, no_errors or "There are no more rows than coefficients, which leaves nothing to estimate the dispersion from."
    return factor, no_errors


def _small_sample(kind: str, n: float, q: int, clusters: int) -> float:
    """NaN where it is not defined."""
    if kind not in ("HC1", "site"):
        return 1.0
    if n <= q or (kind == "site" and clusters < 2):
        return math.nan
    return n / (n - q) if kind == "HC1" else clusters / (clusters - 1.0) * (n - 1.0) / (n - q)


def _null(questions: Questions, family: Family, seen: Look, intercept: bool) -> Look:
    """The model without columns: an intercept, if there is one, and the offsets. By Newton steps, each one round."""

    def at(b: Array) -> Look:
        found: Look = total(questions(lambda table: look(table.ones if intercept else table.alone, family, b)))
        return found

    if not intercept:
        return at(np.zeros(0))
    mean = seen.targets / seen.weight
    with np.errstate(divide="ignore", invalid="ignore"):
        b = family.links(mean)
    if not np.all(np.isfinite(b)):  # one class only, no event: the likelihood has no maximum, and its limit is no model
        b = np.clip(np.nan_to_num(b, nan=0.0), -30.0, 30.0)
        return at(b)
    found = at(b)
    for _ in range(NULL_STEPS):
        move = np.linalg.solve(found.information, -found.score)
        move *= min(1.0, 2.0 / max(float(np.abs(move).max()), 1e-300)) if family.link != "identity" else 1.0
        tried = at(b + move)
        if not tried.losses < found.losses:
            return found
        b, found = b + move, tried
    return found


def _heterogeneity(sums: Spread, q: int) -> Heterogeneity:
    df = int(sums.rank) - q
    sites = int(sums.told)
    with np.errstate(divide="ignore", invalid="ignore"):
        Q = np.maximum(sums.squares - sums.steps**2 / sums.ones, 0.0) if sites > 1 else np.full(q, math.nan)
        I2 = np.where(sites - 1 < Q, 1.0 - (sites - 1) / Q, 0.0)
    pvalues = stats.chi2.sf(Q, sites - 1) if sites > 1 else Q
    pvalue = float(stats.chi2.sf(sums.statistic, df)) if df > 0 else math.nan
    return Heterogeneity(float(sums.statistic), df, pvalue, sites, tuple(Q.tolist()), tuple(pvalues.tolist()), tuple(I2.tolist()))


def _calibration(sums: Bins) -> Calibration:
    weight = np.where(sums.weight > 0, sums.weight, math.nan)
    return Calibration(
        tuple(int(rows) for rows in sums.rows), tuple((sums.predicted / weight).tolist()), tuple((sums.observed / weight).tolist())
    )


def site_lines(
    names: Sequence[str],
    tables: Sequence[Table],
    family: Family,
    missing: Sequence[int],
    updates: Sequence[str],
    shares: Sequence[float],
    counted: bool,
) -> tuple[SiteLine, ...]:
    """What is told of every site."""

    def rows(table: Table) -> int:
        return int(np.count_nonzero(table.w > 0))

    def events(table: Table) -> float:
        return math.fsum(table.y * (table.w if counted else table.w > 0)) if family.has_events else math.nan

    each = zip(names, tables, missing, updates, shares, strict=True)
    return tuple(SiteLine(name, rows(table), gone, events(table), update, share) for name, table, gone, update, share in each)


def in_order(order: Array, answers: Answers) -> Answers:
    """With coefficients in another order."""
    agreement = answers.heterogeneity

    def taken(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(np.asarray(values)[order].tolist())

    if agreement is not None:
        agreement = agreement._replace(Q=taken(agreement.Q), pvalues=taken(agreement.pvalues), I2=taken(agreement.I2))
    covariance = None if answers.covariance is None else answers.covariance[np.ix_(order, order)]
    return answers._replace(covariance=covariance, heterogeneity=agreement)
