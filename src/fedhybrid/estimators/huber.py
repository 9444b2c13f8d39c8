"""Robust regression whose scale is fitted with it.

    F(x, σ) = Σ w·(σ + σ·H((y − a·x)/σ)) + α‖coef‖²       H(t) = t² where |t| ≤ ε, else 2ε|t| − ε²

F is convex in x and σ together, so that its least value over x is a convex function of σ. With u = x/σ and t = y/σ − a·u,

    F(σu, σ)/(2σΣw) = ½ + mean huber_ε(t) + ½·(ασ/Σw)·‖coef of u‖²            the loss of the library, with a penalty
    ∂F/∂σ           = Σ w·(1 − min(t², ε²))                                     at the u that is best for σ

Least squares about the mean has σ₁ = √(mean (y − ȳ)²), and the σ sought is at most that: huber_ε(t) ≥ ½min(t², ε²), so that there
mean min(t², ε²) ≤ 1. From σ₁ down to a second end, and between both by Brent's method, each σ costs one federated fit, which begins
where the last one ended, and one round of two sums. No row is seen by the server, and none of its residuals.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from sklearn.base import RegressorMixin

from .. import losses
from ..fleet import Fleet
from ..result import Result
from ..scaling import Scaling, standardised
from ..solve import solve
from ..status import InvalidConfig, Status
from ..validation import Site
from .base import STANDING, FederatedLinearModel, not_negative
from .reading import Rows, numbers

Array = Any
FLOOR = 1e-8  # of σ₁: rows whose scale is smaller are told to be fitted exactly
EXACT = "More rows than outliers are fitted exactly: the best scale is 0, and scale_ is the least one that was tried."
TRIED = "{} scales were tried; trace, gradient_norm and curvature are those at the last."
NO_BOUND = "No bound is known where the scale is fitted with the coefficients."


class At(NamedTuple):
    """What is known at one σ."""

    sigma: float
    result: Result  # of u, in the coordinates that were solved in
    excess: float  # mean min(t², ε²) − 1: positive where σ is too small
    next: float  # the best scale for these residuals, if no row changed sides; 0 where there is none


class FederatedHuberRegressor(RegressorMixin, FederatedLinearModel):
    """Huber regression with the scale fitted too, as `sklearn.linear_model.HuberRegressor` on the pooled table:
    min Σ w·(σ + σ·H(residual/σ)) + alpha·‖coef‖², H(t) = t² where |t| ≤ epsilon, else 2·epsilon·|t| − epsilon².

    epsilon  residuals beyond epsilon·σ count as outliers; more than 1
    The other parameters, and what `fit` leaves, are those of `FederatedLinearRegression`; besides, scale_ (σ), and outliers_, one
    truth value per row in the order given (of tables by site, one site after the other).
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.35,
        alpha: float = 0.0001,
        fit_intercept: bool = True,
        tol: float = 1e-10,
        max_iter: int = 10_000,
        standardise: bool = True,
        update: Any = "newton",
    ) -> None:
        self.epsilon = epsilon
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.standardise = standardise
        self.update = update

    def _fit(self, rows: Mapping[str, Rows], weight: float) -> Result:
        if not_negative("epsilon", self.epsilon) <= 1.0:
            raise InvalidConfig("epsilon must be more than 1: from 1 on, the best scale of any data is 0.")
        alpha = not_negative("alpha", self.alpha)
        fleet = self._fleet(numbers(rows), losses.huber(delta=float(self.epsilon)), alpha / weight)
        search = Search(fleet, float(self.epsilon), tol=self.tol, max_rounds=self.max_iter, standardise=self.standardise)
        found = search.run()
        result = search.told(found)
        self.scale_ = found.sigma
        self._keep(result.x)
        self.outliers_ = np.zeros(sum(len(each.y) for each in rows.values()), bool)
        for each in rows.values():
            off = each.y.astype(np.float64) - each.A @ self.coef_ - self.intercept_
            self.outliers_[each.place] = np.abs(off) > self.epsilon * self.scale_
        return result

    def predict(self, X: Any) -> Array:
        return self._linear(X)


