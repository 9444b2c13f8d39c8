"""Logistic regression, of two classes or several, with scikit-learn's objective and parameters."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from .. import losses
from ..problem import free_entries
from ..result import Result
from ..status import InvalidData
from .base import FederatedLinearModel, positive_or_infinite
from .reading import Rows

Array = Any


class FederatedLogisticRegression(ClassifierMixin, FederatedLinearModel):
    """Logistic regression: min C·Σ w·loss + ½·‖coef‖², as `sklearn.linear_model.LogisticRegression` on the pooled table; with more than
    two classes the multinomial one. Classes are the union of all sites': one of them may be all that a site has seen.

    C   inverse of the penalty's weight; infinite for none
    The other parameters, and what `fit` leaves, are those of `FederatedLinearRegression`; besides, classes_.
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        fit_intercept: bool = True,
        tol: float = 1e-10,
        max_iter: int = 10_000,
        standardise: bool = True,
        update: Any = "newton",
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.standardise = standardise
        self.update = update

    def _fit(self, rows: Mapping[str, Rows], weight: float) -> Result:
        C = positive_or_infinite("C", self.C)
        sites = self._coded({name: each.weighing() for name, each in rows.items()})
        K = len(self.classes_)
        loss = losses.logistic if K == 2 else losses.softmax(classes=K)
        fleet = self._fleet(sites, loss, 0.0 if math.isinf(C) else 1.0 / (C * weight))
        result = self._solve(fleet)
        if K == 2:
            self._keep(result.x)
            self.coef_, self.intercept_ = self.coef_[None], np.atleast_1d(self.intercept_)
        else:
            table = np.zeros(fleet.p * K)
            table[free_entries(fleet.p, K, fleet.pinned)] = result.x
            table = table.reshape(fleet.p, K)
            table = (table - table.mean(axis=1, keepdims=True)).T  # only differences between classes matter; these sum to 0
            self.coef_, self.intercept_ = (table[:, :-1].copy(), table[:, -1].copy()) if self.fit_intercept else (table, np.zeros(K))
        return result

    def _coded(self, rows: Mapping[str, Rows]) -> dict[str, tuple]:
        """Every site's labels as positions in classes_."""
        for name, each in rows.items():
            if each.y.dtype.kind == "f" and (bad := int(np.count_nonzero(~np.isfinite(each.y)))):
                raise InvalidData(f"{name}: y has {bad} of {len(each.y)} labels that are NaN or infinite.")
        labels = np.concatenate([each.y for each in rows.values() if len(each.y)])
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidData(f"{type(self).__name__} needs two classes at least, but all rows of all sites have one class.")
        cuts = np.cumsum([len(each.y) for each in rows.values()])[:-1]
        coded = zip(rows.items(), np.split(codes.astype(np.float64), cuts), strict=True)
        return {name: (each.A, own, each.w) for (name, each), own in coded}

    def decision_function(self, X: Any) -> Array:
        """Log-odds of the second class, one per row; with several classes one score per class."""
        scores = self._linear(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)]

    def predict_proba(self, X: Any) -> Array:
        scores = self.decision_function(X)
        return np.column_stack([expit(-scores), expit(scores)]) if scores.ndim == 1 else softmax(scores, axis=1)

    def predict_log_proba(self, X: Any) -> Array:
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([-np.logaddexp(0.0, scores), -np.logaddexp(0.0, -scores)])
        return log_softmax(scores, axis=1)
