"""What the estimators share: from rows by site to a solved problem, and from a table to predictions."""

import math
import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.metadata_routing import UNCHANGED
from sklearn.utils.validation import check_is_fitted, validate_data

from ..arguments import truth, whole
from ..fleet import Fleet
from ..losses import Loss, squared
from ..result import Result
from ..scaling import standardised
from ..solve import solve
from ..status import InvalidConfig, Status
from .least_norm import least_norm
from .reading import Rows, padded, read

Array = Any
STANDING = (Status.SOLVED, Status.SOLVED_INACCURATE)  # x is as good as rounding allows
LEAST_NORM = "Many coefficients fit equally well, as columns do not determine them. These are the ones of least norm."


class FederatedLinearModel(BaseEstimator, ABC):
    """A linear model on rows that several sites hold. Subclasses say which objective, in scikit-learn's parameters."""

    __metadata_request__fit: ClassVar = {"sites": True}  # whoever routes metadata to a federated fit wants it to know the sites

    coef_: Array
    intercept_: Any  # a number; of a classifier an array
    fit_intercept: bool
    tol: float
    max_iter: int
    standardise: bool
    update: Any

    def fit(self, X: Any, y: Any = None, sites: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows that several sites hold.

        X, y           one table; or as X, without y, a list or dict of every site's (X, y) or (X, y, sample_weight)
        sites          the name of each row's site, None where there is one site only; of a list of tables, their names
        sample_weight  one weight per row
        """
        truth("fit_intercept", self.fit_intercept)
        truth("standardise", self.standardise)
        whole("max_iter", self.max_iter)
        rows = read(self, X, y, sites, sample_weight)
        result = self._fit(rows, float(sum(float(each.w.sum()) for each in rows.values())))
        self.result_, self.n_iter_ = result, result.rounds
        if result.status not in STANDING and result.message != LEAST_NORM:
            warnings.warn(f"{type(self).__name__}: {result.message}", ConvergenceWarning, stacklevel=2)
        return self

    @abstractmethod
    def _fit(self, rows: Mapping[str, Rows], weight: float) -> Result:
        """Set coef_ and intercept_. `weight`: of all rows together."""

    def _fleet(self, sites: Mapping[str, tuple], loss: Loss, reg: float) -> Fleet:
        if loss is not squared:  # which lives on sums over rows, whatever their number
            sites = {name: padded(site) for name, site in sites.items()}
        return Fleet(sites, loss=loss, reg=reg, intercept=self.fit_intercept, update=self._updates(sites))

    def _solve(self, fleet: Fleet) -> Result:
        scaled, scaling = standardised(fleet) if self.standardise else (fleet, None)
        result = solve(scaled, tol=self.tol, max_rounds=self.max_iter)
        if scaling is not None:
            result = scaling.result(result)
        if result.status in STANDING or fleet.loss is not squared or np.any(fleet.reg > 0):
            return result
        x = least_norm(scaled, scaling)
        return result if x is None else replace(result, x=x, status=Status.ILL_CONDITIONED, message=LEAST_NORM, error_bounds=None)

    def _updates(self, sites: Mapping[str, tuple]) -> str | Sequence[str]:
        """Every site's own; a dict may name sites that have no row here, as in a fold of cross-validation."""
        if not isinstance(self.update, Mapping):
            return self.update
        choices = {str(name): choice for name, choice in self.update.items()}
        if lacking := [name for name in sites if name not in choices]:
            raise InvalidConfig(f"update, as a dict, has no entry for {', '.join(lacking)}.")
        return [choices[name] for name in sites]

    def _keep(self, x: Array) -> None:
        """coef_ and intercept_ from one vector, the intercept last."""
        self.coef_, self.intercept_ = (x[:-1].copy(), float(x[-1])) if self.fit_intercept else (x.copy(), 0.0)

    def _linear(self, X: Any) -> Array:
        check_is_fitted(self)
        A = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        return A @ self.coef_.T + self.intercept_

    def set_fit_request(self, *, sites: Any = UNCHANGED, sample_weight: Any = UNCHANGED) -> Self:
        """Say which metadata `fit` wants of a pipeline or a search; `sites` it wants anyway.

        Where scikit-learn's routing is off, fit gets whatever the search was given, and what is said here waits until it is on.
        """
        request = self.get_metadata_routing()
        for name, wanted in (("sites", sites), ("sample_weight", sample_weight)):
            if wanted is not UNCHANGED:
                request.fit.add_request(param=name, alias=wanted)
        self._metadata_request = request
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags


def not_negative(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise InvalidConfig(f"{name} must be a number, finite and not negative, not {value!r}.")
    return float(value)


def positive_or_infinite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) > 0:
        raise InvalidConfig(f"{name} must be a positive number, infinite for no penalty, not {value!r}.")
    return float(value)
