"""FedAC with full gradients: FedAvg whose local steps are Nesterov's.

Client i, from x and x₀, E times:
    v  = x/β + (1 − 1/β)·x₀
    x₀ ← v − η·∇fᵢ(v)
    x  ← (1 − 1/α)·x + v/α − γ·∇fᵢ(v)
Server:
    x₀⁺ = mean(x₀),  x⁺ = mean(x)
with the paper's choice FedAC-I:
    γ = max(η, √(η/(m·E))),  α = 1/(γ·m),  β = α + 1

Cost of a step: 1 round; up 2d floats a client (x₀ and x), down 2d. E = 1 is Nesterov's method on mean(f): for η at most one over
its smoothness, and m its strong convexity, it converges linearly to x*, the faster as √(η·m) is larger. E > 1 goes elsewhere where the
clients' own minimisers differ, as FedAvg does: the paper's clients draw from one distribution. The residual is the norm of Σ of a
weighted mean of the E local gradients, the one that x has moved by.
The paper's names: x₀ is w^ag, v is w^md, x is w, m is μ, E is K.
H. Yuan and T. Ma, "Federated Accelerated Stochastic Gradient Descent", 2020, Algorithm 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..arguments import positive, whole
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number


class Parameters(NamedTuple):
    eta: Array  # E times the same: a shape is known to the compiler, a number is not
    gamma: Array
    alpha: Array
    beta: Array


def accelerate(x0: Vec, x: Vec, parameters: Parameters, gradient: Callable[[Vec], Vec]) -> tuple[Vec, Vec]:
    _, gamma, alpha, beta = parameters

    def once(carry: tuple[Vec, Vec], eta: Array) -> tuple[tuple[Vec, Vec], None]:
        x0, x = carry
        v = x / beta + (1 - 1 / beta) * x0
        g = gradient(v)
        return (v - eta * g, (1 - 1 / alpha) * x + v / alpha - gamma * g), None

    return lax.scan(once, (x0, x), parameters.eta)[0]


def start(me: Client, parameters: Parameters) -> Parameters:
    return parameters


def update(me: Client, parameters: Parameters, x0: Vec, x: Vec) -> tuple[Parameters, tuple[Vec, Vec]]:
    return parameters, accelerate(x0, x, parameters, me.f.grad)


@jax.jit
def mean_gradient(x0: Vec, x: Vec, x_next: Vec, parameters: Parameters) -> Vec:
    """The gradient that, had it been the same in all E steps, would have led from (x₀, x) to x⁺."""
    zero = jnp.zeros_like(parameters.gamma)
    _, coasted = accelerate(x0, x, parameters, jnp.zeros_like)
    _, moved = accelerate(zero, zero, parameters, jnp.ones_like)  # x⁺ is linear in the gradients
    return (x_next - coasted) / moved


class FedAcState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    x: Vec
    parameters: Parameters


def step(clients: Clients, state: FedAcState) -> FedAcState:
    local, (x0, x) = clients.mean(update, state.local, state.x0, state.x)
    g = clients.n * mean_gradient(state.x0, state.x, x, state.parameters)
    return FedAcState(x0, local, jnp.linalg.norm(g), x, state.parameters)


@refuse_unknown_keywords
def fedac(*, step_size: Any, m: Any, local_steps: int) -> Algorithm:
    """FedAC-I with `local_steps` accelerated steps a round, η = step_size, and m the strong convexity of mean(f), for which η·m ≤ 1."""
    eta, m = positive("fedac: step_size", step_size), positive("fedac: m", m)
    E = whole("fedac: local_steps", local_steps)

    def init(clients: Clients, x0: Vec) -> FedAcState:
        gamma = jnp.maximum(number(eta), jnp.sqrt(number(eta) / (E * number(m))))
        alpha = 1 / (gamma * number(m))
        parameters = Parameters(jnp.full(E, number(eta)), gamma, alpha, alpha + 1)
        return FedAcState(x0, clients.start(start, parameters), number(jnp.inf), x0, parameters)

    return Algorithm(init, step, (start, update), Spec("fedac", {"step_size": eta, "m": m, "local_steps": E}))
