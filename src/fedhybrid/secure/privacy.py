"""Differential privacy at the site, as an option: what is sent is clipped around a public centre, and gets discrete Gaussian noise.

    sent = round(centre + clip(v − centre, R)) + N_ℤ(0, σ²)          on the grid of the secure sum, coordinate by coordinate

FedHybrid: v = z, centre = x₀, R = G/μ, so that the implied gradient μ(x₀ − z) is at most G; gradients: centre 0, R = G.
Protected is all that a site holds: whatever its rows are, two sets of them change a message by at most 2R, because every message lies in
one ball around a point that everyone knows. So no reasoning about the site's inner state is needed, and one row is protected as well
as all of them together. (That is much to ask: a guarantee for single rows would need less noise, and clipping row by row.)
It holds against everyone, the server and all other sites included, and whoever is absent, since every site adds all the noise itself.
Noise is drawn once per question: an answer that is sent again must be the stored one. Whatever else a site sends, such as residuals,
is not covered and must be released in the same way, or left out.

The sampler is exact: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020. N_ℤ(0, σ²) with L2
sensitivity Δ has the Rényi divergence α·Δ²/(2σ²) of order α, as the continuous one; these add up over all messages.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr

from . import fixedpoint
from .errors import Reason, SecureError

Below = Callable[[int], int]  # a uniform whole number below its argument; other than the system's in tests only
FEWEST_STEPS = 16  # grid steps in σ: below, the sum of discrete Gaussians is not close enough to one of them


def sensitivity(radius: float, size: int, scale: int) -> float:
    """How far apart two messages of a site can be: 2R, and what rounding to the grid adds."""
    return 2.0 * radius + 2.0 * math.sqrt(size) * 2.0**-scale


def release(
    values: np.ndarray, centre: np.ndarray, *, radius: float, sigma: float, scale: int, below: Below = secrets.randbelow
) -> np.ndarray:
    """What the site may send instead of `values`. σ is in the values' own unit, and is rounded up to the grid."""
    if not (0 < radius < math.inf and 0 < sigma < math.inf):
        raise SecureError(Reason.NOT_ALLOWED, "The radius and sigma of a private release must be positive and finite.")
    if float(np.max(np.abs(centre), initial=0.0)) + radius >= 2.0 ** (52 - scale):
        raise SecureError(
            Reason.OVERFLOW, f"The centre or the radius is too large for scale 2^{scale}: floats are coarser than its grid there."
        )
    steps = math.ceil(math.ldexp(sigma, scale))
    if steps < FEWEST_STEPS:
        raise SecureError(Reason.NOT_ALLOWED, f"sigma must be at least {FEWEST_STEPS} steps of the grid 2^-{scale}: use a finer scale.")
    noise = [discrete_gaussian(steps * steps, 1, below) for _ in range(values.size)]
    whole = fixedpoint.integers(centre + clipped(values - centre, radius), scale) + fixedpoint.as_objects(noise)
    return fixedpoint.real(whole, scale)  # rounding what is private already keeps it private


def clipped(values: np.ndarray, radius: float) -> np.ndarray:
    norm = float(np.linalg.norm(values))
    if not math.isfinite(norm):
        raise SecureError(Reason.NOT_FINITE, "What is to be released is not finite. It was not sent.")
    return values * ((1 - 2.0**-40) * radius / norm) if norm > radius else values


def share_of(sigma: float, honest: int) -> float:
    """σ for each site where the sum alone is to be private, and at least so many honest sites are in it.

    For SUM rounds only: those consist of everyone, so that no noise is ever missing. In rounds of changes another set of sites answers
    each time, old noise comes back in the differences, and no bound is known to us: there every site adds all of σ.
    """
    if honest < 1:
        raise SecureError(Reason.TOO_FEW, "At least one honest site is needed for noise that is shared.")
    return sigma / math.sqrt(honest)


@dataclass
class Accountant:
    """What a site has spent. Rényi divergences of order α are α·rho; persist rho before a release is sent."""

    delta: float
    limit: float = math.inf  # on epsilon
    rho: float = 0.0

    def spend(self, sensitivity: float, sigma: float, releases: int = 1) -> None:
        """Count a release before it is made; refused where it would go beyond the limit."""
        rho = self.rho + releases * sensitivity**2 / (2 * sigma**2)
        if epsilon(rho, self.delta) > self.limit:
            raise SecureError(
                Reason.NOT_ALLOWED, f"The privacy budget of epsilon = {self.limit:g} is used up: this site sends nothing more."
            )
        self.rho = rho

    @property
    def epsilon(self) -> float:
        return epsilon(self.rho, self.delta)

    @property
    def label(self) -> str:
        return label(self.epsilon, self.delta)


def label(epsilon: float, delta: float) -> str:
    return f"dp({math.ceil(1e3 * epsilon - 1e-6) / 1e3:g}, {delta:g})"


def epsilon(rho: float, delta: float) -> float:
    """The smallest ε that the Rényi divergences α·rho prove for this δ (Canonne, Kamath and Steinke, Proposition 12)."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, not {delta}.")
    if rho == 0:
        return 0.0

    def bound(log_excess: float) -> float:
        alpha = 1.0 + math.exp(log_excess)
        return alpha * rho + math.log1p(-1.0 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1.0)

    guess = math.log(math.sqrt(math.log(1.0 / delta) / rho))
    found = minimize_scalar(bound, bounds=(guess - 5.0, guess + 5.0), method="bounded", options={"xatol": 1e-9})
    return max(float(found.fun), 0.0)


def tight_epsilon(rho: float, delta: float) -> float:
    """The exact ε of Gaussian noise of the same rho (B. Balle and Y.-X. Wang, 2018): what the Rényi bound gives away, for comparison."""
    shift = math.sqrt(2 * rho)

    def excess(eps: float) -> float:
        above, below = log_ndtr(shift / 2 - eps / shift), eps + log_ndtr(-shift / 2 - eps / shift)
        return float(np.exp(above) - np.exp(below) - delta)

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, epsilon(rho, delta) + 1.0, xtol=1e-12))


def rho_for(eps: float, delta: float) -> float:
    """How much may be spent within (ε, δ). σ = Δ·√(releases/(2·rho)) spends it."""
    return math.exp(brentq(lambda log_rho: epsilon(math.exp(log_rho), delta) - eps, -60.0, 10.0, xtol=1e-12))


def discrete_gaussian(numerator: int, denominator: int, below: Below = secrets.randbelow) -> int:
    """One draw of N_ℤ(0, σ²), σ² = numerator/denominator: exact, by whole numbers alone."""
    t = math.isqrt(numerator // denominator) + 1
    while True:
        y = discrete_laplace(t, below)
        if bernoulli_exp((abs(y) * t * denominator - numerator) ** 2, 2 * numerator * denominator * t * t, below):
            return y


def discrete_laplace(t: int, below: Below = secrets.randbelow) -> int:
    """P(y) ∝ exp(−|y|/t)."""
    while True:
        u = below(t)
        if not bernoulli_exp(u, t, below):
            continue
        v = 0
        while bernoulli_exp(1, 1, below):
            v += 1
        y = u + t * v
        if below(2) == 0:
            return y
        if y > 0:
            return -y


def bernoulli_exp(numerator: int, denominator: int, below: Below = secrets.randbelow) -> bool:
    """True with probability exp(−numerator/denominator)."""
    while numerator > denominator:
        if not bernoulli_exp(1, 1, below):
            return False
        numerator -= denominator
    k = 1
    while below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
