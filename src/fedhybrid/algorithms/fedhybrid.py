"""FedHybrid: every client chooses gradient-type or Newton-type updates, and the whole converges linearly to the exact optimum.

Client i, with D = I (gradient) or D = ∇²fᵢ(xᵢ) + μI (newton):

    xᵢ⁺ = xᵢ − aᵢ·D⁻¹(∇fᵢ(xᵢ) − λᵢ + μ(xᵢ − x₀))
    λᵢ⁺ = λᵢ + bᵢ·D(x₀ − xᵢ)                          both from the old xᵢ
    zᵢ  = xᵢ⁺ − λᵢ⁺/μ                                 the one vector it sends
Server:
    x₀⁺ = mean(z)                                     = mean(x⁺) − mean(λ⁺)/μ

Cost of a step: 1 round; up d + 2 floats a client (z, and two residuals for stopping), down d. Fixed point: xᵢ = x₀ = x*, λᵢ = ∇fᵢ(x*).
X. Niu and E. Wei, "FedHybrid: A Hybrid Primal-Dual Algorithm Framework for Federated Optimization", arXiv:2106.01279, Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments import numeric, positive
from ..clients.base import Client, Clients
from ..curvature import Derived, Gradient
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number


class Local(NamedTuple):
    """What client i keeps between rounds."""

    x: Vec
    lam: Vec
    mu: Array
    a: Array
    b: Array
    ready: Derived  # what D needs and x does not change


def start(me: Client, base: Vec, mu: Array, a: Any, b: Any, x: Array | None, lam: Array | None) -> Local:
    x_start = base if x is None else x[me.id]
    lam_start = jnp.zeros_like(base) if lam is None else lam[me.id]
    return Local(x_start, lam_start, mu, _mine(me, a), _mine(me, b), me.curvature.prepare(me.f, mu))


def _mine(me: Client, step_size: Any) -> Array:
    """This client's own entry of a number, a pair (gradient, newton), or an array with one per client."""
    if isinstance(step_size, tuple):
        return step_size[0] if isinstance(me.curvature, Gradient) else step_size[1]
    return step_size if step_size.ndim == 0 else step_size[me.id]


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Array, Array]]:
    x, lam, mu, a, b, ready = local
    D = me.curvature(me.f, x, mu, ready)
    r = me.f.grad(x) - lam + mu * (x - x0)
    x_next = x - a * D.solve(r)
    lam_next = lam + b * D.mul(x0 - x)
    return local._replace(x=x_next, lam=lam_next), (x_next - lam_next / mu, jnp.sum((x - x0) ** 2), jnp.sum(r**2))


class FedHybridState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    mu: Array


def step(clients: Clients, state: FedHybridState) -> FedHybridState:
    local, (x0, disagreement, stationarity) = clients.mean(update, state.local, state.x0)
    residual = clients.n * (jnp.sqrt(stationarity) + state.mu * jnp.sqrt(disagreement))
    return FedHybridState(x0, local, residual, state.mu)


@refuse_unknown_keywords
def fedhybrid(*, mu: Any, a: Any, b: Any, x: Any = None, lam: Any = None, x0: Any = None) -> Algorithm:
    """FedHybrid with penalty mu, primal step sizes a and dual step sizes b.

    a, b   a number for all; a tuple (gradient, newton); or an array with one per client
    x, lam start values of the clients, one row per client (default: x₀, and zero)
    x0     the server's start value, used literally; omitted, it is the consistent mean(x) − mean(λ)/μ
    """
    mu = positive("fedhybrid: mu", mu)
    a, b = _step_sizes("a", a), _step_sizes("b", b)
    x, lam = _start_values("x", x, 2), _start_values("lam", lam, 2)
    x0 = _start_values("x0", x0, 1)

    def init(clients: Clients, x0_given: Vec) -> FedHybridState:
        for name, values, shape in (
            ("a", a, (clients.n,)),
            ("b", b, (clients.n,)),
            ("x", x, (clients.n, clients.d)),
            ("lam", lam, (clients.n, clients.d)),
            ("x0", x0, (clients.d,)),
        ):
            if isinstance(values, np.ndarray | jax.Array) and values.ndim > 0 and values.shape != shape:
                raise InvalidConfig(f"fedhybrid: {name} has shape {values.shape}, but the fleet needs {shape}.")
        base = x0_given if x0 is None else number(x0)
        parameters = jax.tree.map(number, (mu, a, b, x, lam))
        x0_start = base
        if x0 is None and x is not None:
            x0_start = _mean(parameters[3])
        if x0 is None and lam is not None:
            x0_start = x0_start - _mean(parameters[4]) / mu
        local = clients.start(start, base, *parameters)
        return FedHybridState(x0_start, local, number(jnp.inf), parameters[0])

    parameters = {"mu": mu, "a": a, "b": b, "x": x, "lam": lam, "x0": x0}
    return Algorithm(init, step, (start, update), Spec("fedhybrid", parameters))


def _mean(values: Array) -> Vec:
    """The mean over clients; sorted first, so that it is the same to the last bit in every order of the sites."""
    return jnp.sum(jnp.sort(values, axis=0), axis=0) / values.shape[0]


def _step_sizes(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        if len(value) != 2:
            raise InvalidConfig(
                f"fedhybrid: {name} as a tuple is (gradient, newton), two numbers, not {len(value)}; use an array for one per client."
            )
        return tuple(positive(f"fedhybrid: {name}", entry) for entry in value)
    return positive(f"fedhybrid: {name}", value, per_client=True)


def _start_values(name: str, value: Any, ndim: int) -> Any:
    if value is None or isinstance(value, jax.core.Tracer):
        return value
    array = numeric(f"fedhybrid: {name}", value)
    if array.ndim != ndim or not np.all(np.isfinite(array)):
        raise InvalidConfig(f"fedhybrid: {name} must be a finite array with {ndim} axes; it has {array.ndim}.")
    return array
