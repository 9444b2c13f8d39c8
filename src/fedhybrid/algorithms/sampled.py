"""FedHybrid on a few rows a step: every client samples `batch` of its rows, drawn by their weight, and works on those: f_B for fᵢ.

    g = ∇f_B(xᵢ)                             plain: unbiased, and x₀ ends in a ball around x* whose radius shrinks with larger batches
    g = ∇f_B(xᵢ) − ∇f_B(x̃ᵢ) + ∇fᵢ(x̃ᵢ)       reduced: x̃ᵢ is the xᵢ of at most REFRESH rounds ago; the noise vanishes with xᵢ − x̃ᵢ, so x₀ → x*
    D = I, or by ∇²f_B(xᵢ): newton           its noise is multiplied by what vanishes at x*: g − λᵢ + μ(xᵢ − x₀) if reduced, and x₀ − xᵢ

and then Algorithm 1 with g for ∇fᵢ(xᵢ). A Newton-type client forms its Hessian from `batch` rows, not all Nᵢ; where they are fewer than d
it knows nothing of the other directions, D is μ there, and a has to be small. The rows of round k at client i come from the key
(seed, i, k), k counting the rounds that it took part in. Cost of a step: as FedHybrid's. The residual is as noisy as the gradients.
Reduced is after R. Johnson and T. Zhang, "Accelerating Stochastic Gradient Descent using Predictive Variance Reduction", 2013.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..clients.base import Client, Clients
from ..curvature import Derived
from ..problem import GLM
from ..status import InvalidConfig
from . import automatic
from .base import Array, Vec, residual_of

REFRESH = 10


class Local(NamedTuple):
    x: Vec
    lam: Vec
    mu: Array
    a: Array
    b: Array
    ready: Derived
    key: Array  # (seed, how many rounds so far)
    anchor: Vec  # x̃
    full: Vec  # ∇f(x̃)


def start(me: Client, base: Vec, mu: Array, a: Any, b: Any, x: Array | None, lam: Array | None, seed: Array) -> Local:
    if not isinstance(me.f, GLM):
        raise InvalidConfig("fedhybrid: batch needs rows to sample from: for squared loss make the Fleet with keep_rows=True.")
    x_start = base if x is None else x[me.id]
    lam_start = jnp.zeros_like(base) if lam is None else lam[me.id]
    key = jnp.stack([seed, jnp.zeros_like(seed)])
    ready = me.curvature.prepare(me.f, mu)
    return Local(x_start, lam_start, mu, automatic.mine(me, a), automatic.mine(me, b), ready, key, x_start, jnp.zeros_like(base))


def sample_of(f: GLM, key: Array, batch: int) -> GLM:
    """f on `batch` rows, drawn with replacement by their weights: its gradient is f's in the mean."""
    upto = jnp.cumsum(f.w)
    # by the inverse of its distribution: rows that a client is padded with change nothing
    chosen = jnp.searchsorted(upto, upto[-1] * jax.random.uniform(key, (batch,), upto.dtype), side="right")
    chosen = jnp.minimum(chosen, f.w.shape[0] - 1)  # a client without rows
    w = jnp.full(batch, upto[-1] / batch)
    return replace(f, rows=jax.tree.map(lambda leaf: leaf[chosen], f.rows), y=f.y[chosen], w=w, offset=f.offset[chosen])


@dataclass(frozen=True)
class Update:
    """The client's round; the number of rows is a shape, and so part of the program."""

    batch: int
    reduced: bool

    def __call__(self, me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array, Array]]:
        x, lam, mu = local.x, local.lam, local.mu
        local, f, g = self._sampled(me, local)
        D = me.curvature(f, x, mu, local.ready)
        r = g - lam + mu * (x - x0)
        x_next = x - local.a * D.solve(r)
        lam_next = lam + local.b * D.mul(x0 - x)
        return local._replace(x=x_next, lam=lam_next), (x_next - lam_next / mu, jnp.sum((x - x0) ** 2), jnp.sum(r**2))

    def _sampled(self, me: Client, local: Local) -> tuple[Local, GLM, Vec]:
        """f_B, and g on it."""
        seed, count = local.key
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), me.id), count)
        f = sample_of(me.f, key, self.batch)
        local = local._replace(key=jnp.stack([seed, count + 1]))
        if not self.reduced:
            return local, f, f.grad(local.x)
        anchor, full = lax.cond(count % REFRESH == 0, lambda: (local.x, me.f.grad(local.x)), lambda: (local.anchor, local.full))
        return local._replace(anchor=anchor, full=full), f, f.grad(local.x) - f.grad(anchor) + full


@dataclass(frozen=True)
class Step:
    update: Update

    def __call__(self, clients: Clients, state: Any) -> Any:
        local, (x0, disagreement, stationarity) = clients.mean(self.update, state.local, state.x0, stale=True)
        residual = residual_of(clients.n, state.mu, disagreement, stationarity)
        return state._replace(x0=x0, local=local, residual=residual)
