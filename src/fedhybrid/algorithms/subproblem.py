"""A client's own subproblem, solved as exactly as floats allow: many methods ask for one in every round.

argmin_x  f(x) − qᵀx + ½ρ‖x − c‖²          by Newton's method, t halved until the value falls
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .. import linalg
from ..problem import Problem
from .base import Array, Vec

MOST_STEPS = 30
MOST_HALVINGS = 30


class Iterate(NamedTuple):
    x: Vec
    g: Vec
    steps: Array
    going: Array


def minimise(f: Problem, start: Vec, q: Vec, rho: Any, c: Vec) -> Vec:
    """The minimiser, from `start`. rho = 0 needs a strictly convex f."""
    eps = jnp.finfo(start.dtype).eps

    def value(x: Vec) -> Array:
        return f.value(x) - q @ x + 0.5 * rho * jnp.sum((x - c) ** 2)

    def grad(x: Vec) -> Vec:
        return f.grad(x) - q + rho * (x - c)

    def newton(at: Iterate) -> Iterate:
        H = f.hess(at.x) + rho * jnp.eye(at.x.shape[0])
        p = -linalg.solve(H, at.g)
        here, slope = value(at.x), at.g @ p
        noise = 10.0 * eps * jnp.abs(here)

        def too_long(trial: tuple) -> Array:
            t, halvings = trial
            return ~(value(at.x + t * p) <= here + 1e-4 * t * slope + noise) & (halvings < MOST_HALVINGS)

        t, _ = lax.while_loop(too_long, lambda trial: (0.5 * trial[0], trial[1] + 1), (jnp.ones_like(here), 0))
        x = at.x + t * p
        g = grad(x)
        # Newton's decrement: once a step is below the rounding of x, another changes nothing
        going = jnp.linalg.norm(t * p) > 4.0 * eps * jnp.linalg.norm(x)
        return Iterate(x, g, at.steps + 1, going)

    first = Iterate(start, grad(start), jnp.zeros((), jnp.int64), jnp.ones((), bool))
    return lax.while_loop(lambda at: at.going & (at.steps < MOST_STEPS), newton, first).x
