"""The least squares that scikit-learn gives where columns do not determine them: of all that fit equally well, those of least norm.

The norm is that of the coefficients in the units of the data, the intercept left out of it. From the sums that the sites send, in the
coordinates z that were solved in (coefficients x = z/s; G and b are what is left of Σ∇²fᵢ and −Σ∇fᵢ(0) once the intercept is at its best):

    z = G⁺b,  x = z/s,  then x less its part in the null space of the coefficients' Hessian, which is s⁻¹·null(G)
"""

from typing import Any

import numpy as np

from ..fleet import Fleet
from ..scaling import Scaling

Array = Any


def least_norm(fleet: Fleet, scaling: Scaling | None) -> Array | None:
    """x, the intercept last, in the units of the data; None where the columns do determine it, or are too many for a sum of Hessians."""
    if not fleet.on_statistics:
        return None
    quadratics = [fleet.client(i).f for i in range(fleet.n)]
    H, c = sum(f.H for f in quadratics), sum(f.c for f in quadratics)
    G, b, tie = H, c, np.zeros(0)
    if fleet.intercept:
        tie, level = H[-1, :-1] / H[-1, -1], c[-1] / H[-1, -1]
        G, b = H[:-1, :-1] - np.outer(tie, H[-1, :-1]), c[:-1] - c[-1] * tie
    w, Q = np.linalg.eigh(G)
    seen = w > len(H) * np.finfo(float).eps * np.linalg.eigvalsh(H)[-1]
    if seen.all():
        return None
    z = Q[:, seen] @ ((Q[:, seen].T @ b) / w[seen])
    scale = np.ones(len(b)) if scaling is None else scaling.scale[: len(b)]
    null = np.linalg.qr(Q[:, ~seen] / scale[:, None])[0]
    x = z / scale
    x -= null @ (null.T @ x)
    z = x * scale
    z = np.append(z, level - tie @ z) if fleet.intercept else z
    return z if scaling is None else scaling.original(z)
