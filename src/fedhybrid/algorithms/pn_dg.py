"""PN_DG: FedHybrid's Newton step for every client's x, and its gradient step for every client's λ.

Client i, with D = ∇²fᵢ(xᵢ) + μI:

    xᵢ⁺ = xᵢ − aᵢ·D⁻¹(∇fᵢ(xᵢ) − λᵢ + μ(xᵢ − x₀))
    λᵢ⁺ = λᵢ + bᵢ·(x₀ − xᵢ)                           both from the old xᵢ
    zᵢ  = xᵢ⁺ − λᵢ⁺/μ                                 the one vector it sends
Server:
    x₀⁺ = mean(z)

Cost of a step: 1 round; up d + 2 floats a client (z, and two residuals for stopping), down d. Fixed point: xᵢ = x₀ = x*, λᵢ = ∇fᵢ(x*),
whatever the data. It converges for small enough steps; where all clients have the same Hessian, a = 1 and b < min(2μ, h + μ) do, h its
least eigenvalue. The dual step knows no curvature: the more ∇²fᵢ exceeds μ, the slower it is than FedHybrid.
X. Niu and E. Wei, "FedHybrid: A Hybrid Primal-Dual Algorithm Framework for Federated Optimization", arXiv:2106.01279: x as in section 3.2,
λ as in section 3.1; the authors' own experiments have this pair under this name.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..arguments import positive
from ..clients.base import Client, Clients
from ..curvature import UPDATES, Derived
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number

NEWTON = UPDATES["newton"]  # whatever update the client chose for FedHybrid


class Local(NamedTuple):
    x: Vec
    lam: Vec
    mu: Array
    a: Array
    b: Array
    ready: Derived  # what D needs and x does not change


def start(me: Client, x0: Vec, mu: Array, a: Array, b: Array) -> Local:
    own_a, own_b = (size if size.ndim == 0 else size[me.id] for size in (a, b))
    return Local(x0, jnp.zeros_like(x0), mu, own_a, own_b, NEWTON.prepare(me.f, mu))


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array, Array]]:
    x, lam, mu, a, b, ready = local
    D = NEWTON(me.f, x, mu, ready)
    r = me.f.grad(x) - lam + mu * (x - x0)
    x_next = x - a * D.solve(r)
    lam_next = lam + b * (x0 - x)
    return local._replace(x=x_next, lam=lam_next), (x_next - lam_next / mu, jnp.sum((x - x0) ** 2), jnp.sum(r**2))


class PnDgState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    mu: Array


def step(clients: Clients, state: PnDgState) -> PnDgState:
    local, (x0, disagreement, stationarity) = clients.mean(update, state.local, state.x0)
    residual = clients.n * (jnp.sqrt(stationarity) + state.mu * jnp.sqrt(disagreement))
    return PnDgState(x0, local, residual, state.mu)


@refuse_unknown_keywords
def pn_dg(*, mu: Any, b: Any, a: Any = 1.0) -> Algorithm:
    """PN_DG with penalty mu, dual step sizes b and primal step sizes a: each a number for all, or an array with one per client."""
    mu = positive("pn_dg: mu", mu)
    a, b = positive("pn_dg: a", a, per_client=True), positive("pn_dg: b", b, per_client=True)

    def init(clients: Clients, x0: Vec) -> PnDgState:
        for name, size in (("a", a), ("b", b)):
            if np.ndim(size) > 0 and np.shape(size) != (clients.n,):
                raise InvalidConfig(f"pn_dg: {name} has shape {np.shape(size)}, but the fleet needs ({clients.n},), one per client.")
        return PnDgState(x0, clients.start(start, x0, number(mu), number(a), number(b)), number(jnp.inf), number(mu))

    return Algorithm(init, step, (start, update), Spec("pn_dg", {"mu": mu, "a": a, "b": b}))
