"""FedNew: Newton's direction by one ADMM step an iteration, so that neither gradients nor Hessians are sent.

Client i, at x₀ = x₀⁻ − y (it gets y, the last mean, and subtracts):

    λᵢ = λᵢ⁻ + ρ(yᵢ⁻ − y)
    yᵢ = (∇²fᵢ(x₀) + (α + ρ)I)⁻¹(∇fᵢ(x₀) − λᵢ + ρ·y)                the one vector it sends
Server:
    x₀⁺ = x₀ − mean(yᵢ)

from λᵢ = yᵢ = y = 0. The λᵢ sum to 0. Hessians are fresh in every iteration (the paper's r = 1).

Cost of a step: 1 round; up d + 1 floats a client (yᵢ, and ‖∇fᵢ(x₀) − λᵢ‖² for stopping), down d. Fixed point, on any data: yᵢ = 0,
λᵢ = ∇fᵢ(x*), x₀ = x*. Converges linearly to it if α or ρ is as large as the clients' largest curvature, slowly if ρ is far below it.
Where one client's curvature is far above the others' and above α and ρ, it may diverge, even on quadratics.
A. Elgabli et al., "FedNew: A Communication-Efficient and Privacy-Preserving Newton-Type Method for Federated Learning", 2022, algorithm 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import linalg
from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number


class Local(NamedTuple):
    x0: Vec
    y: Vec
    lam: Vec
    alpha: Array
    rho: Array


def start(me: Client, x0: Vec, alpha: Array, rho: Array) -> Local:
    return Local(x0, jnp.zeros_like(x0), jnp.zeros_like(x0), alpha, rho)


def update(me: Client, local: Local, y_mean: Vec) -> tuple[Local, tuple[Vec, Array]]:
    x0 = local.x0 - y_mean
    lam = local.lam + local.rho * (local.y - y_mean)
    D = me.f.hess(x0) + (local.alpha + local.rho) * jnp.eye(x0.shape[0])
    r = me.f.grad(x0) - lam
    y = linalg.solve(D, r + local.rho * y_mean)
    return local._replace(x0=x0, y=y, lam=lam), (y, jnp.sum(r**2))


class FedNewState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    y: Vec


def step(clients: Clients, state: FedNewState) -> FedNewState:
    local, (y, disagreement) = clients.mean(update, state.local, state.y)
    # Σλ = 0: what the gradients sum to is at most what they differ from λ by
    return FedNewState(state.x0 - y, local, clients.n * jnp.sqrt(disagreement), y)


@refuse_unknown_keywords
def fednew(*, alpha: Any, rho: Any) -> Algorithm:
    """FedNew with the damping alpha of the Hessian and the ADMM penalty rho, both on the scale of one client's function."""
    alpha, rho = positive("fednew: alpha", alpha), positive("fednew: rho", rho)

    def init(clients: Clients, x0: Vec) -> FedNewState:
        local = clients.start(start, x0, number(alpha), number(rho))
        return FedNewState(x0, local, number(jnp.inf), jnp.zeros_like(x0))

    return Algorithm(init, step, (start, update), Spec("fednew", {"alpha": alpha, "rho": rho}))
