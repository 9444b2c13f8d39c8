"""AIDE: DANE inside an accelerated proximal point method.

With f = (1/n)Σfᵢ, m its strong convexity and q = m/(m + τ): `inner` steps of DANE, from u = x₀, on f(x) + ½τ‖x − y‖²,

    G  = ∇f(u) + τ(u − y)
    xᵢ = argmin fᵢ(x) − (∇fᵢ(u) − η·G)ᵀx + ½(μ + τ)‖x − u‖²          τ(x − y) and what corrects it at u leave τ(x − u)
    u⁺ = mean(x)

and then x₀⁺ = u, y⁺ = x₀⁺ + (1 − √q)/(1 + √q)·(x₀⁺ − x₀): the paper's ζ begun at √q, where it stays.

Cost of a step: 2·inner rounds, each with d floats up a client and d down. Fixed point: y = x₀, ∇f(x₀) = 0. Converges to x* where the inner
steps do: like DANE it may diverge on data that are not IID unless μ + τ is large enough. In the paper inner solutions have a tolerance;
here the number of inner steps is fixed, and a client solves its own subproblem to rounding.
S. J. Reddi, J. Konečný, P. Richtárik, B. Póczos and A. Smola, "AIDE: Fast and Communication Efficient Distributed Optimization", 2016.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive, whole
from ..clients.base import Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .dane import minimiser_near
from .oracle import gradient_kept, keep


class AideState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    y: Vec
    tau: Array
    eta: Array
    m: Array
    inner: Array  # one entry an inner step: its length is what counts


def step(clients: Clients, state: AideState) -> AideState:
    def dane_step(at: tuple) -> tuple:
        local, u = at
        local, g = clients.mean(gradient_kept, local, u)
        G = g + state.tau * (u - state.y)
        return clients.mean(minimiser_near, local, state.eta * G), jnp.linalg.norm(g)

    (local, x0), norms = clients.scan(dane_step, (state.local, state.x0), state.inner.shape[0])
    root_q = jnp.sqrt(state.m / (state.m + state.tau))
    y = x0 + (1.0 - root_q) / (1.0 + root_q) * (x0 - state.x0)
    return state._replace(x0=x0, local=local, residual=clients.n * norms[0], y=y)


@refuse_unknown_keywords
def aide(*, tau: Any, mu: Any, m: Any, eta: Any = 1.0, inner: int = 1) -> Algorithm:
    """AIDE with `inner` steps of DANE in each; tau, mu and m on the scale of one client's function (m ≥ reg/n)."""
    tau, mu, m, eta = (positive(f"aide: {name}", value) for name, value in (("tau", tau), ("mu", mu), ("m", m), ("eta", eta)))
    inner = whole("aide: inner", inner)

    def init(clients: Clients, x0: Vec) -> AideState:
        local = clients.start(keep, x0, number(mu) + number(tau))
        return AideState(x0, local, number(jnp.inf), x0, number(tau), number(eta), number(m), jnp.zeros(inner))

    parameters = {"tau": tau, "mu": mu, "m": m, "eta": eta, "inner": inner}
    return Algorithm(init, step, (keep, gradient_kept, minimiser_near), Spec("aide", parameters), residual_is_gradient=True)
