"""scikit-learn's front: `fit` and `predict` on rows that are held by several sites, with the pooled table's answer."""

from .classifier import FederatedLogisticRegression
from .huber import FederatedHuberRegressor
from .regressors import FederatedLinearRegression, FederatedPoissonRegressor, FederatedRidge

__all__ = [
    "FederatedHuberRegressor",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedPoissonRegressor",
    "FederatedRidge",
]
