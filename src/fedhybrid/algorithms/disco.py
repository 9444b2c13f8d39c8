"""DiSCO: inexact damped Newton, its direction by conjugate gradients that one client's Hessian preconditions.

With f = (1/n)Σfᵢ, g = ∇f(x₀), H = ∇²f(x₀) and P = ∇²f_who(x₀) + μI, find v with ‖Hv − g‖ ≤ ε‖g‖: from v = 0, r = g, u = s = P⁻¹r,

    α = rᵀs/uᵀHu,   v⁺ = v + αu,   r⁺ = r − αHu,   s⁺ = P⁻¹r⁺,   u⁺ = s⁺ + (r⁺ᵀs⁺/rᵀs)·u          one round each, for Hu

    x₀⁺ = x₀ − v/(1 + δ),   δ² = vᵀ∇²F(x₀)v = n·vᵀ(g − r),   F = Σfᵢ;   undamped: x₀⁺ = x₀ − v

The damping takes F itself for standard self-concordant, as squared loss is at any scale; the paper first scales another F to be so.
In the paper client `who` is the server; here it sends its Hessian.

Cost of a step with k iterations: k + 2 rounds; up (k + 1)d floats a client and d(d + 1)/2 by one of them, down (k + 1)d, as clients keep
x₀. Converges to x* on any data, at the end linearly by a factor of about ε a step: data that are not IID only cost iterations. Undamped
it may overshoot far from x*. The paper's ε is √(m/ℓ)/20, m and ℓ of F.
Y. Zhang and L. Xiao, "DiSCO: Distributed Optimization for Self-Concordant Empirical Loss", 2015, algorithms 1 and 2.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .. import linalg
from ..arguments import positive, whole
from ..clients.base import Clients
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .oracle import gradient_kept, hessian_kept, hessian_vector_kept, keep, unpack


class DiscoState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    mu: Array
    accuracy: Array
    who: Array
    most: Array
    damping: Array  # 1, or 0 where the steps are undamped


class Pcg(NamedTuple):
    local: Any
    v: Vec
    r: Vec
    u: Vec
    rs: Array
    iterations: Array


def step(clients: Clients, state: DiscoState) -> DiscoState:
    local, g = clients.mean(gradient_kept, state.local, state.x0)
    local, H_who = clients.one(hessian_kept, local, state.who)
    P = linalg.cholesky(unpack(H_who, clients.d) + state.mu * jnp.eye(clients.d))

    def unsolved(at: Pcg) -> Array:
        return (jnp.linalg.norm(at.r) > state.accuracy * jnp.linalg.norm(g)) & (at.iterations < state.most)

    def iterate(at: Pcg) -> Pcg:
        local, Hu = clients.mean(hessian_vector_kept, at.local, at.u)
        alpha = at.rs / (at.u @ Hu)
        r = at.r - alpha * Hu
        s = linalg.factored_solve(P, r)
        rs = r @ s
        return Pcg(local, at.v + alpha * at.u, r, s + (rs / at.rs) * at.u, rs, at.iterations + 1)

    s = linalg.factored_solve(P, g)
    at = clients.while_loop(unsolved, iterate, Pcg(local, jnp.zeros_like(g), g, s, g @ s, jnp.zeros((), jnp.int64)))
    delta = jnp.sqrt(clients.n * jnp.maximum(at.v @ (g - at.r), 0.0))
    x0 = state.x0 - at.v / (1.0 + state.damping * delta)
    return state._replace(x0=x0, local=at.local, residual=clients.n * jnp.linalg.norm(g))


@refuse_unknown_keywords
def disco(*, mu: Any, accuracy: Any = 0.05, who: int = 0, damped: bool = True, most: int = 100) -> Algorithm:
    """DiSCO, preconditioned by the Hessian of client `who` plus mu.

    mu        on the scale of one client's function
    accuracy  of a Newton direction: ε, relative to the gradient's norm
    damped    as in the paper; False for full steps
    most      conjugate gradient iterations in a step
    """
    mu, accuracy, most = positive("disco: mu", mu), positive("disco: accuracy", accuracy), whole("disco: most", most)
    if isinstance(who, bool) or not isinstance(who, int | np.integer) or who < 0:
        raise InvalidConfig(f"disco: who must be the number of a client, from 0, not {who!r}.")
    if not isinstance(damped, bool):
        raise InvalidConfig(f"disco: damped must be True or False, not {damped!r}.")

    def init(clients: Clients, x0: Vec) -> DiscoState:
        if who >= clients.n:
            raise InvalidConfig(f"disco: who is {who}, but the clients are numbered from 0 to {clients.n - 1}.")
        local = clients.start(keep, x0)
        counts = jnp.asarray(who, jnp.int32), jnp.asarray(most, jnp.int64)
        return DiscoState(x0, local, number(jnp.inf), number(mu), number(accuracy), *counts, number(float(damped)))

    parameters = {"mu": mu, "accuracy": accuracy, "who": int(who), "damped": damped, "most": most}
    on_client = (keep, gradient_kept, hessian_kept, hessian_vector_kept)
    return Algorithm(init, step, on_client, Spec("disco", parameters), residual_is_gradient=True)
