"""Curvatures of a fleet whose data are at hand, for experiments: what a comparison scales its search by."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import theory
from ..fleet import Fleet


def curvatures(fleet: Fleet, x0: Any) -> theory.Bounds:
    """mᵢ, ℓᵢ; for a loss without a bound, the curvature at the start."""
    if fleet.loss.ell is not None:
        return theory.bounds(fleet)
    spectra = np.array([_spectrum(fleet.client(i).f, x0) for i in range(fleet.n)])
    return theory.Bounds(np.maximum(spectra[:, 0], 0.0), np.maximum(spectra[:, -1], 0.0))


def _spectrum(f: Any, x0: Any) -> np.ndarray:
    H = np.asarray(jax.tree.map(jnp.asarray, f).hess(x0))
    return np.linalg.eigvalsh(H) if np.all(np.isfinite(H)) else np.ones(len(H))  # not finite: the first round will say so
