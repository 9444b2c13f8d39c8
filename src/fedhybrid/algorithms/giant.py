"""GIANT: the mean of the clients' own Newton directions, with a line search.

With f = (1/n)Σfᵢ and g = ∇f(x₀), from one round:

    pᵢ  = −∇²fᵢ(x₀)⁻¹g,   p = mean(pᵢ)                                                        a second round
    x₀⁺ = x₀ + t·p,  t the largest of 1, ½, …, 2¹⁻ᴷ with f(x₀ + t·p) ≤ f(x₀) + 0.1·t·pᵀg      a third, for all of them at once

If no t passes, the least is taken. Where f changes by less than 10⁻⁸ of itself, rounding is in the way, and ½t(φ′(0) + φ′(t)) with
φ(t) = f(x₀ + t·p) stands in for φ(t) − φ(0): on quadratics it is the same. The paper finds pᵢ by conjugate gradients; here it is exact.

Cost of a step: 3 rounds; up d, d and 2K + 1 floats a client, down 3d. Fixed point: ∇f(x₀) = 0. As p always leads down, it converges
linearly to x* if K is large enough, and fast for alike clients. It may fail on data that are not IID: the mean of inverses is far above
the inverse of the mean, so that it diverges if even 2¹⁻ᴷ is too long a step; and a client whose Hessian is singular (fewer rows than
columns, no penalty) has no direction at all.
S. Wang, F. Roosta-Khorasani, P. Xu and M. W. Mahoney, "GIANT: Globally Improved Approximate Newton Method for Distributed
Optimization", 2018.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import linalg
from ..arguments import whole
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .oracle import Kept, gradient_kept, keep

ARMIJO = 0.1
TOO_SMALL = 1e-8


class GiantState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    t: Array  # the step sizes to choose from, (K,), largest first


def direction(me: Client, local: Kept, g: Vec) -> tuple[Kept, Vec]:
    return local, -linalg.solve(me.f.hess(local.x0), g)


def along(me: Client, local: Kept, p: Vec) -> tuple[Kept, tuple[Array, Array, Array]]:
    """f here; f and its slope at every step along p."""
    (t,) = local.parameters
    values, slopes = jax.vmap(lambda t: (me.f.value(local.x0 + t * p), me.f.grad(local.x0 + t * p) @ p))(t)
    return local, (me.f.value(local.x0), values, slopes)


def step(clients: Clients, state: GiantState) -> GiantState:
    local, g = clients.mean(gradient_kept, state.local, state.x0)
    local, p = clients.mean(direction, local, g)
    local, (f, values, slopes) = clients.mean(along, local, p)
    slope = p @ g
    rise = values - f
    rise = jnp.where(jnp.abs(rise) <= TOO_SMALL * jnp.abs(f), 0.5 * state.t * (slope + slopes), rise)
    passes = rise <= ARMIJO * state.t * slope
    t = jnp.where(jnp.any(passes), state.t[jnp.argmax(passes)], state.t[-1])
    return GiantState(state.x0 + t * p, local, clients.n * jnp.linalg.norm(g), state.t)


@refuse_unknown_keywords
def giant(*, candidates: int = 20) -> Algorithm:
    """GIANT with a line search over the given number of step sizes, 1, ½, ¼, …"""
    candidates = whole("giant: candidates", candidates)

    def init(clients: Clients, x0: Vec) -> GiantState:
        t = 0.5 ** jnp.arange(candidates, dtype=x0.dtype)
        return GiantState(x0, clients.start(keep, x0, t), number(jnp.inf), t)

    spec = Spec("giant", {"candidates": candidates})
    return Algorithm(init, step, (keep, gradient_kept, direction, along), spec, residual_is_gradient=True)
