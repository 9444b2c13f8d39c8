"""Linear, ridge and Poisson regression, with scikit-learn's objectives and parameters."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import Tags

from .. import losses
from ..result import Result
from .base import FederatedLinearModel, not_negative
from .reading import Rows, numbers

Array = Any


class FederatedLinearRegression(RegressorMixin, FederatedLinearModel):
    """Least squares: min Σ w·(y − x·coef − intercept)², as `sklearn.linear_model.LinearRegression` on the pooled table.

    tol          coefficients are proved to be so close to the optimum, relative to their norm (of standardised columns)
    max_iter     rounds of communication
    standardise  work on standardised columns, by sums that the sites send; a change of variables, which changes no answer
    update       each site's work: "gradient", "diagonal", "newton", "newton-cg"; one for all, a list, or a dict by site; or "auto"

    After `fit`: coef_, intercept_, n_iter_ (rounds), result_ (a `Result`, with status and certificate; with columns of very different
    scale its error_bounds are worth a look), n_features_in_, feature_names_in_.
    """

    def __init__(
        self, *, fit_intercept: bool = True, tol: float = 1e-10, max_iter: int = 10_000, standardise: bool = True, update: Any = "newton"
    ) -> None:
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.standardise = standardise
        self.update = update

    def _fit(self, rows: Mapping[str, Rows], weight: float) -> Result:
        result = self._solve(self._fleet(numbers(rows), losses.squared, 0.0))
        self._keep(result.x)
        return result

    def predict(self, X: Any) -> Array:
        return self._linear(X)


class FederatedRidge(RegressorMixin, FederatedLinearModel):
    """Ridge regression: min Σ w·(y − x·coef − intercept)² + alpha·‖coef‖², as `sklearn.linear_model.Ridge` on the pooled table.

    The other parameters, and what `fit` leaves, are those of `FederatedLinearRegression`.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        tol: float = 1e-10,
        max_iter: int = 10_000,
        standardise: bool = True,
        update: Any = "newton",
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.standardise = standardise
        self.update = update

    def _fit(self, rows: Mapping[str, Rows], weight: float) -> Result:
        result = self._solve(self._fleet(numbers(rows), losses.squared, not_negative("alpha", self.alpha) / weight))
        self._keep(result.x)
        return result

    def predict(self, X: Any) -> Array:
        return self._linear(X)


class FederatedPoissonRegressor(RegressorMixin, FederatedLinearModel):
    """Poisson regression with a log link: min mean of half the deviance + ½·alpha·‖coef‖², the mean by weight, as
    `sklearn.linear_model.PoissonRegressor` on the pooled table.

    The other parameters, and what `fit` leaves, are those of `FederatedLinearRegression`. `score` is D², the part of the deviance
    that is explained.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        tol: float = 1e-10,
        max_iter: int = 10_000,
        standardise: bool = True,
        update: Any = "newton",
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.standardise = standardise
        self.update = update

    def _fit(self, rows: Mapping[str, Rows], weight: float) -> Result:
        result = self._solve(self._fleet(numbers(rows), losses.poisson, not_negative("alpha", self.alpha)))
        self._keep(result.x)
        return result

    def predict(self, X: Any) -> Array:
        return np.exp(self._linear(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
