"""The two ways to run an algorithm: `solve`, to a proved tolerance; and `run`, for researchers, exactly so many steps."""

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import checkpoint as files
from .algorithms import refuse_unsuited
from .algorithms.base import Algorithm
from .algorithms.fedhybrid import fedhybrid
from .algorithms.krylov import krylov
from .arguments import numeric, truth, whole
from .callbacks import Audience, Callback
from .checkpoint import Checkpoint
from .clients.base import Clients
from .clients.stacked import Stacked
from .driver import Driver, Limits
from .fleet import Fleet, expect_fleet
from .numerics import scope
from .progress import Progress
from .result import Result, Trace
from .status import InvalidConfig, refuse_unknown_keywords
from .watch import Rows

Array = Any


@refuse_unknown_keywords
def run(algorithm: Algorithm, clients: Clients, steps: int, x0: Any = None) -> tuple[Any, Trace]:
    """Exactly `steps` steps, without stopping: the last state, and a trace with one row per step."""
    _refuse_other(algorithm)
    if not hasattr(clients, "mean"):
        raise InvalidConfig(f"run: clients must be a transport such as fedhybrid.Stacked(fleet), not {type(clients).__name__}.")
    steps = whole("steps", steps)
    with scope():
        state = algorithm.init(clients, start_value(x0, clients.d))
        first = state.x0
        state, rows = clients.call(_steps, (algorithm.step, steps), state)
        if isinstance(rows.x0, jax.core.Tracer):  # inside somebody's vmap or jit
            return state, Trace(first, *rows)
        return state, Trace(np.asarray(first), *(np.asarray(column) for column in rows))


def _steps(clients: Clients, step: Callable, length: int, state: Any) -> tuple[Any, Rows]:
    def once(state: Any) -> tuple[Any, Rows]:
        state = step(clients, state)
        return state, Rows(state.x0, state.residual, *state.local.meter)

    return clients.scan(once, state, length)


@refuse_unknown_keywords
def solve(
    fleet: Fleet,
    algorithm: Algorithm | None = None,
    *,
    transport: Callable[[Fleet], Clients] = Stacked,
    tol: float = 1e-8,
    max_rounds: int = 10_000,
    max_seconds: float = math.inf,
    x0: Any = None,
    warm: Result | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Minimise Σfᵢ to a proved ‖x − x*‖ ≤ tol·max(1, ‖x‖).

    algorithm    default: fedhybrid.krylov(), which needs no parameter; where clients can be away, fedhybrid.fedhybrid()
    warm         the result of a similar fit, such as that before a site left or joined: the run starts from it
    max_rounds   bounds the rounds before the closing certificate, which takes a few more
    checkpoint   a directory: killed at any instant, the same call goes on from there and ends with the same bits
    progress     a bar in the terminal
    callbacks    whoever wants to hear how the run goes: fedhybrid.Callback

    Interrupted from the keyboard it gives back what it has, with Status.INTERRUPTED.
    """
    expect_fleet("solve", fleet)
    if algorithm is not None:
        _refuse_other(algorithm)
        refuse_unsuited(algorithm, fleet)
    if isinstance(tol, bool) or not isinstance(tol, int | float | np.floating) or not 0 < tol < math.inf:
        raise InvalidConfig(f"solve: tol must be a positive number, not {tol!r}.")
    if isinstance(max_seconds, bool) or not isinstance(max_seconds, int | float) or not max_seconds > 0:
        raise InvalidConfig(f"solve: max_seconds must be positive, not {max_seconds!r}.")
    if not callable(transport):
        raise InvalidConfig(f"solve: transport must be fedhybrid.Stacked or Serial, or another that takes a fleet, not {transport!r}.")
    limits = Limits(float(tol), whole("max_rounds", max_rounds), float(max_seconds))
    progress, audience = truth("solve: progress", progress), Audience(callbacks)
    place = None if checkpoint is None else Checkpoint.of(checkpoint)
    if warm is not None and (x0 is not None or not isinstance(warm, Result)):
        raise InvalidConfig("solve: warm must be the Result of an earlier fit, and then x0 is omitted.")
    clients = transport(fleet)
    if not hasattr(clients, "mean"):
        raise InvalidConfig("solve: transport made no clients of the fleet; give a class, or a call such as fedhybrid.absent(rate=0.1).")
    algorithm = algorithm or (fedhybrid() if clients.partial else krylov())
    if clients.partial and not algorithm.bridges:
        raise InvalidConfig(
            f"solve: {algorithm.spec.name} needs every client's reply in every round, and with this transport some are missing. "
            "fedhybrid() can do without, and so can admm and gd."
        )
    notes = () if warm is None else _who_changed(warm, fleet)
    with scope(), contextlib.ExitStack() as stack:
        start = start_value(x0 if warm is None else warm.x, fleet.d)
        if place is not None:
            stack.enter_context(files.lock(place.directory))
        if progress:
            audience.callbacks.append(stack.enter_context(Progress(limits.max_rounds)))
        audience.begin(_about(fleet, algorithm, clients, limits))
        driver = Driver(fleet, clients, algorithm, start, limits, place, audience, start_given=x0 is not None, warm=warm is not None)
        result = driver.finish()
        audience.end(result)
        return replace(result, notes=(*result.notes, *notes, *audience.notes))


def _about(fleet: Fleet, algorithm: Algorithm, clients: Clients, limits: Limits) -> dict[str, Any]:
    """A run in plain types, for whoever keeps a record of it."""
    return {
        "algorithm": algorithm.spec.name,
        "parameters": str(algorithm.spec),
        "loss": fleet.loss.name,
        "weighting": fleet.weighting,
        "sites": fleet.n,
        "rows": sum(site.A.shape[0] for site in fleet.sites),
        "d": fleet.d,
        "updates": ", ".join(sorted(set(fleet.updates))),
        "transport": clients.identity,
        "tol": limits.tol,
        "max_rounds": limits.max_rounds,
        "fingerprint": fleet.fingerprint,
    }


def _who_changed(warm: Result, fleet: Fleet) -> tuple[str, ...]:
    """Who left and who joined since; a fleet of other unknowns is refused."""
    if warm.x.shape != (fleet.d,):
        raise InvalidConfig(f"solve: warm has {warm.x.size} unknowns, but the fleet has {fleet.d}; columns and classes must be the same.")
    left = [name for name in warm.names if name not in fleet.names]
    joined = [name for name in fleet.names if name not in warm.names]
    both = (("left since the fit that this one starts from", left), ("joined since then", joined))
    return tuple(f"{words}: {', '.join(names)}." for words, names in both if names)


def _refuse_other(algorithm: Any) -> None:
    if not isinstance(algorithm, Algorithm):
        raise InvalidConfig("algorithm must be made by a call, such as fedhybrid.newton() or fedhybrid.fedhybrid(mu=…, a=…, b=…).")


def start_value(x0: Any, d: int) -> Array:
    if x0 is None:
        return jnp.zeros(d)
    start = x0 if isinstance(x0, jax.core.Tracer) else jnp.asarray(numeric("x0", x0))
    if start.shape != (d,):
        raise InvalidConfig(f"x0 has shape {start.shape}, but the fleet needs ({d},).")
    if not isinstance(start, jax.core.Tracer) and not bool(jnp.all(jnp.isfinite(start))):
        raise InvalidConfig("x0 must be finite.")
    return start
