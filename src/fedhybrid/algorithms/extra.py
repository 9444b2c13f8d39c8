"""EXTRA on the star graph: DGD with a memory of the disagreement, which takes its bias away.

    x⁺ = Wx − s·∇f(x) − p,   p⁺ = p + (W̃ − W)x            over all nodes; p⁰ = 0, W̃ = (I + W)/2, W of star.py, bond = 1/(n+1)
    leaf i:  xᵢ⁺ = xᵢ − bond·(xᵢ − x₀) − s·∇fᵢ(xᵢ) − pᵢ,  pᵢ⁺ = pᵢ + ½·bond·(xᵢ − x₀)
    hub:     x₀⁺ = x₀ − n·bond·(x₀ − mean(x)) − p₀,       p₀⁺ = p₀ + ½n·bond·(x₀ − mean(x))          f₀ ≡ 0

With the p written out this is the paper's x²⁺ = (I + W)x⁺ − W̃x − s·(∇f(x⁺) − ∇f(x)), first step x⁺ = Wx − s·∇f(x).

Cost of a step: 1 round; up d + 1 floats a client (xᵢ, and one for stopping), down d. Every node starts at x₀.
Converges linearly to x* for s < 1/max ℓᵢ if F is strongly convex. Fixed point: xᵢ = x₀ = x*, pᵢ = −s·∇fᵢ(x*), p₀ = 0.
The residual, (Σ‖xᵢ⁺ − xᵢ‖ + ‖x₀⁺ − x₀‖ + Σ‖xᵢ − x₀‖)/s, bounds ‖Σ∇fᵢ(x₀)‖ for such s.
W. Shi, Q. Ling, G. Wu and W. Yin, "EXTRA: An Exact First-Order Algorithm for Decentralized Consensus Optimization", 2015, Algorithm 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number


class Local(NamedTuple):
    x: Vec
    p: Vec
    bond: Array
    s: Array


def start(me: Client, x0: Vec, bond: Array, s: Array) -> Local:
    return Local(x0, jnp.zeros_like(x0), bond, s)


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array]]:
    x, p, bond, s = local
    apart = bond * (x - x0)
    x_next = x - apart - s * me.f.grad(x) - p
    unrest = jnp.linalg.norm(x_next - x) + jnp.linalg.norm(x - x0)
    return local._replace(x=x_next, p=p + 0.5 * apart), (x, unrest)


class ExtraState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    p0: Vec
    bond: Array
    s: Array


def step(clients: Clients, state: ExtraState) -> ExtraState:
    x0, _, _, p0, bond, s = state
    local, (x, unrest) = clients.mean(update, state.local, x0)
    apart = clients.n * bond * (x0 - x)
    x0_next = x0 - apart - p0
    residual = (clients.n * unrest + jnp.linalg.norm(x0_next - x0)) / s
    return ExtraState(x0_next, local, residual, p0 + 0.5 * apart, bond, s)


@refuse_unknown_keywords
def extra(*, step_size: Any) -> Algorithm:
    """EXTRA with a fixed step size, the same at every node."""
    s = positive("extra: step_size", step_size)

    def init(clients: Clients, x0: Vec) -> ExtraState:
        bond = number(1.0 / (clients.n + 1))
        local = clients.start(start, x0, bond, number(s))
        return ExtraState(x0, local, number(jnp.inf), jnp.zeros_like(x0), bond, number(s))

    return Algorithm(init, step, (start, update), Spec("extra", {"step_size": s}))
