"""Consensus ADMM: every client minimises its own augmented Lagrangian, and a multiplier holds it to the mean.

Client i, with the new x₀:
    λᵢ⁺ = λᵢ − ρ·(xᵢ − x₀)                                 the multiplier's step, left over from the last round
    xᵢ⁺ = argmin_x fᵢ(x) − λᵢ⁺ᵀ(x − x₀) + ½ρ‖x − x₀‖²
    zᵢ  = xᵢ⁺ − λᵢ⁺/ρ                                      the one vector it sends
Server:
    x₀⁺ = mean(z)

Cost of a step: 1 round; up d floats a client, down d. Converges to x* for convex fᵢ and every ρ > 0, linearly if they are smooth and
strongly convex. Fixed point: xᵢ = x₀ = x*, λᵢ = ∇fᵢ(x*). The xᵢ start at x₀, the λᵢ at zero. λᵢ is not scaled; the book's yᵢ is −λᵢ, and
its z is x₀. Σλᵢ = 0, so that mean(x) is mean(z); but for z the rounding errors of Σλᵢ do not add up. The residual is
‖Σ∇fᵢ(xᵢ⁺)‖ = n·ρ‖x₀ − x₀⁺‖.
S. Boyd et al., "Distributed Optimization and Statistical Learning via the Alternating Direction Method of Multipliers", 2011, section 7.1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .subproblem import minimise


class Local(NamedTuple):
    x: Vec
    lam: Vec
    rho: Array


def start(me: Client, x0: Vec, rho: Array) -> Local:
    return Local(x0, jnp.zeros_like(x0), rho)


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, Vec]:
    x, lam, rho = local
    lam_next = lam - rho * (x - x0)
    x_next = minimise(me.f, x, lam_next, rho, x0)
    return local._replace(x=x_next, lam=lam_next), x_next - lam_next / rho


class AdmmState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    rho: Array


def step(clients: Clients, state: AdmmState) -> AdmmState:
    local, x0 = clients.mean(update, state.local, state.x0, stale=True)
    residual = clients.n * state.rho * jnp.linalg.norm(state.x0 - x0)
    return AdmmState(x0, local, residual, state.rho)


@refuse_unknown_keywords
def admm(*, rho: Any) -> Algorithm:
    """Consensus ADMM with penalty rho on the distance from x₀."""
    rho = positive("admm: rho", rho)

    def init(clients: Clients, x0: Vec) -> AdmmState:
        return AdmmState(x0, clients.start(start, x0, number(rho), bridged=(update, x0)), number(jnp.inf), number(rho))

    return Algorithm(init, step, (start, update), Spec("admm", {"rho": rho}), bridges=True)
