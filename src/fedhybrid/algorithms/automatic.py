"""How FedHybrid chooses μ, a and b for itself: from curvatures that every client measures alone, of which the server sees two means.

    client    mᵢ, ℓᵢ: extreme eigenvalues of ∇²fᵢ(xᵢ); without a Hessian, of its restriction to LANCZOS products with it
    server    μ = √(m̄·ℓ̄)                          m̄, ℓ̄ their means, m̄ at least ℓ̄/10⁴

and then each client, in every round, x₀ being new:

    λᵢ⁺ = λᵢ + μ(x₀ − xᵢ)                          b = μ, D = I for everyone, and before the primal step
    pᵢ ≈ (∇²fᵢ(xᵢ) + μI)⁻¹(∇fᵢ(xᵢ) − λᵢ⁺ + μ(xᵢ − x₀))
                                                  newton: exactly; gradient and diagonal: `local_steps` conjugate gradients,
                                                  products with ∇²fᵢ, with D⁻¹ as the preconditioner
    xᵢ⁺ = x₀ + α(xᵢ − pᵢ − x₀)                    α = RELAXATION for least squares, else 1

For equal quadratic clients of curvature q, solved well, disagreement falls by 1 − αμ/(q + μ) and the mean by 1 − αq/(q + μ): at their
worst, q = ℓ and m, they are equal for μ = √(mℓ). There is no third kind of mode, as Σλᵢ = 0 from the first round on; Newton's dual step
b·D(x₀ − xᵢ) would have one, of Σλᵢ, that needs b(ℓ + μ)/μ < 2, and took more rounds (docs/acceleration.md). A round is one of ADMM, with
the subproblem solved by one truncated step of Newton's method; over-relaxed ADMM converges for 0 < α < 2 and convex fᵢ.

α is 1 where one step of Newton's method is no minimiser: where fᵢ is no quadratic (on logistic data far from centred, clients that chose
for themselves between two α went astray), and where conjugate gradients left more than SOLVED of the residual.

With one local step, a given a, or a loss of the caller's own (where that bends down, the minimiser near x₀ may be a bad one) it is the
order of Algorithm 1, both steps from the old xᵢ:

    gradient  a = 1/(ℓᵢ + μ)      b = μ/2          ℓᵢ: raised to rᵀ∇²fᵢr/rᵀr whenever that is larger, r the step's direction
    diagonal  a = 1/γᵢ            b as for newton  γᵢ: the largest uᵀ(∇²fᵢ + μI)u/uᵀr so far, u = D⁻¹r
    newton    a = 1               b = min(1/4, μ/(ℓ̄ + μ))

There disagreement of gradient clients falls by s² − (2 − a(q + μ))s + 1 − a(q + μ) + ab = 0, which b = μ/2 brings to 1 − aμ/4 at q = 0 and
1 − aμ/2 at q = ℓ; critical damping at q = 0, b = aμ²/4, would leave 1 − (aμ)²/4 at q = ℓ.

Where fᵢ is no quadratic, a client halves its step until ‖∇fᵢ − λᵢ + μ(xᵢ − x₀)‖ does not grow: a safeguard of its own that costs no round.

Cost: 2 rounds at the start (2 floats up; 2 down and d up). After 4, 8, … steps curvatures are measured again, 1 round; if a mean has
changed by a fifth, another makes the new μ known and brings x₀ = mean(x) − mean(λ)/μ. If not, the next wait is four times as long.

`theorem`: instead the step sizes that Theorem 1 admits, from bounds that hold everywhere (theory/constants.py, theory/steps.py). It needs
ℓ = max ℓᵢ and m = min mᵢ; the server sees means, and takes ℓ̄·(Σ(ℓᵢ/ℓ̄)ᵖ)^(1/p) ≥ max ℓᵢ, at most n^(1/p) times it, and m likewise. μ is
the one for which the proved rate is largest. Cost: 3 rounds at the start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import linalg
from ..clients.base import Client, Clients
from ..curvature import Derived, Diagonal, Gradient, Newton, may_bend_down
from ..problem import GLM, Quadratic
from .base import Array, Vec, number, residual_of

LANCZOS = 24
FIRST_LOOK = 4  # steps after which curvatures are measured again
CHANGED = 1.2  # a mean that moved by this factor makes a new μ
LEAST_STEP = 1e-14
LOCAL_STEPS = 10  # conjugate gradients of a client in a round, at most
ENOUGH = 1e-2  # fewer, where its residual has fallen by this factor
RELAXATION = 1.8  # of a least-squares client
SOLVED = 0.1  # if its step left so little of the residual
POWER = 32  # p of the mean that stands for the largest


class Local(NamedTuple):
    x: Vec
    lam: Vec
    mu: Array
    ready: Derived
    ell: Array  # mine
    ell_mean: Array
    gamma: Array  # of D⁻¹(∇²f + μI), where D is a diagonal: the largest that was met
    a: Array | None  # what the caller chose, mine
    b: Array | None


class AutomaticState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    mu: Array
    mu_given: Array | None
    ell_mean: Array
    steps: Array
    look: Array  # when curvatures are measured again


def start(me: Client, base: Vec, a: Any, b: Any, x: Array | None, lam: Array | None, at_gradient: Array) -> Local:
    x_start = base if x is None else x[me.id]
    lam_start = jnp.where(at_gradient, me.f.grad(x_start), 0.0) if lam is None else lam[me.id]
    one = number(1.0)  # until the first round has told better
    return Local(x_start, lam_start, one, me.curvature.prepare(me.f, one), one, one, one, mine(me, a), mine(me, b))


def mine(me: Client, step_size: Any) -> Array | None:
    """This client's own entry of a number, a pair (gradient, newton), or an array with one per client."""
    if isinstance(step_size, tuple):
        return step_size[0] if isinstance(me.curvature, Gradient) else step_size[1]
    return step_size if step_size is None or step_size.ndim == 0 else step_size[me.id]


