"""Δ = 13Δλ + Δx without cancellation, and Theorem 1, Δᵏ⁺¹ ≤ (1 − ρ)Δᵏ, checked round by round.

Δλ = g(λ*) − g(λ) and Δx = L(x, λ) − L(x*(λ), λ) are differences of nearly equal numbers near the optimum. With the Bregman distances
Bᵢ(u, v) = fᵢ(u) − fᵢ(v) − ∇fᵢ(v)·(u − v), x̂ = x*(λ), M = I − Z and Z the projection on equal rows,

    Δx = Σ Bᵢ(xᵢ, x̂ᵢ) + ½μ‖M(x − x̂)‖²                     since ∇ₓL(x̂, λ) = ∇f(x̂) − Mλ + μMx̂ = 0
    Δλ = Σ Bᵢ(x*, x̂ᵢ) + ½μ‖M(x̂ − 1⊗x*)‖² + ‖Zλ‖²/(2μ)      since g(λ*) = Σfᵢ(x*), and M(1⊗x*) = 0

which are sums of squares of differences: their relative error is of the order eps·‖x‖/‖x − x̂‖, where the definitions would give
eps·|L|/Δ, its square. (Δλ's last two terms together are ½μ‖∇g(λ)‖².) For quadratics Bᵢ(u, v) = ½(u − v)ᵀHᵢ(u − v) and both are
½(x − x̂)ᵀ∇²L(x − x̂) and ½(λ − λ*)ᵀ(−∇²g)(λ − λ*). Otherwise Bᵢ(u, v) = ∫₀¹ (1 − t) eᵀ∇²fᵢ(v + te)e dt with e = u − v, positive
throughout, by Gauss–Legendre panels of 24 nodes. Logistic and softmax losses are analytic for predictions within π/c of the real
axis (c the loss's `bend`); a panel over which c·‖Δz‖ ≤ 4 has its poles outside the Bernstein ellipse of parameter 3.4, so that the
error is below 3.4⁻⁴⁸ < 1e-25 of the integral: nothing beside rounding.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..algorithms.fedhybrid import fedhybrid
from ..arguments import positive
from ..clients.base import Client, Clients
from ..clients.stacked import Stacked
from ..fleet import Fleet
from ..numerics import scope
from ..problem import Quadratic
from ..status import InvalidConfig, refuse_unknown_keywords
from .constants import bounds
from .duality import Problems, bending, inner_gradient, inner_minimum, optimum, points, stacked
from .rounding import Magnitudes, Measured, slack_of
from .steps import Steps, rate, theorem_steps

Array = Any
NODES, WEIGHTS = (0.5 * part for part in np.polynomial.legendre.leggauss(24))  # on [−½, ½]
PANEL = 4.0  # the largest c·‖Δz‖ over a panel
MOST_PANELS = 1000
SMALLEST_RHO = 1e-4


class Gaps(NamedTuple):
    """Dual optimality gap Δλ, primal tracking error Δx, and Δ = 13Δλ + Δx."""

    delta_lam: float
    delta_x: float
    delta: float


def gaps(problems: Problems, x: Any, lam: Any, mu: float) -> Gaps:
    """Δλ, Δx and Δ at (x, λ), both (n, d), with x₀ = mean(x) − mean(λ)/μ."""
    f = stacked(problems)
    x, lam, mu = points(f, x), points(f, lam), positive("theory: mu", mu)
    found = _measure(f, x[None], lam[None], mu)
    if not found.settled.all():
        raise InvalidConfig("the inner problem has no minimiser that Newton's method finds: Σfᵢ must be strongly convex; set reg > 0.")
    if not np.isfinite(found.delta[0]):
        raise InvalidConfig("x and lam are too far from the optimum: predictions differ by thousands, or the gaps overflow.")
    return Gaps(float(found.delta_lam[0]), float(found.delta_x[0]), float(found.delta[0]))


class Contraction(NamedTuple):
    """Theorem 1 on one run: whether Δᵏ⁺¹ ≤ (1 − ρ)Δᵏ + slackᵏ in every round that was checked."""

    rho: float
    delta: np.ndarray  # Δ⁰ … Δᴷ
    ratio: np.ndarray  # Δᵏ⁺¹/Δᵏ
    slack: np.ndarray  # what rounding may have added, per round
    checked: int  # rounds before slack reaches ρΔᵏ, where rounding would hide a violation; the rest are not judged
    holds: bool
    worst: int  # the round that came nearest to a violation, relative to its Δᵏ


@refuse_unknown_keywords
def certify(fleet: Fleet, mu: float, *, steps: Any = None, rounds: int = 50, x: Any = None, lam: Any = None, seed: int = 0) -> Contraction:
    """Run FedHybrid and check Theorem 1 round by round.

    steps   (a, b); default: the largest that the theorem admits. Others are measured all the same, against the ρ they would have
    x, lam  the clients' start values, (n, d); default: standard normal, from `seed`

    A round is judged with a slack derived from rounding (theory/rounding.py says how), and only while the slack is below ρΔᵏ. A
    problem with ρ < 1e-4 is refused: ρΔ must stand well above rounding.
    """
    mu = positive("certify: mu", mu)
    m, ell = bounds(fleet)
    f = stacked(fleet)
    a, b = theorem_steps(mu, m, ell, fleet.updates) if steps is None else Steps(*steps)
    rho = rate(mu, a, b, m, ell, fleet.updates)
    if rho < SMALLEST_RHO:
        raise InvalidConfig(
            f"certify: ρ = {rho:.1e} is below {SMALLEST_RHO:.0e}, too near rounding to be checked round by round: take clients with ℓ/m "
            "nearer to 1 (a larger penalty), and mu of the size of m."
        )
    rng = np.random.default_rng(seed)
    x = points(f, rng.normal(size=(fleet.n, fleet.d)) if x is None else x)
    lam = points(f, rng.normal(size=(fleet.n, fleet.d)) if lam is None else lam)
    xs, lams = _trajectory(fleet, fedhybrid(mu=mu, a=a, b=b, x=x, lam=lam), rounds)
    with np.errstate(all="ignore"):  # step sizes from outside the theorem may diverge
        found = _measure(f, xs, lams, mu)
        slack = slack_of(Magnitudes.of(fleet, mu, a, b, m, ell), found)
        ratio = found.delta[1:] / found.delta[:-1]
        holds, checked, worst = contracts(found.delta, rho, slack)
    if checked == 0:
        raise InvalidConfig(
            "certify: the start is the optimum to rounding, so that there is nothing to check; give another x, lam or seed."
        )
    return Contraction(rho, found.delta, ratio, slack, checked, holds, worst)


def contracts(delta: np.ndarray, rho: float, slack: np.ndarray) -> tuple[bool, int, int]:
    """Whether Δᵏ⁺¹ ≤ (1 − ρ)Δᵏ + slackᵏ while slackᵏ < ρΔᵏ; how many rounds that was; and the round with the least to spare."""
    before, after = delta[:-1], delta[1:]
    visible = slack < rho * before
    checked = len(before) if visible.all() else int(np.argmin(visible))
    if checked == 0:
        return True, 0, 0
    spare = (((1 - rho) * before + slack - after) / before)[:checked]
    return bool(np.all(spare >= 0)), checked, int(np.argmin(spare))


# ── the run, and what is measured on it ───────────────────────────────────────────────────────────────────────────────────────────


def _trajectory(fleet: Fleet, algorithm: Any, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """x and λ of every client, in site order, at the start and after every round: (rounds + 1, n, d) each."""
    with scope():
        clients = Stacked(fleet)
        state = algorithm.init(clients, jnp.zeros(fleet.d))
        first = clients.observe(_held, state.local)
        rest = clients.call(_rounds, (algorithm.step, rounds), state)
        x, lam = (np.concatenate([np.asarray(start)[None], np.asarray(later)]) for start, later in zip(first, rest, strict=True))
        return x, lam


def _held(me: Client, local: Any) -> tuple[Array, Array]:
    return local.x, local.lam


def _rounds(clients: Clients, step: Any, length: int, state: Any) -> Any:
    def once(state: Any) -> tuple[Any, Any]:
        state = step(clients, state)
        return state, clients.observe(_held, state.local)

    return clients.scan(once, state, length)[1]


def _measure(f: Any, x: np.ndarray, lam: np.ndarray, mu: float) -> Measured:
    """Everything about the points (x, λ), (K, n, d) each."""
    with scope():
        x_star, settled = optimum(f, jnp.zeros(x.shape[-1]))
        if not bool(settled):
            raise InvalidConfig("Σfᵢ has no minimiser that Newton's method finds: it must be strongly convex; set reg > 0.")
        at_optimum = np.linalg.norm(np.asarray(jnp.sum(jax.vmap(lambda f: f.grad(x_star))(f), axis=0)))
        parts = _gaps(f, jnp.asarray(x), jnp.asarray(lam), jnp.asarray(mu), x_star)
        return Measured(x, lam, np.asarray(x_star), float(at_optimum), *(np.asarray(part) for part in parts))


@jax.jit
def _gaps(f: Any, x: Array, lam: Array, mu: Array, x_star: Array) -> tuple[Array, ...]:
    def one(x: Array, lam: Array) -> tuple[Array, ...]:
        x_hat, settled = inner_minimum(f, lam, mu)
        e, s = x - x_hat, x_hat - x_star[None, :]
        distance = jax.vmap(jax.vmap(_bregman), in_axes=(None, None, 0))
        of_x, of_lam = jnp.sum(distance(f, x_hat, jnp.stack([e, -s])), axis=1)
        delta_x = of_x + 0.5 * mu * _spread(e)
        delta_lam = of_lam + 0.5 * mu * _spread(s) + 0.5 * lam.shape[0] / mu * jnp.sum(jnp.mean(lam, axis=0) ** 2)
        return delta_lam, delta_x, x_hat, jnp.linalg.norm(inner_gradient(f, x_hat, lam, mu)), settled

    return jax.vmap(one)(x, lam)


def _spread(e: Array) -> Array:
    """‖Me‖²."""
    return jnp.sum((e - jnp.mean(e, axis=0, keepdims=True)) ** 2)


def _bregman(f: Any, v: Array, e: Array) -> Array:
    """B(v + e, v) of one client; NaN where predictions move too far to integrate over."""
    if isinstance(f, Quadratic):
        return 0.5 * (e @ f.hvp(v, e))
    panels = jnp.maximum(1.0, jnp.ceil(bending(f, v, e) / PANEL))
    nodes, weights = jnp.asarray(0.5 + NODES), jnp.asarray(WEIGHTS)

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        panel, total = carry
        t = (panel + nodes) / panels
        curvature = jax.vmap(lambda t: e @ f.hvp(v + t * e, e))(t)
        return panel + 1.0, total + jnp.sum(weights * (1.0 - t) * curvature) / panels

    near = panels <= MOST_PANELS  # also false for NaN
    first = jnp.where(near, 0.0, jnp.inf), jnp.where(near, 0.0, jnp.nan)
    return lax.while_loop(lambda carry: carry[0] < panels, add, first)[1]


__all__ = ["Contraction", "Gaps", "certify", "contracts", "gaps"]
