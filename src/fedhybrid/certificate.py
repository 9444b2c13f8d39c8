"""What is proved about a point x, recomputed outside the loop that found it.

With g = Σ∇fᵢ(x) and m̂ a lower bound on the curvature of F = Σfᵢ:

    every coordinate penalised   m̂ = the least penalty, everywhere                       ‖x − x*‖ ≤ ‖g‖/m̂
    otherwise                    m̂ = the least eigenvalue of Σ∇²fᵢ(x), one counted sum
        squared loss             the Hessian is the same everywhere                      ‖x − x*‖ ≤ ‖g‖/m̂
        logistic, Poisson, …     |φ‴| ≤ c·φ″, rows of norm ≤ R                           ‖x − x*‖ ≤ −log(1 − cR‖g‖/m̂)/(cR) while cR‖g‖ < m̂
        Huber, custom            curvature at x says nothing about curvature elsewhere   no bound

What rounding may have hidden of g is added to ‖g‖ first: ROUNDING·eps times the size of the terms that add up to it. Without that
a sum of huge terms that cancel would prove an error far below what its own last digits allow.

F has no minimiser if some direction v, without penalty, lets no row's loss rise and some row's fall for ever: checked exactly.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .algorithms.oracle import pack, unpack
from .clients.base import Client, Clients, Local
from .fleet import Objective
from .linalg import eigvalsh
from .watch import norm

Array = Any
ROUNDING = 8.0  # units of eps per term: long sums run in blocks, whose errors have both signs
LARGEST_HESSIAN = 4096  # d beyond which no sum of Hessians is asked for


class Gradient(NamedTuple):
    """‖Σ∇fᵢ(x)‖, and how far off it may be by rounding."""

    norm: float
    rounding: float


class Certificate(NamedTuple):
    gradient: Gradient
    m_hat: float
    kappa_hat: float | None
    error_bound: float
    estimate: float  # ‖g‖ over the least curvature that is not rounding: what the error looks like, proved or not
    singular: bool  # Σ∇²fᵢ(x) does not determine x


NOTHING_PROVED = Certificate(Gradient(math.inf, 0.0), 0.0, None, math.inf, math.inf, False)


class Curvatures(NamedTuple):
    """Of Σ∇²fᵢ at some x: least, least that is not rounding, largest."""

    least: float
    visible: float
    largest: float

    @property
    def singular(self) -> bool:
        return self.least < self.visible


def gradient_at(me: Client, local: Any, x: Array) -> tuple[Any, tuple[Array, Array]]:
    return local, (me.f.grad(x), me.f.terms(x))


def hessian_at(me: Client, local: Any, x: Array) -> tuple[Any, Array]:
    return local, pack(me.f.hess(x))


def convexity_at(me: Client, local: Any, x: Array) -> tuple[Any, Array]:
    return local, jnp.where(me.f.bends_down(x), 1.0, 0.0)


def recession_of(me: Client, local: Any, v: Array) -> tuple[Any, tuple[Array, Array]]:
    never_rises, falls = me.f.recedes(v)
    return local, (jnp.where(never_rises, 0.0, 1.0), jnp.where(falls, 1.0, 0.0))


def _gradient(clients: Clients, local: Local, x: Array) -> tuple[Local, Array, Array]:
    local, (g, terms) = clients.mean(gradient_at, local, x, implied=lambda up: up[0])
    return local, clients.n * norm(g), clients.n * terms


def _eigenvalues(clients: Clients, local: Local, x: Array) -> tuple[Local, Array]:
    local, H = clients.mean(hessian_at, local, x)
    return local, clients.n * eigvalsh(unpack(H, clients.d))


def gradient(clients: Clients, local: Local, x: Array) -> tuple[Local, Gradient]:
    """‖Σ∇fᵢ(x)‖, by one round with d + 1 floats up."""
    local, size, terms = clients.call(_gradient, (), local, x)
    return local, Gradient(_or_inf(size), ROUNDING * float(np.finfo(float).eps) * _or_inf(terms))


def _or_inf(value: Array) -> float:
    return float(value) if math.isfinite(float(value)) else math.inf


def curvatures(clients: Clients, local: Local, x: Array) -> tuple[Local, Curvatures]:
    """Extreme eigenvalues of Σ∇²fᵢ(x), by one round with d(d+1)/2 floats up."""
    local, eigenvalues = clients.call(_eigenvalues, (), local, x)
    return local, extremes(np.asarray(eigenvalues))


def extremes(eigenvalues: np.ndarray) -> Curvatures:
    """Of eigenvalues in ascending order."""
    if not np.all(np.isfinite(eigenvalues)):
        return Curvatures(0.0, math.inf, math.inf)
    visible = eigenvalues[eigenvalues > len(eigenvalues) * np.finfo(float).eps * eigenvalues[-1]]
    least_visible = float(visible[0]) if len(visible) else math.inf
    return Curvatures(float(eigenvalues[0]), least_visible, float(eigenvalues[-1]))


def penalty_floor(fleet: Objective) -> float:
    """The least penalty: positive where every coordinate has one."""
    return float(fleet.reg.min())


def certify_point(fleet: Objective, g: Gradient, curvature: Curvatures | None) -> Certificate:
    """The certificate for a gradient, from the penalty and (where given) the curvature at the same x."""
    floor, size = penalty_floor(fleet), g.norm + g.rounding
    by_penalty = size / floor if floor > 0 else math.inf
    if curvature is None:
        return Certificate(g, floor, None, by_penalty, by_penalty, False)
    by_curvature = math.inf if curvature.singular else _bound(fleet, size, curvature.least)
    kappa = curvature.largest / curvature.least if curvature.least > 0 else math.inf
    m_hat = floor if by_penalty <= by_curvature and floor > 0 else max(0.0, curvature.least)
    singular = curvature.singular and floor == 0
    return Certificate(g, m_hat, kappa, min(by_penalty, by_curvature), size / curvature.visible, singular)


def _bound(fleet: Objective, size: float, m_hat: float) -> float:
    if fleet.loss.bend is None or m_hat <= 0:
        return math.inf
    c = fleet.loss.bend * fleet.row_norm
    if c == 0.0:
        return size / m_hat
    reach = c * size / m_hat
    return -math.log1p(-reach) / c if reach < 1.0 else math.inf


class Certifier:
    """Certificates of one fleet. It remembers the last sum of Hessians: for squared loss that is the sum everywhere."""

    def __init__(self, fleet: Objective, clients: Clients) -> None:
        self.fleet, self.clients = fleet, clients
        self.curvature: Curvatures | None = None

    def known_curvature(self) -> float:
        """What the next bound will about be divided by; 0 while nothing is known."""
        return penalty_floor(self.fleet) or (self.curvature.visible if self.curvature else 0.0)

    def measure(self, local: Local, x: Array, target: float, closing: bool) -> tuple[Local, Certificate]:
        """The certificate at x: a round for the gradient, and one for the sum of Hessians where the bound needs it.

        `closing`: this is the last word on x, so that a Hessian is worth its floats even if the bound may fail.
        """
        same_everywhere = self.fleet.loss.bend == 0.0
        local, g = gradient(self.clients, local, x)
        found = certify_point(self.fleet, g, self.curvature if same_everywhere else None)
        if found.error_bound <= target or not self._hessian_helps(g.norm, target, closing, same_everywhere):
            if self.curvature is None or same_everywhere:
                return local, found
            return local, found._replace(estimate=min(found.estimate, (g.norm + g.rounding) / self.curvature.visible))
        local, self.curvature = curvatures(self.clients, local, x)
        return local, certify_point(self.fleet, g, self.curvature)

    def not_convex(self, local: Local, x: Array) -> tuple[Local, int]:
        """How many sites see a caller's own loss bend down at x, by one round of one float. Where one does, no bound holds."""
        local, part = self.clients.call(_convexity, (), local, x)
        return local, round(self.fleet.n * float(part))

    def _hessian_helps(self, size: float, target: float, closing: bool, same_everywhere: bool) -> bool:
        if self.fleet.d > LARGEST_HESSIAN or not math.isfinite(size):
            return False
        if same_everywhere and self.curvature is not None:
            return False
        if penalty_floor(self.fleet) > 0:
            return closing and self.fleet.loss.bend is not None
        return closing or self.curvature is None or size <= 2.0 * self.curvature.visible * target