def measure(me: Client, local: Local) -> tuple[Local, tuple[Array, Array]]:
    w = linalg.eigvalsh(me.f.hess(local.x)) if isinstance(me.curvature, Newton) else _ritz_values(me.f, local.x)
    w = jnp.where(jnp.all(jnp.isfinite(w)), jnp.abs(w), 1.0)  # not finite: the next round will say so
    ell = jnp.max(w)
    return local._replace(ell=ell), (w[0], ell)  # where f bends down, μ is to exceed by how much


def _ritz_values(f: Any, x: Vec) -> Array:
    """Of ∇²f(x), by Lanczos' method with full orthogonalisation."""
    d = x.shape[0]
    k = min(d, LANCZOS)
    first = jax.random.normal(jax.random.key(0), (d,), x.dtype)

    def grow(V: Array, j: Array) -> tuple[Array, None]:
        u = f.hvp(x, V[j])
        size = jnp.linalg.norm(u)
        for _ in range(2):  # twice is enough
            u = u - V.T @ (V @ u)
        length = jnp.linalg.norm(u)
        new = length > 1e-10 * size
        return V.at[j + 1].set(jnp.where(new, u / jnp.where(new, length, 1.0), 0.0)), None

    V = lax.scan(grow, jnp.zeros((k, d), x.dtype).at[0].set(first / jnp.linalg.norm(first)), jnp.arange(k - 1))[0]
    T = f.form(x, V)
    missing = jnp.sum(V**2, axis=1) < 0.5  # the space was exhausted: such a row must not look like an eigenvalue 0
    return linalg.eigvalsh(T + jnp.diag(jnp.where(missing, T[0, 0], 0.0)))


def adopt(me: Client, local: Local, mu: Array, ell_mean: Array) -> tuple[Local, Vec]:
    ready = me.curvature.prepare(me.f, mu)
    return local._replace(mu=mu, ell_mean=ell_mean, ready=ready), local.x - local.lam / mu


Message = tuple[Vec, Array, Array]


@dataclass(frozen=True)
class Update:
    """The client's round; the number of local steps is part of the program."""

    local_steps: int

    def __call__(self, me: Client, local: Local, x0: Vec) -> tuple[Local, Message]:
        one = self.local_steps == 1 or may_bend_down(me.f)
        return one_step(me, local, x0) if one else self._several(me, local, x0)

    def _several(self, me: Client, local: Local, x0: Vec) -> tuple[Local, Message]:
        x, mu = local.x, local.mu
        D = me.curvature(me.f, x, mu, local.ready)
        lam = local.lam + (mu * (x0 - x) if local.b is None else local.b * D.mul(x0 - x))
        slope = _slope(me, lam, mu, x0)
        r = slope(x)
        if isinstance(me.curvature, Gradient | Diagonal):
            p = _divided(lambda v: me.f.hvp(x, v) + mu * v, r, D.solve, self.local_steps)
        else:
            p = D.solve(r)
        size = jnp.linalg.norm(r)
        if isinstance(me.f, Quadratic):
            solved = jnp.linalg.norm(slope(x - p)) <= SOLVED * size
            x_next = x0 + jnp.where(solved, RELAXATION, 1.0) * (x - p - x0)
        else:
            x_next = x - p * _damping(slope, x, -p, size)
        return local._replace(x=x_next, lam=lam), (x_next - lam / mu, jnp.sum((x - x0) ** 2), jnp.sum(r**2))


