"""Gradient descent on F = Σfᵢ, distributed.

    x₀⁺ = x₀ − s·Σ∇fᵢ(x₀)

Cost of a step: 1 round; up d floats a client, down d. Converges linearly to x* for s < 2/ℓ, ℓ the smoothness of F. Where the last known
gradients of missing clients stand in (the incremental aggregated gradient method) s must fall with the age of the oldest.
This is FedAvg with one full local gradient step: H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive
from ..clients.base import Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, nothing, number
from .oracle import gradient


class GdState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    s: Array


def step(clients: Clients, state: GdState) -> GdState:
    local, g = clients.mean(gradient, state.local, state.x0, stale=True, implied=lambda up: up)
    g = clients.n * g
    return GdState(state.x0 - state.s * g, local, jnp.linalg.norm(g), state.s)


@refuse_unknown_keywords
def gd(*, step_size: Any) -> Algorithm:
    """Gradient descent on Σfᵢ with a fixed step size."""
    s = positive("gd: step_size", step_size)

    def init(clients: Clients, x0: Vec) -> GdState:
        return GdState(x0, clients.start(nothing, bridged=(gradient, x0)), number(jnp.inf), number(s))

    return Algorithm(init, step, (nothing, gradient), Spec("gd", {"step_size": s}), residual_is_gradient=True, bridges=True)
