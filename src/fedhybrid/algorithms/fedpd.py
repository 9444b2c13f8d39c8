"""FedPD: every client minimises its own augmented Lagrangian and moves its multiplier before anything is sent.

Client i:
    xᵢ⁺ = argmin_x fᵢ(x) − λᵢᵀ(x − x₀) + ‖x − x₀‖²/(2η)
    λᵢ⁺ = λᵢ − (xᵢ⁺ − x₀)/η                                = ∇fᵢ(xᵢ⁺)
    zᵢ  = xᵢ⁺ − η·λᵢ⁺                                      the one vector it sends
Server:
    x₀⁺ = mean(z)

Cost of a step: 1 round; up d floats a client, down d. Converges to x* for convex fᵢ and every η > 0: this is ADMM that updates x₀ first.
Fixed point: xᵢ = x₀ = x*, λᵢ = ∇fᵢ(x*). The λᵢ start at zero. The minimiser is exact (oracle I with no error), all communicate every
round (p = 0), and the paper's multiplier is −λᵢ.
The server follows mean(λ) without being sent it: mean(λ⁺) = ½·mean(λ) + (x₀ − x₀⁺)/(2η). The residual is ‖Σ∇fᵢ(xᵢ⁺)‖ = n·‖mean(λ⁺)‖.
X. Zhang et al., "FedPD: A Federated Learning Framework with Optimal Rates and Adaptivity to Non-IID Data", 2020, Algorithm 1.
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
    eta: Array


def start(me: Client, x0: Vec, eta: Array) -> Local:
    return Local(x0, jnp.zeros_like(x0), eta)


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, Vec]:
    x, lam, eta = local
    x_next = minimise(me.f, x, lam, 1 / eta, x0)
    lam_next = lam - (x_next - x0) / eta
    return local._replace(x=x_next, lam=lam_next), x_next - eta * lam_next


class FedPdState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    lam: Vec  # the mean of the clients'
    eta: Array


def step(clients: Clients, state: FedPdState) -> FedPdState:
    local, x0 = clients.mean(update, state.local, state.x0)
    lam = 0.5 * state.lam + (state.x0 - x0) / (2 * state.eta)
    return FedPdState(x0, local, clients.n * jnp.linalg.norm(lam), lam, state.eta)


@refuse_unknown_keywords
def fedpd(*, eta: Any) -> Algorithm:
    """FedPD with penalty 1/eta on the distance from x₀."""
    eta = positive("fedpd: eta", eta)

    def init(clients: Clients, x0: Vec) -> FedPdState:
        local = clients.start(start, x0, number(eta))
        return FedPdState(x0, local, number(jnp.inf), jnp.zeros_like(x0), number(eta))

    return Algorithm(init, step, (start, update), Spec("fedpd", {"eta": eta}))