def one_step(me: Client, local: Local, x0: Vec) -> tuple[Local, Message]:
    x, lam, mu = local.x, local.lam, local.mu
    slope = _slope(me, lam, mu, x0)
    D, r = me.curvature(me.f, x, mu, local.ready), slope(x)
    size, ell, gamma = jnp.linalg.norm(r), local.ell, local.gamma
    if isinstance(me.curvature, Gradient):
        if not isinstance(me.f, Quadratic):
            along = (r @ me.f.hvp(x, r)) / jnp.where(size > 0, size**2, 1.0)
            ell = jnp.where(along > ell, along, ell)
        a, b = 1.0 / (ell + mu), 0.5 * mu
    else:
        a, b = number(1.0), jnp.minimum(0.25, mu / (local.ell_mean + mu))
    if isinstance(me.curvature, Diagonal):
        u = D.solve(r)
        along = (u @ me.f.hvp(x, u) + mu * (u @ u)) / jnp.where(size > 0, u @ r, 1.0)
        gamma = jnp.where(along > gamma, along, gamma)
        a = 1.0 / gamma
    p = -(a if local.a is None else local.a) * D.solve(r)
    if local.a is None and not isinstance(me.f, Quadratic):
        p = p * _damping(slope, x, p, size)
    x_next = x + p
    lam_next = lam + (b if local.b is None else local.b) * D.mul(x0 - x)
    sent = x_next - lam_next / mu, jnp.sum((x - x0) ** 2), jnp.sum(r**2)
    return local._replace(x=x_next, lam=lam_next, ell=ell, gamma=gamma), sent


def _slope(me: Client, lam: Vec, mu: Array, x0: Vec) -> Callable[[Vec], Vec]:
    return lambda x: me.f.grad(x) - lam + mu * (x - x0)


def _divided(A: Callable[[Vec], Vec], r: Vec, precondition: Callable[[Vec], Vec], most: int) -> Vec:
    """A⁻¹r, nearly, by at most so many steps of conjugate gradients."""

    def further(carry: tuple) -> Array:
        k, _, _, _, left = carry
        return (k < most) & (left > ENOUGH**2 * first)

    def once(carry: tuple) -> tuple:
        k, p, rest, v, left = carry
        u = A(v)
        t = left / (v @ u)
        rest = rest - t * u
        w = precondition(rest)
        left_next = rest @ w
        return k + 1, p + t * v, rest, w + (left_next / left) * v, left_next

    v = precondition(r)
    first = r @ v
    return lax.while_loop(further, once, (jnp.zeros((), jnp.int64), jnp.zeros_like(r), r, v, first))[1]


def _damping(slope: Any, x: Vec, p: Vec, size: Array) -> Array:
    def grows(t: Array) -> Array:
        return ~(jnp.linalg.norm(slope(x + t * p)) <= size) & (t > LEAST_STEP)

    return lax.while_loop(grows, lambda t: 0.5 * t, number(1.0))


def begin(clients: Clients, local: Any, mu_given: Array | None, base: Vec) -> tuple[Any, Vec, Array, Array]:
    """The two first rounds: local, the consistent x₀, μ and ℓ̄."""
    local, (m, ell) = clients.mean(measure, local)
    mu = _penalty(m, ell, mu_given)
    local, x0 = clients.mean(adopt, local, mu, ell, implied=lambda z: mu * (z - base))
    return local, x0, mu, ell


def _penalty(m: Array, ell: Array, mu_given: Array | None) -> Array:
    if mu_given is not None:
        return mu_given
    mu = jnp.sqrt(jnp.maximum(m, 1e-4 * ell)) * jnp.sqrt(ell)  # two roots: a product could overflow
    return jnp.where(jnp.isfinite(mu) & (mu > 0), mu, 1.0)


@dataclass(frozen=True)
class Step:
    update: Update

    def __call__(self, clients: Clients, state: AutomaticState) -> AutomaticState:
        local, (x0, disagreement, stationarity) = clients.mean(
            self.update, state.local, state.x0, stale=True, implied=lambda up: state.mu * (up[0] - state.x0)
        )
        residual = residual_of(clients.n, state.mu, disagreement, stationarity)
        after = state._replace(x0=x0, local=local, residual=residual, steps=state.steps + 1)
        return clients.cond(after.steps >= state.look, lambda state: _look(clients, state), lambda state: state, after)


