"""An algorithm under a researcher's eye: the optimality gap after every step, beside what it has cost.

gap = (F(x₀) − F*) / (F(start) − F*)
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .algorithms.base import Algorithm, nothing
from .algorithms.krylov import krylov
from .algorithms.newton import newton
from .clients.base import Client, Clients
from .clients.stacked import Stacked
from .fleet import Fleet
from .losses import Huber
from .numerics import scope
from .solve import solve
from .status import InvalidData, Status

Array = Any
DIVERGED = 1e3  # a gap this large, or one that is not a number
BLOCK = 20  # steps of one compiled program
FLOOR = 1e-13  # gaps below are rounding
TINY = float(np.finfo(float).tiny)  # instead of a start that is the optimum already


class Optimum(NamedTuple):
    x: np.ndarray
    value: float


class Scale(NamedTuple):
    """What a gap is measured by: F*, and F(start) − F*."""

    F_star: Array
    drop: Array


class Curve(NamedTuple):
    """A run, measured: one entry per step, counts cumulative; floats and flops are summed over all clients."""

    gap: np.ndarray
    rounds: np.ndarray
    floats_up: np.ndarray
    floats_down: np.ndarray
    flops: np.ndarray
    seconds: np.ndarray  # simulated; 0 without a clock

    def first_below(self, tol: float, cost: str = "rounds") -> float:
        """Rounds, or another cost, after which the gap was first at or below tol; inf if never."""
        below = np.flatnonzero(self.gap <= tol)
        return float(getattr(self, cost)[below[0]]) if len(below) else math.inf


def optimum(fleet: Fleet, clients: Clients | None = None) -> Optimum:
    """The pooled minimiser of Σfᵢ and its value, by Newton's method on the summed Hessians, as exactly as floats allow.

    Huber's loss has no curvature where all residuals are large, and Newton's method may stay there: there `krylov` finds it.
    """
    clients = Stacked(fleet) if clients is None else clients
    method = krylov() if isinstance(fleet.loss, Huber) else newton()
    result = solve(fleet, method, transport=lambda _: clients, tol=1e-12, max_rounds=1000)
    if result.status in (Status.NO_MINIMISER, Status.DIVERGED, Status.NONFINITE):
        raise InvalidData(f"There is no optimum to measure from. {result.message}")
    return Optimum(result.x, objective(clients, result.x))


def objective(clients: Clients, x: Any) -> float:
    """F(x) = Σfᵢ(x), seen from outside: no round is counted."""
    with scope():
        return float(jnp.sum(clients.observe(_own_value, clients.start(nothing), jnp.asarray(x, jnp.float64))))


def scale(clients: Clients, best: Optimum, start: Array) -> Scale:
    drop = max(objective(clients, start) - best.value, TINY)
    return Scale(jnp.asarray(best.value, jnp.float64), jnp.asarray(drop, jnp.float64))


def steps(clients: Clients, step: Callable, length: int, state: Any, by: Scale) -> tuple[Any, Curve]:
    """`length` steps, measured: for clients.call, or inside a vmap."""

    def once(state: Any) -> tuple[Any, Curve]:
        state = step(clients, state)
        gap = (jnp.sum(clients.observe(_own_value, state.local, state.x0)) - by.F_star) / by.drop
        return state, Curve(gap, *state.local.meter)

    return clients.scan(once, state, length)


def measure(
    algorithm: Algorithm,
    clients: Clients,
    best: Optimum,
    *,
    rounds: int = 1000,
    until: float = FLOOR,
    seconds: float = math.inf,
    block: int = BLOCK,
    start: Any = None,
) -> tuple[Curve, float]:
    """A run to gap ≤ until, or until it has taken so many rounds or simulated seconds or diverged; and the seconds of a step, without
    compilation."""
    with scope():
        x0 = jnp.zeros(clients.d) if start is None else jnp.asarray(start, jnp.float64)
        by = scale(clients, best, x0)
        state = algorithm.init(clients, x0)
        blocks: list[Curve] = []
        clients.call(steps, (algorithm.step, block), state, by)  # compiles
        began = time.perf_counter()
        going = True
        while going:
            state, rows = clients.call(steps, (algorithm.step, block), state, by)
            blocks.append(Curve(*(np.asarray(column) for column in rows)))
            last = blocks[-1]
            going = until < last.gap[-1] < DIVERGED and last.rounds[-1] < rounds and last.seconds[-1] < seconds
        taken = time.perf_counter() - began
        curve = Curve(*(np.concatenate(columns) for columns in zip(*blocks, strict=True)))
        return _cut(curve, rounds, until), taken / len(curve.gap)


def _cut(curve: Curve, rounds: int, until: float) -> Curve:
    """Up to the first gap at or below `until`, within so many rounds, and without what is not a number."""
    with np.errstate(invalid="ignore"):
        good = np.isfinite(curve.gap) & (curve.gap < DIVERGED) & (curve.rounds <= rounds)
    length = len(good) if good.all() else max(1, int(np.argmin(good)))
    below = np.flatnonzero(curve.gap[:length] <= until)
    length = int(below[0]) + 1 if len(below) else length
    return Curve(*(column[:length] for column in curve))


def _own_value(me: Client, local: Any, x: Any) -> Any:
    return me.f.value(x)
