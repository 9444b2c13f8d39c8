"""The front door: from tables and a formula to a fitted model, with everything that statistics says of it.

tables → design, agreed on → fleet → standardised → solve → sums at the optimum → Fit
"""

import datetime
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np

from . import losses
from .arguments import truth, whole
from .callbacks import Callback
from .certificate import Gradient, certify_point, extremes
from .clients.base import Clients
from .clients.stacked import Stacked
from .fleet import Fleet
from .inference.asked import FITTED_EXACTLY, Answers, Questions, ask, in_order, site_lines
from .inference.families import Family, family_of
from .inference.fit import INTERCEPT, KINDS, Fit
from .inference.given import Given, by_arrays, by_formula
from .inference.polish import Polished, polished
from .inference.sums import Look, Table, total
from .inference.undetermined import certain, tied
from .result import Result
from .scaling import CONSTANT_COLUMNS, UNITS, Scaling, standardised
from .solve import solve
from .status import InvalidConfig, Status, refuse_unknown_keywords

Array = Any
STANDING = (Status.SOLVED, Status.SOLVED_INACCURATE)  # x is as good as rounding allows: errors can be told


@refuse_unknown_keywords
def fit(
    sites: Mapping[str, Any] | Sequence[Any],
    formula: str | None = None,
    *,
    family: str = "gaussian",
    reg: float | Sequence[float] = 0.0,
    weights: str | None = None,
    offset: str | None = None,
    counts: bool = False,
    reference: Mapping[str, str] | None = None,
    covariance: str = "model",
    intercept: bool = True,
    columns: Sequence[str] | None = None,
    update: str | Sequence[str] | Mapping[str, str] = "newton",
    min_rows: int = 5,
    tol: float = 1e-10,
    max_rounds: int = 10_000,
    transport: Callable[[Fleet], Clients] = Stacked,
    progress: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Fit:
    """The model that one pooled table would give, from tables that stay at their sites.

    sites       data frames by name, with a formula; without one, (A, y), (A, y, w) or (A, y, w, offset) as for `Fleet`
    formula     such as "death ~ age + C(sex) + bmi"; text columns are factors, with the union of all sites' levels
    family      gaussian, binomial, poisson, multinomial
    reg         ½·reg·‖x‖² is added to the mean loss of a row, the intercept left free; then there are no standard errors
    weights, offset   columns of the tables
    counts      weights count rows (frequencies); otherwise they are prior weights, as R's
    reference   the reference level of factors, by column
    covariance  "model"; HC0, HC1, HC2, HC3: robust against a wrong variance; "site": against rows of a site that belong together
    intercept, columns   without a formula: whether there is one, and names for the columns
    update      each site's work: gradient, diagonal, newton, newton-cg, or "auto"
    min_rows    counts of a site with fewer rows are not told
    """
    family_of(family)  # a name that is none is refused before anything is said about the data
    if covariance not in KINDS:
        raise InvalidConfig(f"covariance must be one of {', '.join(KINDS)}, not {covariance!r}.")
    counts, min_rows = truth("fit: counts", counts), whole("fit: min_rows", min_rows)
    began = time.monotonic()
    if formula is not None:
        if not intercept or columns is not None:
            raise InvalidConfig("with a formula, it says what columns there are; without an intercept write `- 1` in it.")
        _refuse_no_names(weights, offset, reference)
        given = by_formula(sites, formula, family, weights, offset, reference or {}, min_rows)
    else:
        if weights is not None or offset is not None or reference is not None:
            raise InvalidConfig("weights, offset and reference name columns and go with a formula; here a site is (A, y, w, offset).")
        given = by_arrays(sites, truth("fit: intercept", intercept), columns)
    fleet, model = _fleet(given, family, reg, update)
    _refuse_unsuited(model, covariance, given)
    names, order = _names(given, fleet, model)
    scaled, scaling = standardised(fleet)
    raw = solve(scaled, tol=tol, max_rounds=max_rounds, transport=transport, progress=progress, callbacks=callbacks)
    tables = [Table.of(site, scaled.intercept) for site in scaled.sites]
    questions = Questions(tables)
    there = polished(questions, model, raw.x, scaled.total_weight * scaled.reg, raw.status in STANDING)
    result = scaling.result(_certified(raw, there, scaled, tol))
    why, endless = _why_not_determined(questions, there, result, fleet, scaling, model, given)
    if endless:
        result = replace(result, status=Status.NO_MINIMISER, message=_said(Status.NO_MINIMISER))
    no_errors = _no_errors(result, fleet)
    answers = ask(
        questions, there.looks, model, there.z, scaling, intercept=given.intercept, kind=covariance, counted=counts, no_errors=no_errors
    )
    answers = in_order(order, answers)
    seen, null = answers.seen, answers.null
    return Fit(
        family_name=family,
        classes=_classes(given, model),
        names=names,
        x=result.x[order],
        covariance=answers.covariance,
        why_no_errors=answers.why_no_errors,
        kind=covariance,
        dispersion=answers.dispersion,
        rows=int(seen.rows),
        missing=sum(given.missing),
        weight=float(seen.weight),
        counted=counts,
        deviance=float(seen.deviance),
        null_deviance=float(null.deviance),
        llf=_log_likelihood(seen, model, counts),
        llnull=_log_likelihood(null, model, counts),
        pearson=float(seen.squares),
        intercept=given.intercept,
        penalty=tuple(fleet.column_penalty.tolist()) if np.ndim(reg) else float(reg),  # type: ignore[arg-type]  # a number here
        sites=site_lines(fleet.names, tables, model, given.missing, fleet.updates, answers.shares, counts),
        heterogeneity=answers.heterogeneity,
        calibration=answers.calibration,
        design=given.design,
        status=result.status,
        message=result.message,
        error_bounds=None if result.error_bounds is None else result.error_bounds[order],
        rounds=result.rounds + questions.rounds,
        floats_up=result.floats_up + questions.floats_up,
        seconds=time.monotonic() - began,
        privacy=result.privacy,
        notes=_notes(given, result, why, answers),
        min_rows=min_rows,
        about=_about(family, formula, weights, offset, tol, result),
        convergence=tuple(zip(result.trace.rounds.tolist(), result.trace.residual.tolist(), strict=True)),
        result=result,
    )


# ── the fleet ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fleet(given: Given, family: str, reg: Any, update: Any) -> tuple[Fleet, Family]:
    """A model of an intercept alone is one on a column of ones."""
    known = family_of(family, len(given.levels))
    loss: Any = losses.softmax if family == "multinomial" and not given.levels else known.loss
    rows, intercept = given.rows, given.intercept
    if not given.columns:
        if not intercept:
            raise InvalidConfig("the model has neither a column nor an intercept.")
        rows, intercept, reg = {name: (np.ones((len(site[1]), 1)), *site[1:]) for name, site in rows.items()}, False, 0.0
    fleet = Fleet(rows, loss=loss, reg=reg, intercept=intercept, update=update)
    return fleet, family_of(family, fleet.K)


def _refuse_no_names(weights: Any, offset: Any, reference: Any) -> None:
    for what, name in (("weights", weights), ("offset", offset)):
        if not isinstance(name, str | None):
            raise InvalidConfig(f"fit: {what} must be the name of a column, not {type(name).__name__}.")
    if not isinstance(reference, Mapping | None):
        raise InvalidConfig(f"fit: reference must be a dict such as {{'sex': 'female'}}, not {type(reference).__name__}.")


def _refuse_unsuited(model: Family, covariance: str, given: Given) -> None:
    if model.classes and covariance in ("HC2", "HC3"):
        raise InvalidConfig(f"covariance={covariance!r} is not defined for several classes; HC0, HC1 and site are.")
    sites = sum(len(site[1]) > 0 for site in given.rows.values())
    if covariance == "site" and sites < 2:
        raise InvalidConfig("covariance='site' needs two sites at least: their rows are the clusters.")


def _certified(raw: Result, there: Polished, fleet: Fleet, tol: float) -> Result:
    """The solver's result at the polished point, with what is proved of that: anew, or of the solver's point plus the way between."""
    if there.moved == 0.0:
        return raw
    assert there.eigenvalues is not None  # without a sum of Hessians there is no step
    g = there.gradient / fleet.total_weight
    found = certify_point(fleet, Gradient(g, raw.rounding), extremes(there.eigenvalues / fleet.total_weight))
    proved = min(raw.error_bound + there.moved, found.error_bound)
    status, message = raw.status, raw.message
    if proved <= tol * max(1.0, float(np.linalg.norm(there.z))):
        status, message = Status.SOLVED, _said(Status.SOLVED)
    return replace(
        raw, x=there.z, status=status, message=message, error_bound=proved, gradient_norm=g, m_hat=found.m_hat, kappa_hat=found.kappa_hat
    )


def _why_not_determined(
    questions: Questions, there: Polished, result: Result, fleet: Fleet, scaling: Scaling, model: Family, given: Given
) -> tuple[str, bool]:
    """Where the fit did not end well: which columns are to blame, if that can be seen; and whether coefficients grow without end."""
    information = total(there.looks).information
    if result.status is Status.SOLVED or np.any(fleet.reg > 0) or not information.size or not np.all(np.isfinite(information)):
        return "", False
    names = [*given.columns, *([INTERCEPT] if given.intercept else [])]
    if sentence := tied(questions, names, given.intercept):
        return sentence, False
    found = scaling.original(np.linalg.eigh(information)[1][:, 0]) if result.direction is None else result.direction
    original = [Table.of(site, fleet.intercept) for site in fleet.sites]
    response = "the response" if given.design is None else given.design.response
    sentence = certain(questions, original, model, scaling, names, response, found)
    return sentence, bool(sentence)


def _said(status: Status) -> str:
    return f"{status.sentence[0].upper()}{status.sentence[1:]}."


# ── what is told ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _no_errors(result: Result, fleet: Fleet) -> str:
    if result.status not in STANDING:
        return f"The fit did not come to its end ({result.status}): {result.status.sentence}."
    if np.any(fleet.reg > 0):
        return "The fit is penalised, which pulls coefficients towards 0: what they would vary by is not what they are off by."
    return ""


def _notes(given: Given, result: Result, why: str, answers: Answers) -> tuple[str, ...]:
    """The solver's own notes are of the problem that it was given: its columns have numbers, and ours names."""
    own = (note for note in result.notes if note != UNITS and not note.startswith(CONSTANT_COLUMNS))
    exactly = [FITTED_EXACTLY] if answers.exactly_fitted else []
    return tuple(dict.fromkeys((*([why] if why else []), *exactly, *given.notes, *own)))


def _names(given: Given, fleet: Fleet, model: Family) -> tuple[tuple[str, ...], Array]:
    """Names of coefficients, the intercept first, and for each its place in the solver's x."""
    names = np.array([*given.columns, *([INTERCEPT] if given.intercept else [])], object)
    p = len(names)
    first = np.roll(np.arange(p), 1) if given.intercept else np.arange(p)
    if not fleet.K:
        return tuple(names[first].tolist()), first
    if np.any(fleet.reg > 0):  # every class has coefficients of its own, but in the columns without a penalty
        raise InvalidConfig("family='multinomial' is fitted without a penalty here; FederatedLogisticRegression takes one.")
    labels = _classes(given, model)
    order = (first[:, None] * model.m + np.arange(model.m)).reshape(-1)
    return tuple(f"{names[c]}[{label}]" for c in first for label in labels[1:]), order


def _classes(given: Given, model: Family) -> tuple[Any, ...]:
    return given.levels or tuple(range(model.classes)) if model.classes else ()


def _log_likelihood(seen: Look, model: Family, counted: bool) -> float:
    """At its best dispersion, where one is estimated."""
    if not model.estimates_dispersion:
        return -float(seen.losses + seen.constants)
    n, squares = float(seen.weight if counted else seen.rows), float(seen.squares)
    if squares == 0.0:
        return math.inf
    return -0.5 * (n * (1.0 + math.log(2.0 * math.pi * squares / n)) - (0.0 if counted else float(seen.log_weight)))


def _about(family: str, formula: str | None, weights: Any, offset: Any, tol: float, result: Result) -> dict[str, Any]:
    packages = {name: version(name) for name in ("fedhybrid", "jax", "numpy", "scipy")}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    asked = {"formula": formula, "family": family, "weights": weights, "offset": offset, "tol": tol, "method": result.algorithm}
    return {"versions": packages | {"python": platform.python_version()}, "machine": platform.platform(), "when": now, "asked": asked}
