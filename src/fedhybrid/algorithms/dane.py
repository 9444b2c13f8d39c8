"""DANE: every client minimises its own function, corrected to have the mean's gradient at x₀, near x₀.

With f = (1/n)Σfᵢ and g = ∇f(x₀), from one round:

    xᵢ  = argmin fᵢ(x) − (∇fᵢ(x₀) − η·g)ᵀx + ½μ‖x − x₀‖²          to rounding
    x₀⁺ = mean(x)

Cost of a step: 2 rounds; up 2d floats a client, down 2d. Fixed point: ∇f(x₀) = 0. On quadratics x₀⁺ = x₀ − η·mean((∇²fᵢ + μI)⁻¹)·g, which
converges linearly to x* while mean((∇²fᵢ + μI)⁻¹) is below 2(η∇²f)⁻¹: for alike clients with any μ, for others if μ is large enough
(always if μ > ηℓ/2, ℓ the smoothness of f). With a smaller μ it may diverge on data that are not IID.
O. Shamir, N. Srebro and T. Zhang, "Communication-Efficient Distributed Optimization using an Approximate Newton-type Method", 2014,
figure 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .oracle import Kept, gradient_kept, keep
from .subproblem import minimise


class DaneState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    eta: Array


def minimiser_near(me: Client, local: Kept, eta_g: Vec) -> tuple[Kept, Vec]:
    (mu,) = local.parameters
    return local, minimise(me.f, local.x0, local.g - eta_g, mu, local.x0)


def step(clients: Clients, state: DaneState) -> DaneState:
    local, g = clients.mean(gradient_kept, state.local, state.x0)
    local, x0 = clients.mean(minimiser_near, local, state.eta * g)
    return DaneState(x0, local, clients.n * jnp.linalg.norm(g), state.eta)


@refuse_unknown_keywords
def dane(*, mu: Any, eta: Any = 1.0) -> Algorithm:
    """DANE with the penalty mu, on the scale of one client's function, and the weight eta of the mean gradient."""
    mu, eta = positive("dane: mu", mu), positive("dane: eta", eta)

    def init(clients: Clients, x0: Vec) -> DaneState:
        return DaneState(x0, clients.start(keep, x0, number(mu)), number(jnp.inf), number(eta))

    parameters = {"mu": mu, "eta": eta}
    return Algorithm(init, step, (keep, gradient_kept, minimiser_near), Spec("dane", parameters), residual_is_gradient=True)
