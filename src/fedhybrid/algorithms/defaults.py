"""What `solve` does when it is not told how: FedHybrid with a simple, safe choice of parameters, and a safer one if that diverges.

    μ = √(m̄·ℓ̄)                       m̄, ℓ̄ the means of the clients' mᵢ, ℓᵢ (m̄ at least the mean penalty, and ℓ̄/10⁴)
    gradient   a = 1/(ℓᵢ + μ)         b = a·μ²/4                 critically damped where fᵢ is flat
    newton     a = 1                  b = min(1/4, μ/(ℓ̄ + μ))    the mean of the duals needs b(ℓ + μ)/μ < 2

This is the analysis of equal quadratic clients. Each further attempt takes ten times the ℓᵢ, from the best point so far.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import theory
from ..fleet import Fleet
from .base import Algorithm
from .fedhybrid import fedhybrid

MOST_ATTEMPTS = 6


class Attempts:
    """The caller's algorithm, once; or FedHybrid's defaults, each time with more caution."""

    def __init__(self, algorithm: Algorithm | None, fleet: Fleet, x0: Any) -> None:
        self.given = algorithm
        self.fleet = fleet
        self.bounds = None
        if algorithm is None:
            m, ell = curvatures(fleet, x0)
            # one coordinate without penalty, such as an intercept, does not make a problem badly conditioned
            self.bounds = theory.Bounds(np.maximum(m, fleet.reg.mean() / fleet.n), ell)

    def algorithm(self, attempt: int) -> Algorithm:
        if self.given is not None:
            return self.given
        assert self.bounds is not None
        return fedhybrid(**safe_parameters(self.bounds.m, self.bounds.ell * 10.0**attempt, self.fleet.updates))

    def more(self, attempt: int) -> bool:
        return self.given is None and attempt + 1 < MOST_ATTEMPTS


def safe_parameters(m: np.ndarray, ell: np.ndarray, updates: tuple[str, ...]) -> dict[str, Any]:
    m_mean, ell_mean = float(np.mean(m)), float(np.mean(ell))
    mu = float(np.sqrt(max(m_mean, 1e-4 * ell_mean)) * np.sqrt(ell_mean)) or 1.0  # two roots: a product could overflow
    is_gradient = np.array([update == "gradient" for update in updates])
    a = np.where(is_gradient, 1.0 / (ell + mu), 1.0)
    b = np.where(is_gradient, 0.25 * mu * (mu / (ell + mu)), min(0.25, mu / (ell_mean + mu)))
    return {"mu": mu, "a": a, "b": b}


def curvatures(fleet: Fleet, x0: Any) -> theory.Bounds:
    """mᵢ, ℓᵢ; for a loss without a bound, the curvature at the start."""
    if fleet.loss.ell is not None:
        return theory.bounds(fleet)
    spectra = np.array([_spectrum(fleet.client(i).f, x0) for i in range(fleet.n)])
    return theory.Bounds(np.maximum(spectra[:, 0], 0.0), np.maximum(spectra[:, -1], 0.0))


def _spectrum(f: Any, x0: Any) -> np.ndarray:
    H = np.asarray(jax.tree.map(jnp.asarray, f).hess(x0))
    return np.linalg.eigvalsh(H) if np.all(np.isfinite(H)) else np.ones(len(H))  # not finite: the first round will say so
