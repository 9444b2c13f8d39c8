"""CoCoA⁺: dual coordinate ascent over a client's own rows, and the clients' progress added up, not averaged.

    F(x) = Σᵢ Σⱼ wⱼ·loss(aⱼ·x + oⱼ) + ½xᵀRx,  R = diag(reg) > 0      a dual αⱼ for every row, kept by its client

Client i, with γ = 1 and σ′ = n, its share R/n of the penalty, and v = x₀ at first; `passes` times for each of its rows j, in their order:

    z = aⱼ·v + oⱼ,  q = wⱼ·aⱼᵀ(R/n)⁻¹aⱼ
    t: t + q·(loss′(t) + αⱼ) = z            the maximum over αⱼ of the local dual problem, where αⱼ⁺ = −loss′(t)
    v ← v + wⱼ(αⱼ⁺ − αⱼ)·(R/n)⁻¹aⱼ,  αⱼ ← αⱼ⁺
Server:
    x₀⁺ = mean((R/n)⁻¹ Σⱼ wⱼαⱼaⱼ)           = R⁻¹Σwαa over all rows of all clients

The equation for t is solved to rounding, by Newton's method between bounds: of the loss it needs two derivatives and no conjugate, and any
convex loss of one prediction will do. Squared loss needs a fleet with keep_rows=True. Softmax and fh.custom have no single
prediction a row and are refused; so is a coordinate without penalty, such as an intercept, for which there is no dual.

The paper draws rows at random. Here they are taken in turn, so that a run depends on nothing but the data. It starts at α = 0, to which
x₀ = 0 belongs; from another x₀ the first round departs, but no α stands for it; from then on x₀ is R⁻¹Σwαa.

Cost of a step: 1 round; up d + 1 floats a client (its part of x₀, and one for stopping), down d. A pass is O(d) a row.
Converges linearly to x*, whatever the data, for a loss with a Lipschitz derivative (Poisson's is not covered by the proof). σ′ = n is safe
and cautious: the more clients, the slower.
C. Ma, V. Smith, M. Jaggi, M. I. Jordan, P. Richtárik and M. Takáč, "Adding vs. Averaging in Distributed Primal-Dual Optimization", 2015,
Algorithm 1; the penalty a coordinate as in V. Smith et al., "CoCoA: A General Framework for Communication-Efficient Distributed
Optimization", 2018.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..arguments import whole
from ..clients.base import Client, Clients
from ..losses import Loss
from ..problem import GLM, Multinomial
from ..pytrees import pytree
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, State, Vec, number

MOST_STEPS = 200


@pytree(static=("count",))
@dataclass(frozen=True)
class Passes:
    """How often a client goes over its rows in a round: part of the program, not data."""

    count: int


class Local(NamedTuple):
    alpha: Array  # one a row
    passes: Passes


def start(me: Client, passes: Passes) -> Local:
    if not isinstance(me.f, GLM) or isinstance(me.f, Multinomial):
        raise InvalidConfig(
            "cocoa: it needs rows with one prediction each: squared loss with Fleet(..., keep_rows=True), logistic, poisson, huber, "
            "or a loss (z, y) of your own; not softmax and not fh.custom."
        )
    return Local(jnp.zeros_like(me.f.y), passes)


def penalty(me: Client, local: Local) -> Array:
    return jnp.min(me.f.reg)


def ascend(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array]]:
    f, alpha = me.f, local.alpha
    pull = f.rows.tdot(f.w * (f.loss.d1(f.predict(x0), f.y) + alpha))  # ∇fᵢ(x₀) as far as Σ∇fᵢ(x₀) knows it, since Rx₀ = Σwαa

    def one_row(v: Vec, row: tuple) -> tuple[Vec, Array]:
        rows, y, w, offset, alpha = row  # a table of one row, so that it may be dense or sparse
        a = rows.tdot(jnp.ones_like(y))
        q = w * (a @ (a / f.reg))
        alpha_next = -f.loss.d1(prox(f.loss, y, q, alpha, rows.dot(v) + offset), y)
        return v + rows.tdot(w * (alpha_next - alpha)) / f.reg, alpha_next

    def one_pass(_: Array, carry: tuple[Vec, Array]) -> tuple[Vec, Array]:
        v, alpha = carry
        table = jax.tree.map(lambda leaf: leaf[:, None], (f.rows, f.y, f.w, f.offset, alpha))
        v, alpha = lax.scan(one_row, v, table)
        return v, alpha[:, 0]

    _, alpha = lax.fori_loop(0, local.passes.count, one_pass, (x0, alpha))
    return local._replace(alpha=alpha), (f.rows.tdot(f.w * alpha) / f.reg, jnp.linalg.norm(pull))


class Root(NamedTuple):
    t: Array
    low: Array
    high: Array
    moved: Array
    steps: Array
    going: Array


def prox(loss: Loss, y: Array, q: Array, alpha: Array, z: Array) -> Array:
    """The t with h(t) = t − z + q·(loss′(t) + α) = 0. As h′ ≥ 1, it lies between z and z − h(z)."""
    eps = jnp.finfo(z.dtype).eps
    far = z - q * (loss.d1(z, y) + alpha)

    def nearer(at: Root) -> Root:
        h = at.t - z + q * (loss.d1(at.t, y) + alpha)
        low, high = jnp.where(h <= 0.0, at.t, at.low), jnp.where(h >= 0.0, at.t, at.high)
        t = at.t - h / (1.0 + q * loss.d2(at.t, y))
        rounding = 2.0 * eps * (jnp.abs(at.t) + jnp.abs(z))
        done = jnp.abs(t - at.t) <= rounding
        # steps that do not shrink creep down an exponential; where h overflowed there is none
        good = (t >= low) & (t <= high) & (jnp.abs(t - at.t) <= 0.5 * at.moved)
        t = jnp.where(done | good, t, 0.5 * (low + high))
        return Root(t, low, high, jnp.abs(t - at.t), at.steps + 1, ~done & (high - low > rounding))

    low, high = jnp.minimum(z, far), jnp.maximum(z, far)
    first = Root(z, low, high, jnp.full_like(z, jnp.inf), jnp.zeros((), jnp.int64), jnp.ones(z.shape, bool))
    return lax.while_loop(lambda at: jnp.any(at.going) & (at.steps < MOST_STEPS), nearer, first).t


def step(clients: Clients, state: State) -> State:
    local, (x0, pull) = clients.mean(ascend, state.local, state.x0)
    return State(x0, local, clients.n * pull)


@refuse_unknown_keywords
def cocoa(*, passes: int = 1) -> Algorithm:
    """CoCoA⁺ with the given number of passes over a client's rows in a round."""
    chosen = Passes(whole("cocoa: passes", passes))

    def init(clients: Clients, x0: Vec) -> State:
        local = clients.start(start, chosen)
        least = clients.observe(penalty, local)
        if not isinstance(least, jax.core.Tracer) and not bool(jnp.all(least > 0.0)):
            raise InvalidConfig("cocoa: every coordinate needs a penalty, for the dual to exist. Set reg > 0, and no intercept.")
        return State(x0, local, number(jnp.inf))

    return Algorithm(init, step, (start, ascend), Spec("cocoa", {"passes": passes}))
