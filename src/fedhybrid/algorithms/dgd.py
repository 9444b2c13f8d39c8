"""Decentralised gradient descent (DGD) on the star graph: every node mixes with its neighbours and steps down its own gradient.

    x⁺ = Wx − s·∇f(x)                                     over all nodes; W of star.py, bond = 1/(n+1)
    leaf i:  xᵢ⁺ = xᵢ − bond·(xᵢ − x₀) − s·∇fᵢ(xᵢ)
    hub:     x₀⁺ = x₀ − n·bond·(x₀ − mean(x))             f₀ ≡ 0

Cost of a step: 1 round; up d + 1 floats a client (xᵢ, and one for stopping), down d. Every node starts at x₀.
Biased: for s < 1/max ℓᵢ it converges linearly, but to the minimiser of Σfᵢ(xᵢ) + 1/(2s)·xᵀ(I − W)x, where the nodes do not agree. There
x₀ = mean(x) and Σ∇fᵢ(xᵢ) = 0, and the error of x₀ is of the order of s.
The residual, (Σ‖xᵢ⁺ − xᵢ‖ + ‖x₀⁺ − x₀‖ + Σ‖xᵢ − x₀‖)/s, bounds ‖Σ∇fᵢ(x₀)‖ for such s, and does not go to zero.
A. Nedić and A. Ozdaglar, "Distributed Subgradient Methods for Multi-Agent Optimization", 2009, with a fixed step; the limit:
K. Yuan, Q. Ling and W. Yin, "On the Convergence of Decentralized Gradient Descent", 2016.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number


class Local(NamedTuple):
    x: Vec
    bond: Array
    s: Array


def start(me: Client, x0: Vec, bond: Array, s: Array) -> Local:
    return Local(x0, bond, s)


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array]]:
    x, bond, s = local
    x_next = x - bond * (x - x0) - s * me.f.grad(x)
    return local._replace(x=x_next), (x, jnp.linalg.norm(x_next - x) + jnp.linalg.norm(x - x0))


class DgdState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    bond: Array
    s: Array


def step(clients: Clients, state: DgdState) -> DgdState:
    x0, _, _, bond, s = state
    local, (x, unrest) = clients.mean(update, state.local, x0)
    x0_next = x0 - clients.n * bond * (x0 - x)
    residual = (clients.n * unrest + jnp.linalg.norm(x0_next - x0)) / s
    return DgdState(x0_next, local, residual, bond, s)


@refuse_unknown_keywords
def dgd(*, step_size: Any) -> Algorithm:
    """Decentralised gradient descent with a fixed step size; the smaller it is, the smaller the bias and the slower the run."""
    s = positive("dgd: step_size", step_size)

    def init(clients: Clients, x0: Vec) -> DgdState:
        bond = number(1.0 / (clients.n + 1))
        return DgdState(x0, clients.start(start, x0, bond, number(s)), number(jnp.inf), bond, number(s))

    return Algorithm(init, step, (start, update), Spec("dgd", {"step_size": s}))
