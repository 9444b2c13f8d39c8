"""Exact federated Newton with a line search on F = Σfᵢ: what sending Hessians buys.

    p  = −(Σ∇²fᵢ(x₀))⁺ Σ∇fᵢ(x₀)
    x₀⁺ = x₀ + t·p,  t the first of 1, ½, ¼, … with F(x₀ + t·p) ≤ F(x₀) + 10⁻⁴·t·pᵀ∇F(x₀)

Cost of a step: 1 round with d(d+1)/2 + d + 1 floats up a client and d down, then one round a trial with 1 up, d down.
Converges to x* from anywhere, quadratically at the end. The pseudo-inverse gives the least step where the data leave x undetermined.
S. Boyd and L. Vandenberghe, "Convex Optimization", 2004, section 9.5.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import linalg
from ..clients.base import Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, State, Vec, nothing, number
from .oracle import expansion, unpack, value

ARMIJO = 1e-4
HALVINGS = 50


class Trial(NamedTuple):
    local: Any
    t: Array
    F: Array
    halvings: Array


def step(clients: Clients, state: State) -> State:
    local, (F, g, H) = clients.mean(expansion, state.local, state.x0)
    w, Q = linalg.eigh(unpack(H, clients.d))
    seen = w > clients.d * jnp.finfo(w.dtype).eps * w[-1]
    p = -Q @ (jnp.where(seen, 1.0 / jnp.where(seen, w, 1.0), 0.0) * (Q.T @ g))
    slope = g @ p
    noise = 10.0 * jnp.finfo(F.dtype).eps * jnp.abs(F)  # a fall smaller than F's own rounding cannot be told from a rise

    def too_long(trial: Trial) -> Array:
        return ~(F + ARMIJO * trial.t * slope + noise >= trial.F) & (trial.halvings < HALVINGS)

    def shorten(trial: Trial) -> Trial:
        t = 0.5 * trial.t
        local, F = clients.mean(value, trial.local, state.x0 + t * p)
        return Trial(local, t, F, trial.halvings + 1)

    local, F_full = clients.mean(value, local, state.x0 + p)
    trial = clients.while_loop(too_long, shorten, Trial(local, jnp.ones_like(F), F_full, jnp.zeros((), jnp.int64)))
    return State(state.x0 + trial.t * p, trial.local, clients.n * jnp.linalg.norm(g))


@refuse_unknown_keywords
def newton() -> Algorithm:
    """Exact Newton on Σfᵢ with a backtracking line search. No parameters."""

    def init(clients: Clients, x0: Vec) -> State:
        return State(x0, clients.start(nothing), number(jnp.inf))

    return Algorithm(init, step, (nothing, expansion, value), Spec("newton", {}), residual_is_gradient=True)
