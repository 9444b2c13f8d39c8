"""Krylov steps on F = Σfᵢ: gradients at one point a round, and on the last h moves the curvature that every client measures for itself.

    client    at the trial point u:   fᵢ(u),  ∇fᵢ(u)   and   Mᵢ = S·∇²fᵢ(u)·Sᵀ          S: the last h moves, unit rows, known to all
    server    accepts u where F fell, then with g = ∇F(x₀)/n, Y the changes of gradient along S, and M = mean(M):
              β = argmin ‖g − Yᵀβ‖          how much of g the moves so far can undo
              α = M⁻¹(S·Yᵀ)β                the moves that do it by the curvature of today, where Y is that of the past
              r = g − Yᵀβ                   what is left, a new direction
              u = x₀ − Sᵀα − r/γ            γ = yᵀy/sᵀy of the last move; ‖u − x₀‖ at most twice the last step, a quarter after a refusal

On quadratics S·Yᵀ = M: this is GMRES on the Hessian of the sum, so that disagreement between clients costs nothing, and 15 moves of
memory are few enough to send M (h(h+1)/2 numbers) with every gradient. Elsewhere M keeps old moves useful while the curvature changes.

Where ten rounds do not bring a tenfold fall of ‖g‖, the new direction is preconditioned, for as long as that pays, in a round of its own:

    client    newton: ωᵢ²(∇²fᵢ(x₀) + δI)⁻¹r       gradient: ωᵢ·r/γ              ωᵢ: its part of the curvature, of mean 1
              diagonal: as newton, with the diagonal alone

With shared_hessian the clients send their Hessian at the start once, as a sum: it measures ‖·‖ above and divides r instead of γ alone, and
no other preconditioner is asked for.

Cost of a step: 1 round, up d + h(h+1)/2 + 3 floats a client (k for h while there are k < h moves), down d; a preconditioned one 2 rounds,
d more up and d + 2 more down.
Converges to x*: F falls with every point that is accepted. Where F is not convex, to a stationary point.
After D. G. Anderson, "Iterative procedures for nonlinear integral equations", 1965, and T. Washio and C. W. Oosterlee, "Krylov subspace
acceleration for nonlinear multigrid schemes", 1997; the preconditioner is that of S. Wang et al., "GIANT", arXiv:1709.03528.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import linalg
from ..arguments import whole
from ..clients.base import Client, Clients, Packed
from ..curvature import Gradient
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .oracle import hessian, pack, unpack

RIDGE = 1e-10  # of the two small systems, whose diagonals are 1: moves that are nearly the same do not cancel each other
DAMPING = 1e-7  # δ, as a part of the client's curvature along its own first gradient
TIE = 1e-9  # values this close are rounding: slopes decide
SLOW, FALL = 10, 0.1  # rounds without this fall of ‖g‖ are too many
TRIAL = 12  # rounds after which the preconditioner has to be the faster one: its first steps are its worst


class Local(NamedTuple):
    points: Array  # (h + 1, d), the newest last
    seen: Array  # how many of them it has looked at
    scale: Array  # curvature of fᵢ along its gradient at the start: how large this client's part of the whole is
    newton: Array  # 1 where it can precondition, else 0


class Pace(NamedTuple):
    """Whether the preconditioner is in use, and the fall of ‖g‖ that decides on it."""

    preconditioned: Array
    mark: Array  # ‖g‖ when counting began
    since: Array  # rounds since
    wait: Array  # rounds to wait before it is tried: doubled each time that it did not pay
    rate: Array  # ‖g‖ fell by this factor a round without it


class KrylovState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    F: Array
    g: Vec
    u: Vec  # the next point to look at
    points: Array
    gradients: Array  # of F/n, at `points`
    radius: Array
    gamma: Array
    pace: Pace
    H: Array | None  # the mean Hessian at the start, if it was shared


def start(me: Client, x0: Vec, points: Array) -> Local:
    g = me.f.grad(x0)
    size = g @ g
    scale = jnp.where(size > 0, (g @ me.f.hvp(x0, g)) / jnp.where(size > 0, size, 1.0), 0.0)
    return Local(points, jnp.zeros((), jnp.int64), scale, number(0.0 if isinstance(me.curvature, Gradient) else 1.0))


def look(me: Client, local: Local, u: Vec) -> tuple[Local, tuple]:
    points = _with_newest(local.points, u)
    moves = jnp.minimum(local.seen, len(points) - 1)
    M = Packed(pack(me.f.form(u, _moves(points)[0])), _as_it_is, count=moves * (moves + 1) // 2, linear=True)  # 0 before h moves
    return local._replace(points=points, seen=local.seen + 1), (me.f.value(u), me.f.grad(u), M, local.scale, local.newton)


def _as_it_is(packed: Array) -> Array:
    return packed


def precondition(me: Client, local: Local, r: Vec, gamma: Array, mean_scale: Array) -> tuple[Local, Vec]:
    part = local.scale / mean_scale
    if isinstance(me.curvature, Gradient):
        return local, part * r / gamma
    delta = DAMPING * jnp.where(local.scale > 0, local.scale, 1.0)
    D = me.curvature(me.f, local.points[-1], delta, me.curvature.prepare(me.f, delta))
    return local, part**2 * D.solve(r)


def _with_newest(ring: Array, row: Vec) -> Array:
    return jnp.concatenate([ring[1:], row[None]])


def _moves(points: Array) -> tuple[Array, Array]:
    """Consecutive differences as unit rows, and their lengths; a row of zeros where nothing moved."""
    moves = jnp.diff(points, axis=0)
    lengths = jnp.linalg.norm(moves, axis=1)
    return moves / jnp.where(lengths > 0, lengths, 1.0)[:, None], lengths


def _accepted(state: KrylovState, F: Array, g: Vec) -> Array:
    """Whether F(u) < F(x₀): by value; where the values are too close for that, by the slopes at both ends."""
    move, rise = state.u - state.x0, F - state.F
    tie = jnp.abs(rise) <= TIE * jnp.maximum(jnp.abs(F), jnp.abs(state.F))
    slope = g @ move
    lower = jnp.where(tie, (slope <= 0) | (slope + state.g @ move <= 0), rise < 0)
    return jnp.isfinite(F) & jnp.all(jnp.isfinite(g)) & (~jnp.isfinite(state.F) | lower)


def _divide(V: Array, H: Array | None) -> Array:
    """V·H⁻¹; V itself where no Hessian is shared."""
    if H is None:
        return V
    d = H.shape[0]
    return linalg.solve(H + RIDGE * jnp.trace(H) / d * jnp.eye(d), V.T).T


def _combine(points: Array, gradients: Array, g: Vec, M: Array, H: Array | None, trust: Array) -> tuple[Vec, Vec, Array]:
    """The move by what is known, what it leaves of g, and γ of the last move (0 where that says nothing)."""
    S, lengths = _moves(points)
    Y = jnp.diff(gradients, axis=0) / jnp.where(lengths > 0, lengths, 1.0)[:, None]
    known = (lengths > 0) & jnp.all(jnp.isfinite(Y), axis=1)
    S, Y = jnp.where(known[:, None], S, 0.0), jnp.where(known[:, None], Y, 0.0)
    divided = _divide(Y, H)
    beta = _solve(Y @ divided.T, divided @ g)
    K, M = S @ Y.T, jnp.where(jnp.outer(known, known), M, 0.0)
    correction = _solve(M, (K - M) @ beta)
    alpha = beta + jnp.where(trust & jnp.all(jnp.isfinite(correction)), correction, 0.0)
    curvature = S[-1] @ Y[-1]
    usual = curvature > 1e-12 * jnp.linalg.norm(Y[-1])
    return -S.T @ alpha, g - Y.T @ beta, jnp.where(usual, (Y[-1] @ divided[-1]) / jnp.where(usual, curvature, 1.0), 0.0)


def _solve(G: Array, v: Vec) -> Vec:
    """G⁻¹v for a positive semidefinite G, scaled to a diagonal of 1."""
    scale = jnp.sqrt(jnp.where(jnp.diag(G) > 0, jnp.diag(G), 1.0))
    return linalg.solve(G / jnp.outer(scale, scale) + RIDGE * jnp.eye(len(v)), v / scale) / scale


def _judge(pace: Pace, size: Array, possible: Array) -> Pace:
    """Count the round that just was; begin with the preconditioner, or leave it."""
    since = pace.since + 1
    rate = jnp.where(pace.mark > 0, size / pace.mark, 1.0) ** (1.0 / since.astype(size.dtype))
    fell = size < FALL * pace.mark
    begin = ~pace.preconditioned & ~fell & (since >= pace.wait) & possible
    due = pace.preconditioned & (since >= TRIAL)
    leave = due & (rate >= jnp.minimum(pace.rate, 0.98))
    anew = begin | due | (~pace.preconditioned & fell)
    return Pace(
        preconditioned=(pace.preconditioned | begin) & ~leave,
        mark=jnp.where(anew, size, pace.mark),
        since=jnp.where(anew, 0, since),
        wait=jnp.where(leave, 2 * pace.wait, pace.wait),
        rate=jnp.where(begin, rate, pace.rate),
    )


def _fetch(clients: Clients, local: Any, x0: Vec) -> tuple[Any, Array]:
    local, packed = clients.mean(hessian, local, x0)
    return local, unpack(packed, clients.d)


def step(clients: Clients, state: KrylovState) -> KrylovState:
    first, local, H = ~jnp.isfinite(state.F), state.local, state.H
    if H is not None:
        local, H = clients.cond(first, lambda known: _fetch(clients, known[0], state.u), lambda known: known, (local, H))
    local, (F, g_u, packed, scale, newton) = clients.mean(look, local, state.u, implied=lambda up: up[1])
    accept = _accepted(state, F, g_u)
    finite = jnp.isfinite(F) & jnp.all(jnp.isfinite(g_u))
    x0, g, F = (jnp.where(accept | first, new, old) for new, old in ((state.u, state.x0), (g_u, state.g), (F, state.F)))
    size = jnp.linalg.norm(g)
    points = _with_newest(state.points, state.u)
    gradients = _with_newest(state.gradients, jnp.where(finite, g_u, jnp.inf))

    move, r, gamma = _combine(points, gradients, g, unpack(packed, len(points) - 1), H, accept)
    known = jnp.where(first, scale if H is None else 1.0, state.gamma)
    gamma = jnp.where(gamma > 0, gamma, jnp.where(known > 0, known, 1.0))
    pace = _judge(state.pace, size, accept & (newton > 0) & (scale > 0) & (H is None))
    local, q, extra = clients.cond(
        pace.preconditioned & accept,
        lambda local: (*clients.mean(precondition, local, r, gamma, scale), 1),
        lambda local: (local, _divide(r, H) / gamma, 0),
        local,
    )
    p = move - q
    falls = p @ g < -1e-10 * jnp.linalg.norm(p) * size  # false also where p is not finite
    p = jnp.where(falls, p, jnp.where(q @ g > 0, -q, -g / gamma))

    length = jnp.linalg.norm(state.u - state.x0)
    radius = jnp.where(accept, jnp.maximum(state.radius, 2.0 * length), jnp.where(finite, 0.25, 0.1) * length)
    p = p * jnp.minimum(1.0, radius / jnp.maximum(jnp.linalg.norm(p), jnp.finfo(p.dtype).tiny))
    return KrylovState(
        x0=x0,
        local=local,
        residual=clients.n * size,
        F=F,
        g=g,
        u=x0 + p,
        points=points,
        gradients=gradients,
        radius=radius,
        gamma=gamma,
        pace=pace._replace(since=pace.since + extra),
        H=H,
    )


@refuse_unknown_keywords
def krylov(*, memory: int = 15, shared_hessian: bool = False) -> Algorithm:
    """Krylov steps with the given number of remembered moves (at most d are kept).

    shared_hessian   the clients may send one Hessian, as a sum, in the first round: d(d+1)/2 floats each
    """
    memory = whole("krylov: memory", memory)
    if not isinstance(shared_hessian, bool):
        raise InvalidConfig(f"krylov: shared_hessian must be True or False, not {shared_hessian!r}.")

    def init(clients: Clients, x0: Vec) -> KrylovState:
        inf, zero = number(jnp.inf), jnp.zeros((), jnp.int64)
        points = jnp.tile(x0, (min(memory, clients.d) + 1, 1))
        pace = Pace(jnp.zeros((), bool), inf, zero, jnp.asarray(SLOW, jnp.int64), number(1.0))
        g, H = jnp.zeros_like(x0), jnp.zeros((clients.d, clients.d)) if shared_hessian else None
        local = clients.start(start, x0, points)
        return KrylovState(x0, local, inf, inf, g, x0, points, jnp.zeros_like(points), inf, number(0.0), pace, H)

    on_client = (start, look, hessian) if shared_hessian else (start, look, precondition)
    spec = Spec("krylov", {"memory": memory, "shared_hessian": shared_hessian})
    return Algorithm(init, step, on_client, spec, residual_is_gradient=True, descends=True)
