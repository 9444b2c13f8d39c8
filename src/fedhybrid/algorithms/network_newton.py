"""Network Newton NN-K on the star graph: Newton's method on DGD's penalised objective, its inverse Hessian cut to K + 1 terms.

    minimise  ½xᵀ(I − W)x + α·Σfᵢ(xᵢ)                     over all nodes; W of star.py, bond = 1/(n+1)
    g = (I − W)x + α·∇f(x),   H = I − W + α·∇²f(x)
    x⁺ = x + ε·(−H⁻¹g, by the terms 0 … K of star.py's series with C = α·∇²f(x), c₀ = 0)
    leaf i:  gᵢ = bond·(xᵢ − x₀) + α·∇fᵢ(xᵢ)
    hub:     g₀ = n·bond·(x₀ − mean(x))                    f₀ ≡ 0

ε goes into the first term; the others are linear in it.

Cost of a step: K + 1 rounds; up d floats a client and round (xᵢ, then a term of the series) and 1 a step for stopping, down d a round.
Every node starts at x₀. Biased: converges, for ε small enough (1 near the end), to where DGD goes with s = α, not to x*.
The residual, (Σ‖gᵢ‖ + ‖g₀‖ + Σ‖xᵢ − x₀‖)/α, bounds ‖Σ∇fᵢ(x₀)‖ for α ≤ 1/max ℓᵢ, and does not go to zero.
A. Mokhtari, Q. Ling and A. Ribeiro, "Network Newton Distributed Optimization Methods", 2017, Algorithm 1.
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
    t: Vec
    D: Derived
    bond: Array
    alpha: Array
    eps: Array


def start(me: Client, x0: Vec, bond: Array, alpha: Array, eps: Array) -> Local:
    d = x0.shape[0]
    return Local(x0, jnp.zeros_like(x0), Derived(jnp.zeros((d, d))), bond, alpha, eps)


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array]]:
    x, _, _, bond, alpha, eps = local
    g = bond * (x - x0) + alpha * me.f.grad(x)
    t, D = first_term(alpha * me.f.hess(x), bond, eps * g)
    return local._replace(x=x + t, t=t, D=D), (x, jnp.linalg.norm(g) + jnp.linalg.norm(x - x0))


class NetworkNewtonState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    bond: Array
    alpha: Array
    eps: Array
    terms: Array  # zeros: its length is K


def step(clients: Clients, state: NetworkNewtonState) -> NetworkNewtonState:
    bond, K = state.bond, state.terms.shape[0]
    local, (x, unrest) = clients.mean(update, state.local, state.x0)
    g0 = clients.n * bond * (state.x0 - x)
    t0 = -state.eps * g0 / (2.0 * clients.n * bond)
    local, x0 = further_terms(clients, local, state.x0 + t0, t0, 0.0, bond, K)
    residual = (clients.n * unrest + jnp.linalg.norm(g0)) / state.alpha
    return state._replace(x0=x0, local=local, residual=residual)


@refuse_unknown_keywords
def network_newton(*, alpha: Any, eps: Any = 1.0, K: int = 1) -> Algorithm:
    """Network Newton with weight alpha of the objective against the penalty, step size eps and K further terms of the series.

    K may be 0; every term is one more round a step.
    """
    alpha, eps = positive("network_newton: alpha", alpha), positive("network_newton: eps", eps)
    K = terms("network_newton: K", K)

    def init(clients: Clients, x0: Vec) -> NetworkNewtonState:
        parameters = number(1.0 / (clients.n + 1)), number(alpha), number(eps)
        return NetworkNewtonState(x0, clients.start(start, x0, *parameters), number(jnp.inf), *parameters, jnp.zeros(K))

    return Algorithm(init, step, (start, update, next_term), Spec("network_newton", {"alpha": alpha, "eps": eps, "K": K}))
