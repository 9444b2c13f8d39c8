"""FedProx: every client minimises its own function near x₀, and the server averages.

Client i:
    xᵢ = argmin_x fᵢ(x) + ½ρ‖x − x₀‖²
Server:
    x₀⁺ = mean(x)

Cost of a step: 1 round; up d floats a client, down d. Converges for every ρ > 0, linearly if the fᵢ are strongly convex, but not to x*
where the clients' own minimisers differ: it minimises the sum of the Moreau envelopes min_u fᵢ(u) + ½ρ‖u − x‖², which nears F as ρ
grows and the steps shrink. The residual is ‖Σ∇fᵢ(xᵢ)‖ = n·ρ‖x₀ − x₀⁺‖, and vanishes there too. The paper's name of ρ is μ; it allows
inexact minimisers and samples of clients, and here they are exact and all take part.
T. Li et al., "Federated Optimization in Heterogeneous Networks", 2018, Algorithm 2.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .subproblem import minimise


def start(me: Client, rho: Array) -> Array:
    return rho


def proximal_point(me: Client, rho: Array, x0: Vec) -> tuple[Array, Vec]:
    return rho, minimise(me.f, x0, jnp.zeros_like(x0), rho, x0)


class FedProxState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    rho: Array


def step(clients: Clients, state: FedProxState) -> FedProxState:
    local, x0 = clients.mean(proximal_point, state.local, state.x0)
    residual = clients.n * state.rho * jnp.linalg.norm(state.x0 - x0)
    return FedProxState(x0, local, residual, state.rho)


@refuse_unknown_keywords
def fedprox(*, rho: Any) -> Algorithm:
    """FedProx with penalty rho on the distance from x₀."""
    rho = positive("fedprox: rho", rho)

    def init(clients: Clients, x0: Vec) -> FedProxState:
        return FedProxState(x0, clients.start(start, number(rho)), number(jnp.inf), number(rho))

    return Algorithm(init, step, (start, proximal_point), Spec("fedprox", {"rho": rho}))
