"""DINGO: Newton-type directions that lower the norm of the gradient itself.

With f = (1/n)Σfᵢ, g = ∇f(x₀), Hᵢ = ∇²fᵢ(x₀), H = mean(Hᵢ), H̃ᵢ = [Hᵢ; φI], g̃ = [g; 0]; one round gives Hg, mean(Hᵢ⁺g), mean(H̃ᵢ⁺g̃):

    case 1   p = −mean(Hᵢ⁺g)      if mean(Hᵢ⁺g)ᵀHg ≥ θ‖g‖²
    case 2   p = −mean(H̃ᵢ⁺g̃)      else if mean(H̃ᵢ⁺g̃)ᵀHg ≥ θ‖g‖²
    case 3   p = mean(pᵢ),  pᵢ = −H̃ᵢ⁺g̃ − λᵢ(H̃ᵢᵀH̃ᵢ)⁻¹Hg,                                         one round more
             λᵢ = max(0, (θ‖g‖² − (H̃ᵢ⁺g̃)ᵀHg)/(Hg)ᵀ(H̃ᵢᵀH̃ᵢ)⁻¹Hg)

    x₀⁺ = x₀ + t·p,  t the first of 1, ½, …, 2⁻⁵⁰ with ‖∇f(x₀ + t·p)‖² ≤ ‖g‖² + 2·10⁻⁴·t·pᵀHg    one round a trial

Cost of a step: 1 round with 3d floats up a client, 1 in case 3 and one a trial with d up; each d down. The last trial's gradient is the
next step's g, so that only the first step has a round for it. Converges linearly to x* on any data: −pᵀHg ≥ θ‖g‖² in every case.
Directions come from an eigendecomposition of Hᵢ, where the paper iterates; for Hᵢ⁺, eigenvalues below d·eps of the largest are zero.
R. Crane and F. Roosta, "DINGO: Distributed Newton-Type Method for Gradient-Norm Optimization", 2019, algorithm 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import linalg
from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .oracle import Kept, gradient_kept, keep

ARMIJO = 1e-4
HALVINGS = 50


class DingoState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    g: Vec  # ∇f(x₀), from the last trial; not finite before the first step
    theta: Array


class Trial(NamedTuple):
    local: Any
    t: Array
    g: Vec
    halvings: Array


def directions(me: Client, local: Kept, g: Vec) -> tuple[Kept, tuple[Vec, Vec, Vec]]:
    """Hg, H⁺g and H̃⁺g̃ = (H² + φ²I)⁻¹Hg."""
    _, phi = local.parameters
    w, Q = linalg.eigh(me.f.hess(local.x0))
    seen = jnp.abs(w) > w.shape[0] * jnp.finfo(w.dtype).eps * jnp.max(jnp.abs(w))
    Qg = Q.T @ g
    inverse = jnp.where(seen, 1.0 / jnp.where(seen, w, 1.0), 0.0)
    return local._replace(g=g), (Q @ (w * Qg), Q @ (inverse * Qg), Q @ (w / (w**2 + phi**2) * Qg))


def corrected(me: Client, local: Kept, Hg: Vec) -> tuple[Kept, Vec]:
    """Case 3, with the g of the round before."""
    theta, phi = local.parameters
    w, Q = linalg.eigh(me.f.hess(local.x0))
    damped = Q @ (w / (w**2 + phi**2) * (Q.T @ local.g))
    correction = Q @ ((Q.T @ Hg) / (w**2 + phi**2))
    lam = jnp.maximum(0.0, (theta * local.g @ local.g - damped @ Hg) / (Hg @ correction))
    return local, -damped - lam * correction


def step(clients: Clients, state: DingoState) -> DingoState:
    def ask(at: tuple) -> tuple:
        return clients.mean(gradient_kept, at[0], state.x0)

    local, g = clients.cond(jnp.all(jnp.isfinite(state.g)), lambda at: at, ask, (state.local, state.g))
    local, (Hg, newton, damped) = clients.mean(directions, local, g)
    enough, eps = state.theta * g @ g, jnp.finfo(g.dtype).eps

    def case_3(at: tuple) -> tuple:
        return clients.mean(corrected, at[0], Hg)

    p = jnp.where(newton @ Hg >= enough, -newton, -damped)
    local, p = clients.cond((newton @ Hg >= enough) | (damped @ Hg >= enough), lambda at: at, case_3, (local, p))

    def too_long(trial: Trial) -> Array:
        moves = jnp.linalg.norm(trial.t * p) > eps * jnp.linalg.norm(state.x0)  # else a shorter step only costs rounds
        return ~(trial.g @ trial.g <= g @ g + 2.0 * ARMIJO * trial.t * (p @ Hg)) & moves & (trial.halvings < HALVINGS)

    def shorten(trial: Trial) -> Trial:
        t = 0.5 * trial.t
        return Trial(*_at(clients, trial.local, state.x0, t, p), trial.halvings + 1)

    first = Trial(*_at(clients, local, state.x0, number(1.0), p), jnp.zeros((), jnp.int64))
    trial = clients.while_loop(too_long, shorten, first)
    return state._replace(x0=state.x0 + trial.t * p, local=trial.local, residual=clients.n * jnp.linalg.norm(g), g=trial.g)


def _at(clients: Clients, local: Any, x0: Vec, t: Array, p: Vec) -> tuple[Any, Array, Vec]:
    local, g = clients.mean(gradient_kept, local, x0 + t * p)
    return local, t, g


@refuse_unknown_keywords
def dingo(*, theta: Any = 1e-4, phi: Any = 1e-6) -> Algorithm:
    """DINGO: theta is the descent that a direction must promise, phi the damping of a client's Hessian, on its own scale."""
    theta, phi = positive("dingo: theta", theta), positive("dingo: phi", phi)

    def init(clients: Clients, x0: Vec) -> DingoState:
        local = clients.start(keep, x0, number(theta), number(phi))
        return DingoState(x0, local, number(jnp.inf), jnp.full_like(x0, jnp.inf), number(theta))

    on_client = (keep, gradient_kept, directions, corrected)
    return Algorithm(init, step, on_client, Spec("dingo", {"theta": theta, "phi": phi}), residual_is_gradient=True)