def _look(clients: Clients, state: AutomaticState) -> AutomaticState:
    local, (m, ell) = clients.mean(measure, state.local)
    mu = _penalty(m, ell, state.mu_given)
    moved = _apart(mu, state.mu) | _apart(ell, state.ell_mean)

    def change(state: AutomaticState) -> AutomaticState:
        local, x0 = clients.mean(adopt, state.local, mu, ell, implied=lambda z: mu * (z - state.x0))
        return state._replace(x0=x0, local=clients.renew(local), mu=mu, ell_mean=ell, look=2 * state.look)

    def keep(state: AutomaticState) -> AutomaticState:
        return state._replace(look=4 * state.look)

    return clients.cond(moved, change, keep, state._replace(local=local))


def _apart(new: Array, old: Array) -> Array:
    return (new > CHANGED * old) | (old > CHANGED * new)


# ── Theorem 1 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Known(NamedTuple):
    """Bounds on the curvature of every client's f, everywhere: m at most the least, ell at least the largest."""

    m: Array
    ell: Array


def bounds_of(f: Any) -> Known:
    """mI ⪯ ∇²f(x) ⪯ ℓI for all x; m = 0 or ℓ = inf where there is no such bound."""
    if isinstance(f, Quadratic):
        w = linalg.eigvalsh(f.H)
        blur = len(w) * jnp.finfo(w.dtype).eps * w[-1]
        return Known(jnp.maximum(w[0] - blur, 0.0), w[-1] + blur)
    if not isinstance(f, GLM) or f.loss.ell is None:
        return Known(number(0.0), number(jnp.inf))
    gram = f.rows.gram(f.w)
    outwards = 2 * sum(gram.shape) * jnp.finfo(gram.dtype).eps * jnp.trace(gram)
    return Known(jnp.min(f.reg), f.loss.ell * (linalg.eigvalsh(gram)[-1] + outwards) + jnp.max(f.reg))


def send_bounds(me: Client, local: Any) -> tuple[Any, Known]:
    return local, bounds_of(me.f)


def send_powers(me: Client, local: Any, mean: Known) -> tuple[Any, Known]:
    m, ell = bounds_of(me.f)
    return local, Known((mean.m / m) ** POWER, (ell / mean.ell) ** POWER)


def admit(me: Client, local: Any, mu: Array, ell: Array, common: Array) -> tuple[Any, Vec]:
    """The largest a that the theorem admits, and b; local is fedhybrid.Local."""
    own, most = bounds_of(me.f), 1.0 / (22 * mu / 9 + 2 * ell)
    newton = not isinstance(me.curvature, Gradient)
    a, b = ((own.m + mu) * most, common / (own.ell + mu)) if newton else (most, common)
    return local._replace(mu=mu, a=a, b=b, ready=me.curvature.prepare(me.f, mu)), local.x - local.lam / mu


def theorem(clients: Clients, local: Any, mu_given: Array | None) -> tuple[Any, Vec, Array, Array]:
    """local, x₀, μ and the rate ρ that is proved; ρ is not positive where some client has no bounds."""
    local, mean = clients.mean(send_bounds, local)
    local, powers = clients.mean(send_powers, local, mean)
    outwards = 1.0 + 1e-12  # the rounding of two means and a power
    m = mean.m / (outwards * (clients.n * powers.m) ** (1 / POWER))
    ell = mean.ell * outwards * (clients.n * powers.ell) ** (1 / POWER)
    candidates = m * (ell / m) ** jnp.linspace(0.0, 1.0, 65)
    mu = candidates[jnp.nanargmax(_proved(candidates, m, ell)[1])] if mu_given is None else mu_given
    common, rate = _proved(mu, m, ell)
    local, x0 = clients.mean(admit, local, mu, ell, common)
    return local, x0, mu, rate


def _proved(mu: Array, m: Array, ell: Array) -> tuple[Array, Array]:
    """min{μ/9, α̲m²/21} and ρ, for the least α̲ and β̲ that clients between m and ℓ can have, of either kind."""
    ratio = (m + mu) / (ell + mu)
    alpha = ratio / (22 * mu / 9 + 2 * ell)
    common = jnp.minimum(mu / 9, alpha * m**2 / 21)
    return common, jnp.minimum(3 * common * ratio / (13 * (mu + ell)), m * alpha / 2)
