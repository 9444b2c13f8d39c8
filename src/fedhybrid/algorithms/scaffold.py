"""SCAFFOLD with full gradients: local steps, corrected by how a client's gradient differs from everybody's.

Client i, from x₀:
    xᵢ  ← xᵢ − s·(∇fᵢ(xᵢ) − cᵢ + c)            E times
    cᵢ⁺ = the mean of these E ∇fᵢ(xᵢ)           = cᵢ − c + (x₀ − xᵢ)/(E·s), option II; the one vector it sends
Server:
    c⁺  = mean(c⁺)
    x₀⁺ = x₀ − g·E·s·c⁺                         = x₀ + g·(mean(x) − x₀), as all take part and so c = mean(c)

Cost of a step: 1 round; up d floats a client, down 2d (x₀ and c). All cᵢ and c start at zero. With small enough steps (the paper
proves it for E·s·g of the order of 1/ℓᵢ) it converges linearly to x*, whatever the data: there cᵢ = ∇fᵢ(x*) and c = 0.
E = 1 is gradient descent with step g·s/n. The residual is ‖Σcᵢ⁺‖.
The paper's clients send xᵢ and cᵢ. From the xᵢ alone c could be had too, but rounding errors of c − mean(c) would then add up.
S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020, Algorithm 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from ..arguments import positive, whole
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number


class Local(NamedTuple):
    c: Vec
    s: Array


def start(me: Client, x0: Vec, s: Array) -> Local:
    return Local(jnp.zeros_like(x0), s)


def descend(me: Client, local: Local, x0: Vec, c: Vec) -> tuple[Local, Vec]:
    def once(carry: tuple[Vec, Vec], s: Array) -> tuple[tuple[Vec, Vec], None]:
        x, total = carry
        g = me.f.grad(x)
        return (x - s * (g - local.c + c), total + g), None

    (_, total), _ = lax.scan(once, (x0, jnp.zeros_like(x0)), local.s)
    c_next = total / local.s.shape[0]
    return local._replace(c=c_next), c_next


class ScaffoldState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    c: Vec
    s: Array  # E times the same: a shape is known to the compiler, a number is not
    g: Array


def step(clients: Clients, state: ScaffoldState) -> ScaffoldState:
    local, c = clients.mean(descend, state.local, state.x0, state.c)
    x0 = state.x0 - state.g * jnp.sum(state.s) * c
    return ScaffoldState(x0, local, clients.n * jnp.linalg.norm(c), c, state.s, state.g)


@refuse_unknown_keywords
def scaffold(*, step_size: Any, local_steps: int, server_step_size: Any = 1.0) -> Algorithm:
    """SCAFFOLD with `local_steps` corrected gradient steps of `step_size`; the server goes `server_step_size` of the way to the mean."""
    s, E = positive("scaffold: step_size", step_size), whole("scaffold: local_steps", local_steps)
    g = positive("scaffold: server_step_size", server_step_size)

    def init(clients: Clients, x0: Vec) -> ScaffoldState:
        each = jnp.full(E, number(s))
        return ScaffoldState(x0, clients.start(start, x0, each), number(jnp.inf), jnp.zeros_like(x0), each, number(g))

    parameters = {"step_size": s, "local_steps": E, "server_step_size": g}
    return Algorithm(init, step, (start, descend), Spec("scaffold", parameters))
