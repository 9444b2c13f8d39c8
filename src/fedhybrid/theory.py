"""The paper's analysis as functions: mᵢ, ℓᵢ, admissible step sizes, the proved rate ρ, and Δᵏ with its parts."""

from typing import NamedTuple

import numpy as np
import scipy.sparse

from .fleet import Fleet
from .status import InvalidConfig

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
            m[i], ell[i] = max(spectrum[0], share.min()), spectrum[-1]
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
    if min(A.shape) <= LARGEST_EIGENPROBLEM:
        gram = A.T @ A if A.shape[1] <= A.shape[0] else A @ A.T
        gram = gram.toarray() if scipy.sparse.issparse(gram) else gram
        return float(np.linalg.eigvalsh(gram)[-1]) * (1 + 1e-12)
    size = abs(A)
    return float(size.sum(axis=0).max() * size.sum(axis=1).max())