def falling_direction(clients: Clients, local: Local, fleet: Objective, x: Array, x_before: Array) -> tuple[Local, np.ndarray | None]:
    """A direction that proves that F has no minimiser, looked for where x is going; None if neither candidate is one.

    The candidates: x itself (data that are separable), and where x moved since x_before, with small entries set to zero (data that
    are separable in some coordinates only). Each costs a round.
    """
    free = fleet.reg == 0.0
    drift = np.where(free, np.asarray(x) - np.asarray(x_before), 0.0)
    drift = np.where(np.abs(drift) >= 1e-2 * np.max(np.abs(drift), initial=0.0), drift, 0.0)
    for candidate in (np.where(free, np.asarray(x), 0.0), drift):
        size = float(norm(jnp.asarray(candidate)))
        if not (math.isfinite(size) and size > 0):
            continue
        v = candidate / size
        local, (rises, falls) = clients.call(_recession, (), local, jnp.asarray(v))
        if float(rises) == 0.0 and float(falls) > 0.0:
            return local, v
    return local, None


def _convexity(clients: Clients, local: Local, x: Array) -> tuple[Local, Array]:
    return clients.mean(convexity_at, local, x)


def _recession(clients: Clients, local: Local, v: Array) -> tuple[Local, tuple[Array, Array]]:
    return clients.mean(recession_of, local, v)
