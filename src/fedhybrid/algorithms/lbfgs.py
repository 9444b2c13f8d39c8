"""Distributed L-BFGS on F = Σfᵢ: the server builds curvature from the gradients that it sees.

    each round   F(u), ∇F(u) at the trial point u = x₀ + t·p
    if F(u) ≤ F(x₀) + 10⁻⁴·t·pᵀ∇F(x₀):  remember (u − x₀, ∇F(u) − ∇F(x₀)),  x₀ ← u,  p ← −H·∇F(u) by the two-loop recursion,  t ← 1
    else:                               t ← t/2
    while nothing is remembered:        p = −∇F(u)/n,  t = 1/max(1, ‖p‖)

Cost of a step: 1 round; up d + 1 floats a client (gradient and value), down d. Converges linearly to x*.
D. C. Liu and J. Nocedal, "On the limited memory BFGS method for large scale optimization", 1989.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import whole
from ..clients.base import Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, nothing, number
from .oracle import value_and_gradient

ARMIJO = 1e-4


class LbfgsState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    F: Array
    g: Vec
    p: Vec
    t: Array
    s: Array  # (memory, d), newest last; pairs not yet filled have 1/yᵀs = 0
    y: Array
    inverse_ys: Array


def direction(g: Vec, s: Array, y: Array, inverse_ys: Array) -> Vec:
    """−H·g by the two-loop recursion."""
    memory = s.shape[0]
    q, alpha = g, [jnp.zeros((), g.dtype)] * memory
    for k in reversed(range(memory)):
        alpha[k] = inverse_ys[k] * (s[k] @ q)
        q = q - alpha[k] * y[k]
    newest = inverse_ys[-1]
    scale = jnp.where(newest > 0, 1.0 / jnp.where(newest > 0, newest * (y[-1] @ y[-1]), 1.0), 1.0)
    q = scale * q
    for k in range(memory):
        q = q + s[k] * (alpha[k] - inverse_ys[k] * (y[k] @ q))
    return -q


def step(clients: Clients, state: LbfgsState) -> LbfgsState:
    u = state.x0 + state.t * state.p
    local, (F, g) = clients.mean(value_and_gradient, state.local, u, implied=lambda up: up[1])
    noise = 10.0 * jnp.finfo(F.dtype).eps * jnp.abs(F)
    accept = ~jnp.isfinite(state.F) | (state.F + ARMIJO * state.t * (state.p @ state.g) + noise >= F)

    s_new, y_new = u - state.x0, g - state.g
    ys = y_new @ s_new
    keep = accept & jnp.isfinite(state.F) & (ys > jnp.finfo(F.dtype).eps * (y_new @ y_new))
    s, y, inverse_ys = (
        jnp.where(keep, jnp.concatenate([old[1:], new[None]]), old)
        for old, new in (
            (state.s, s_new),
            (state.y, y_new),
            (state.inverse_ys, 1.0 / jnp.where(keep, ys, 1.0)),
        )
    )
    p = direction(g, s, y, inverse_ys)
    t = jnp.where(jnp.any(inverse_ys > 0), 1.0, 1.0 / jnp.maximum(1.0, jnp.linalg.norm(g)))  # no scale is known at first
    return LbfgsState(
        x0=jnp.where(accept, u, state.x0),
        local=local,
        residual=clients.n * jnp.linalg.norm(jnp.where(accept, g, state.g)),
        F=jnp.where(accept, F, state.F),
        g=jnp.where(accept, g, state.g),
        p=jnp.where(accept, p, state.p),
        t=jnp.where(accept, t, 0.5 * state.t),
        s=s,
        y=y,
        inverse_ys=inverse_ys,
    )


@refuse_unknown_keywords
def lbfgs(*, memory: int = 10) -> Algorithm:
    """L-BFGS with the given number of remembered pairs."""
    memory = whole("lbfgs: memory", memory)

    def init(clients: Clients, x0: Vec) -> LbfgsState:
        zero, inf, pairs = jnp.zeros_like(x0), number(jnp.inf), jnp.zeros((memory, *x0.shape))
        local = clients.start(nothing)
        return LbfgsState(x0, local, inf, inf, zero, zero, number(1.0), pairs, pairs, jnp.zeros(memory))

    return Algorithm(init, step, (nothing, value_and_gradient), Spec("lbfgs", {"memory": memory}), residual_is_gradient=True)