class Search:
    """The σ at which mean min(t², ε²) = 1, by federated fits at others. What they cost is added up."""

    def __init__(self, fleet: Fleet, epsilon: float, *, tol: float, max_rounds: int, standardise: bool) -> None:
        self.fleet = fleet
        self.scaling: Scaling | None = None
        if standardise:
            self.fleet, self.scaling = standardised(fleet)
        self.epsilon, self.tol, self.max_rounds = epsilon, tol, max_rounds
        self.seen: list[At] = []
        self.exact = False

    @property
    def rounds(self) -> int:
        return sum(at.result.rounds + 1 for at in self.seen)

    def run(self) -> At:
        lower = upper = self._at(self._largest())
        floor = FLOOR * upper.sigma
        while lower.excess < 0 and self._goes_on():
            if lower.next <= floor:
                self.exact = True
                return lower
            upper, lower = lower, self._at(0.5 * lower.next)
        if lower is not upper and self._goes_on():
            ends = {at.sigma: at.excess for at in (lower, upper)}
            xtol = max(0.01 * self.tol, 1e-13) * lower.sigma
            root = brentq(lambda sigma: ends[sigma] if sigma in ends else self._excess(sigma), lower.sigma, upper.sigma, xtol=xtol)
            if root != self.seen[-1].sigma and self._goes_on():
                return self._at(root)
        return self.seen[-1]

    def _goes_on(self) -> bool:
        return self.seen[-1].result.status in STANDING

    def _excess(self, sigma: float) -> float:
        """0, so that the search ends, where the last fit did not come to its end."""
        return self._at(sigma).excess if self._goes_on() else 0.0

    def _largest(self) -> float:
        """σ₁, of the rows about their mean (about 0, without an intercept)."""
        sites = self.fleet.sites
        weight = self.fleet.total_weight
        mean = math.fsum(float(site.w @ site.y) for site in sites) / weight if self.fleet.intercept else 0.0
        spread = math.sqrt(math.fsum(float(site.w @ (site.y - mean) ** 2) for site in sites) / weight)
        return spread or abs(mean) or 1.0

    def _at(self, sigma: float) -> At:
        sites = tuple(site._replace(y=site.y / sigma) for site in self.fleet.sites)
        fleet = self.fleet.in_coordinates(sites, sigma * self.fleet.column_penalty)
        start = self.seen[-1].result.x * (self.seen[-1].sigma / sigma) if self.seen else None
        result = solve(fleet, tol=self.tol, max_rounds=max(1, self.max_rounds - self.rounds), x0=start)
        outer, squares = np.sum([self._sums(site, result.x) for site in fleet.sites], axis=0) / fleet.total_weight
        left = 1.0 - self.epsilon**2 * outer
        ratio = squares / left if left > 0 else 0.0
        self.seen.append(At(sigma, result, float(squares - left), sigma * math.sqrt(ratio)))
        return self.seen[-1]

    def _sums(self, site: Site, u: Array) -> Array:
        """What a site sends: the weight of its outliers, and the squares of its other residuals."""
        t = site.y - (site.A @ u[:-1] + u[-1] if self.fleet.intercept else site.A @ u)
        inner = np.abs(t) <= self.epsilon
        return np.array([site.w @ ~inner, site.w @ np.where(inner, t, 0.0) ** 2])

    def told(self, at: At) -> Result:
        """The fit at this σ as one of the whole problem, in the units of the data."""
        found = at.result if self.scaling is None else self.scaling.result(at.result)
        status, message = found.status, found.message
        if status in STANDING:
            status, message = Status.SOLVED_INACCURATE, f"{Status.SOLVED_INACCURATE.sentence.capitalize()}. {NO_BOUND}"
        costs = {name: sum(getattr(each.result, name) for each in self.seen) for name in ("floats_up", "floats_down", "flops", "seconds")}
        costs["floats_up"] += 2 * self.fleet.n * len(self.seen)
        return replace(
            found,
            x=at.sigma * found.x,
            status=status,
            message=message,
            error_bound=math.inf,
            error_bounds=None,
            rounds=self.rounds,
            notes=(*found.notes, TRIED.format(len(self.seen)), *self.exact * (EXACT,)),
            **costs,
        )
