"""FedAvg with full gradients: every client takes E gradient steps of its own, and the server averages.

Client i, from x₀:
    xᵢ ← xᵢ − s·∇fᵢ(xᵢ)          E times
Server:
    x₀⁺ = mean(x)

Cost of a step: 1 round; up d floats a client, down d. E = 1 is gradient descent on F = Σfᵢ with step s/n, and converges to x*.
E > 1 converges linearly for s < 2/ℓᵢ, every i, but not to x* where the clients' own minimisers differ: on quadratics with
Hessians Hᵢ and minimisers xᵢ*, to the solution of Σ(I − (I − s·Hᵢ)ᴱ)(x − xᵢ*) = 0. The residual, ‖Σ(mean of the E local gradients)‖,
vanishes there too. The mean has no weights: the fᵢ carry theirs.
H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017, Algorithm 1. The bias:
X. Li et al., "On the Convergence of FedAvg on Non-IID Data", 2019, Theorem 4.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from ..arguments import positive, whole
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number


def start(me: Client, s: Array) -> Array:
    return s


def descend(me: Client, s: Array, x0: Vec) -> tuple[Array, Vec]:
    x, _ = lax.scan(lambda x, s: (x - s * me.f.grad(x), None), x0, s)
    return s, x


class FedAvgState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    s: Array  # E times the same: a shape is known to the compiler, a number is not


def step(clients: Clients, state: FedAvgState) -> FedAvgState:
    local, x0 = clients.mean(descend, state.local, state.x0)
    residual = clients.n * jnp.linalg.norm(state.x0 - x0) / jnp.sum(state.s)
    return FedAvgState(x0, local, residual, state.s)


@refuse_unknown_keywords
def fedavg(*, step_size: Any, local_steps: int) -> Algorithm:
    """FedAvg with `local_steps` full gradient steps of `step_size` on each fᵢ between two averages."""
    s, E = positive("fedavg: step_size", step_size), whole("fedavg: local_steps", local_steps)

    def init(clients: Clients, x0: Vec) -> FedAvgState:
        each = jnp.full(E, number(s))
        return FedAvgState(x0, clients.start(start, each), number(jnp.inf), each)

    return Algorithm(init, step, (start, descend), Spec("fedavg", {"step_size": s, "local_steps": E}))
