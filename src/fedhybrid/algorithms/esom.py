"""ESOM-K on the star graph: a method of multipliers whose primal step is Newton's, its inverse Hessian cut to K + 1 terms.

    min_x max_q  Σfᵢ(xᵢ) + qᵀx + ½α·xᵀ(I − W)x             over all nodes; q in the range of I − W of star.py, bond = α/(n+1)
    q  ← q + α(I − W)x                                      a gradient step of the dual, left over from the last step; q⁰ = 0
    g  = ∇f(x) + q + α(I − W)x,   H = ∇²f(x) + ε·I + α(I − W)
    x⁺ = x − H⁻¹g                                           by the terms 0 … K of star.py's series with C = ∇²f(x) + ε·I, c₀ = ε
    leaf i:  (α(I − W)x)ᵢ = bond·(xᵢ − x₀),  gᵢ = ∇fᵢ(xᵢ) + qᵢ + bond·(xᵢ − x₀)
    hub:     (α(I − W)x)₀ = n·bond·(x₀ − mean(x)),  g₀ = q₀ + n·bond·(x₀ − mean(x))          f₀ ≡ 0

The paper moves q at the end of a step, which would be an exchange of its own; moved at the start of the next, it shares that of x.

Cost of a step: K + 1 rounds; up d floats a client and round (xᵢ, then a term of the series) and 1 a step for stopping, down d a round.
Every node starts at x₀. Converges linearly to x* for ε large enough. Fixed point: xᵢ = x₀ = x*, qᵢ = −∇fᵢ(x*), q₀ = 0.
The residual, Σ‖gᵢ‖ + ‖g₀‖ + α·Σ‖xᵢ − x₀‖, bounds ‖Σ∇fᵢ(x₀)‖ for α ≥ max ℓᵢ.
A. Mokhtari, W. Shi, Q. Ling and A. Ribeiro, "A Decentralized Second-Order Method with Exact Linear Convergence Rate for Consensus
Optimization", 2016, Algorithm 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive
from ..clients.base import Client, Clients
from ..curvature import Derived
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .star import first_term, further_terms, next_term, terms


class Local(NamedTuple):
    x: Vec
    q: Vec
    t: Vec
    D: Derived
    bond: Array
    alpha: Array
    eps: Array


def start(me: Client, x0: Vec, bond: Array, alpha: Array, eps: Array) -> Local:
    d, zero = x0.shape[0], jnp.zeros_like(x0)
    return Local(x0, zero, zero, Derived(jnp.zeros((d, d))), bond, alpha, eps)


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array]]:
    x, q, _, _, bond, alpha, eps = local
    apart = bond * (x - x0)
    q_next = q + apart
    g = me.f.grad(x) + q_next + apart
    t, D = first_term(me.f.hess(x) + eps * jnp.eye(x.shape[0]), bond, g)
    return local._replace(x=x + t, q=q_next, t=t, D=D), (x, jnp.linalg.norm(g) + alpha * jnp.linalg.norm(x - x0))


class EsomState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    q0: Vec
    bond: Array
    eps: Array
    terms: Array  # zeros: its length is K


def step(clients: Clients, state: EsomState) -> EsomState:
    pull, eps, K = clients.n * state.bond, state.eps, state.terms.shape[0]
    local, (x, unrest) = clients.mean(update, state.local, state.x0)
    apart = pull * (state.x0 - x)
    q0 = state.q0 + apart
    g0 = q0 + apart
    t0 = -g0 / (eps + 2.0 * pull)
    local, x0 = further_terms(clients, local, state.x0 + t0, t0, eps, state.bond, K)
    return state._replace(x0=x0, local=local, residual=clients.n * unrest + jnp.linalg.norm(g0), q0=q0)


@refuse_unknown_keywords
def esom(*, alpha: Any, eps: Any, K: int = 1) -> Algorithm:
    """ESOM with penalty alpha, which is also the dual's step size, proximal weight eps and K further terms of the series.

    K may be 0; every term is one more round a step.
    """
    alpha, eps = positive("esom: alpha", alpha), positive("esom: eps", eps)
    K = terms("esom: K", K)

    def init(clients: Clients, x0: Vec) -> EsomState:
        bond = number(alpha) / (clients.n + 1)
        local = clients.start(start, x0, bond, number(alpha), number(eps))
        return EsomState(x0, local, number(jnp.inf), jnp.zeros_like(x0), bond, number(eps), jnp.zeros(K))

    return Algorithm(init, step, (start, update, next_term), Spec("esom", {"alpha": alpha, "eps": eps, "K": K}))
