"""Assumption 1: mᵢ I ⪯ ∇²fᵢ(x) ⪯ ℓᵢ I, for every client and every x.

    squared loss   the extreme eigenvalues of the constant Hessian
    other losses   mᵢ = the least penalty's share, ℓᵢ = ell·λmax(Σ wⱼaⱼaⱼᵀ) + the largest penalty's share

`ell` bounds the loss's second derivative in its prediction: 1 squared and Huber, 1/4 logistic, 1/2 softmax (diag p − ppᵀ is a
covariance of a unit vector's entries: vᵀ(diag p − ppᵀ)v = Var(v) ≤ (max v − min v)²/4 ≤ ‖v‖²/2). A coordinate without penalty, such
as the intercept, leaves mᵢ = 0 there: far out the loss itself may be flat. All are rounded outwards.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse

from ..fleet import Fleet
from ..status import InvalidConfig

EPS = float(np.finfo(float).eps)
LARGEST_EIGENPROBLEM = 1000  # d beyond which ‖A‖² is bounded by norms instead of computed


class Bounds(NamedTuple):
    """mᵢ I ⪯ ∇²fᵢ ⪯ ℓᵢ I for every client, in site order."""

    m: np.ndarray
    ell: np.ndarray


def bounds(fleet: Fleet) -> Bounds:
    """mᵢ and ℓᵢ: exact for squared loss, else the loss's own bounds times the largest eigenvalue of the weighted rows."""
    if fleet.loss.ell is None:
        raise InvalidConfig(f"{fleet.loss.name} has no bound on its curvature, so ℓᵢ does not exist: the theorem's step sizes need one.")
    share = fleet.reg / fleet.n
    m, ell = np.zeros(fleet.n), np.zeros(fleet.n)
    for i in range(fleet.n):
        if fleet.on_statistics and fleet.d <= LARGEST_EIGENPROBLEM:
            spectrum = np.linalg.eigvalsh(fleet.client(i).f.H)
            blur = fleet.d * EPS * spectrum[-1]  # eigvalsh is that exact; without it a singular Hessian would get a tiny m > 0
            m[i], ell[i] = max(spectrum[0] - blur, share.min()), spectrum[-1] + blur
        else:
            m[i], ell[i] = share.min(), fleet.loss.ell * _squared_norm(fleet, i) + share.max()
    return Bounds(m, ell)


def _squared_norm(fleet: Fleet, i: int) -> float:
    """At least ‖Σⱼ wⱼ aⱼ aⱼᵀ‖ of site i."""
    A, w = fleet.sites[i].A, np.sqrt(fleet.row_weights(i))
    A = A.multiply(w[:, None]).tocsr() if scipy.sparse.issparse(A) else A * w[:, None]
    if fleet.intercept:
        ones = w[:, None]
        A = scipy.sparse.hstack([A, ones]).tocsr() if scipy.sparse.issparse(A) else np.hstack([A, ones])
    if A.shape[0] == 0:
        return 0.0
    outwards = 2 * sum(A.shape) * EPS
    if min(A.shape) <= LARGEST_EIGENPROBLEM:
        gram = A.T @ A if A.shape[1] <= A.shape[0] else A @ A.T
        gram = gram.toarray() if scipy.sparse.issparse(gram) else gram
        return float(np.linalg.eigvalsh(gram)[-1] + outwards * np.trace(gram))  # a product's error is within its terms' norms
    size = abs(A)
    return float(size.sum(axis=0).max() * size.sum(axis=1).max() * (1 + outwards))
