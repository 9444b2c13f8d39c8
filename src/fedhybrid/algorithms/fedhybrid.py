"""FedHybrid: every client chooses gradient-type or Newton-type updates, and the whole converges linearly to the exact optimum.

Client i, with D = I (gradient), D = ∇²fᵢ(xᵢ) + μI (newton) or the diagonal of that (diagonal):

    xᵢ⁺ = xᵢ − aᵢ·D⁻¹(∇fᵢ(xᵢ) − λᵢ + μ(xᵢ − x₀))
    λᵢ⁺ = λᵢ + bᵢ·D(x₀ − xᵢ)                          both from the old xᵢ
    zᵢ  = xᵢ⁺ − λᵢ⁺/μ                                 the one vector it sends
Server:
    x₀⁺ = mean(z)                                     = mean(x⁺) − mean(λ⁺)/μ

Cost of a step: 1 round; up d + 2 floats a client (z, and two residuals for stopping), down d. Fixed point: xᵢ = x₀ = x*, λᵢ = ∇fᵢ(x*).
Parameters that are omitted it chooses itself, in a few more rounds (automatic.py). A client may miss rounds: its last z stands in.
X. Niu and E. Wei, "FedHybrid: A Hybrid Primal-Dual Algorithm Framework for Federated Optimization", arXiv:2106.01279, Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments import numeric, positive, whole
from ..clients.base import Client, Clients
from ..curvature import Derived
from ..status import InvalidConfig, refuse_unknown_keywords
from . import automatic, sampled
from .base import Algorithm, Array, Spec, Vec, number, residual_of


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
    return Local(x_start, lam_start, mu, automatic.mine(me, a), automatic.mine(me, b), me.curvature.prepare(me.f, mu))


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
    def implied(up: tuple) -> Vec:
        return state.mu * (up[0] - state.x0)

    local, (x0, disagreement, stationarity) = clients.mean(update, state.local, state.x0, stale=True, implied=implied)
    return FedHybridState(x0, local, residual_of(clients.n, state.mu, disagreement, stationarity), state.mu)


@refuse_unknown_keywords
def fedhybrid(
    *,
    mu: Any = None,
    a: Any = None,
    b: Any = None,
    steps: Any = None,
    local_steps: int | None = None,
    batch: int | None = None,
    reduced: bool = True,
    seed: int = 0,
    x: Any = None,
    lam: Any = None,
    x0: Any = None,
) -> Algorithm:
    """FedHybrid with penalty mu, primal step sizes a and dual step sizes b. What is omitted, it chooses itself (automatic.py).

    a, b   a number for all; a tuple (gradient, newton and diagonal); or an array with one per client
    steps  "theorem": the largest a and b for which Theorem 1 proves convergence, and the mu with the best proved rate
    local_steps  conjugate gradients of a gradient-type client in a round, at most, where a is omitted; default 10. 1: one step, in the
           paper's order, as where a is given
    batch  rows that a client samples in a step, for its gradient and its Hessian, from `seed`; mu, a and b must be given (sampled.py)
    reduced  with batch: the noise is taken out, and x₀ goes to x*. False: it ends near x*, as far as the noise carries it
    x, lam start values of the clients, one row per client (default: x₀, and zero)
    x0     the server's start value, used literally; omitted, it is the consistent mean(x) − mean(λ)/μ
    """
    if steps is not None and (not isinstance(steps, str) or steps != "theorem" or a is not None or b is not None):
        raise InvalidConfig(f"fedhybrid: steps may be 'theorem', and then a and b are omitted; it is {steps!r}.")
    if batch is not None:
        batch, seed = whole("fedhybrid: batch", batch), whole("fedhybrid: seed + 1", seed + 1) - 1
        if mu is None or a is None or b is None:
            raise InvalidConfig("fedhybrid: with batch give mu, a and b: curvatures of a few rows are no guide to them.")
    if local_steps is not None and whole("fedhybrid: local_steps", local_steps) > 1 and (a is not None or steps is not None):
        raise InvalidConfig("fedhybrid: with steps or a given, a client takes one step a round: omit a, or local_steps.")
    update_itself = automatic.Update((local_steps or automatic.LOCAL_STEPS) if a is None else 1)
    mu = None if mu is None else positive("fedhybrid: mu", mu)
    a, b = _step_sizes("a", a), _step_sizes("b", b)
    x, lam = _start_values("x", x, 2), _start_values("lam", lam, 2)
    x0 = _start_values("x0", x0, 1)

    def begin(clients: Clients, x0_given: Vec, at_gradient: bool) -> Any:
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
        given = Given(*jax.tree.map(number, (mu, a, b, x, lam)))
        if steps == "theorem":
            return _by_theorem(clients, base, given, literal=x0 is not None)
        if mu is None or a is None or b is None:
            return _automatic(clients, update_itself, base, given, literal=x0 is not None, at_gradient=at_gradient)
        x0_start = base
        if x0 is None and x is not None:
            x0_start = _mean(given.x)
        if x0 is None and lam is not None:
            x0_start = x0_start - _mean(given.lam) / mu
        if batch is None:
            local = clients.start(start, base, *given, bridged=(update, base))
        else:
            local = clients.start(sampled.start, base, *given, jnp.asarray(seed, jnp.int64), bridged=(sampling, base))
        return FedHybridState(x0_start, local, number(jnp.inf), given.mu)

    def init(clients: Clients, x0_given: Vec) -> Any:
        return begin(clients, x0_given, at_gradient=False)

    def warm(clients: Clients, x0_given: Vec) -> Any:
        return begin(clients, x0_given, at_gradient=True)

    sampling = sampled.Update(batch or 0, bool(reduced))
    parameters = {"mu": mu, "a": a, "b": b, "x": x, "lam": lam, "x0": x0}
    if batch is not None:
        chosen = parameters | {"batch": batch, "reduced": bool(reduced), "seed": seed}
        made = Algorithm(init, sampled.Step(sampling), (sampled.start, sampling), Spec("fedhybrid", chosen))
    elif steps == "theorem":
        made = Algorithm(init, step, (start, *THEOREM_ROUNDS, update), Spec("fedhybrid", parameters | {"steps": steps}))
    elif mu is None or a is None or b is None:
        on_client = automatic.start, automatic.measure, automatic.adopt, update_itself
        spec = Spec("fedhybrid", parameters | {"local_steps": local_steps})
        made = Algorithm(init, automatic.Step(update_itself), on_client, spec, warm=warm)
    else:
        made = Algorithm(init, step, (start, update), Spec("fedhybrid", parameters))
    return made._replace(bridges=True)


THEOREM_ROUNDS = (automatic.send_bounds, automatic.send_powers, automatic.admit)


class Given(NamedTuple):
    """What the caller chose, as data."""

    mu: Any
    a: Any
    b: Any
    x: Any
    lam: Any


def _automatic(
    clients: Clients, update: automatic.Update, base: Vec, given: Given, literal: bool, at_gradient: bool
) -> automatic.AutomaticState:
    rest = given.a, given.b, given.x, given.lam, jnp.asarray(at_gradient)
    local = clients.start(automatic.start, base, *rest, bridged=(update, base))
    local, x0, mu, ell = clients.call(automatic.begin, (), local, given.mu, base)
    zero, look = jnp.zeros((), jnp.int64), jnp.asarray(automatic.FIRST_LOOK, jnp.int64)
    return automatic.AutomaticState(base if literal else x0, local, number(jnp.inf), mu, given.mu, ell, zero, look)


def _by_theorem(clients: Clients, base: Vec, given: Given, literal: bool) -> FedHybridState:
    one = number(1.0)  # until the theorem's are known
    local = clients.start(start, base, one, one, one, given.x, given.lam, bridged=(update, base))
    local, x0, mu, rate = clients.call(automatic.theorem, (), local, given.mu)
    if not isinstance(rate, jax.core.Tracer) and not float(rate) > 0:
        raise InvalidConfig(
            "fedhybrid: Theorem 1 needs every fᵢ strongly convex with a bounded curvature. Give every coordinate a penalty (reg > 0, also "
            "for an intercept) and take a loss with bounds (not poisson or a custom one), or omit steps."
        )
    return FedHybridState(base if literal else x0, local, number(jnp.inf), mu)


def _mean(values: Array) -> Vec:
    """The mean over clients; sorted first, so that it is the same to the last bit in every order of the sites."""
    return jnp.sum(jnp.sort(values, axis=0), axis=0) / values.shape[0]


def _step_sizes(name: str, value: Any) -> Any:
    if value is None:
        return None
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
