"""Steps of an algorithm under observation, as one compiled loop: rows for the trace, and a reason to stop as soon as there is one.

The loop stops for itself, not at the end of some block of rounds; so how many steps a call is allowed changes nothing but when the
caller gets to look.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .algorithms.base import number
from .clients.base import Clients

Array = Any
GROWN = 1e3  # a residual this many times its best …
IN_A_ROW = 20  # … for this many rounds in a row is divergence,
HOPELESS = 1e8  # and this many times at once
PATIENCE = 200  # rounds without 1 % of progress before somebody should look whether this is the floor of rounding


class Halt(IntEnum):
    NO = 0
    ASK = 1  # the residual is small enough to ask for a certificate
    DIVERGED = 2
    NONFINITE = 3
    STALLED = 4


def norm(x: Array) -> Array:
    """‖x‖, also where squares would overflow or vanish."""
    largest = jnp.max(jnp.abs(x), initial=0.0)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return scale * jnp.linalg.norm(x / scale)


class Watch(NamedTuple):
    """What the server remembers of the residual, and what it waits for."""

    steps: Array
    best: Array  # least residual so far, and the x₀ it was measured at
    best_x0: Array
    largest: Array
    grown: Array  # rounds in a row above GROWN·best
    mark: Array  # residual at the last progress of 1 %, and rounds since
    idle: Array
    patience: Array
    ask: Array  # ask for a certificate when residual ≤ ask·max(1, ‖x₀‖) …
    ask_relative: Array  # … or ≤ ask_relative·largest
    halt: Array

    @staticmethod
    def begin(x0: Array, ask: float, ask_relative: float) -> "Watch":
        inf, zero = number(jnp.inf), jnp.zeros((), jnp.int64)
        patience = jnp.asarray(PATIENCE, jnp.int64)
        return Watch(zero, inf, x0, jnp.zeros(()), zero, inf, zero, patience, number(ask), number(ask_relative), zero)


class Rows(NamedTuple):
    x0: Array
    residual: Array
    rounds: Array
    floats_up: Array
    floats_down: Array
    flops: Array
    seconds: Array


def advance(
    clients: Clients, step: Callable[[Clients, Any], Any], capacity: int, state: Any, watch: Watch, most: Array, max_rounds: Array
) -> tuple[Any, Watch, Rows, Array]:
    """Up to `most` ≤ capacity steps; fewer if there is a reason to stop. Returns also the rows and how many of them are filled."""
    d = state.x0.shape[0]
    counts = jnp.zeros(capacity, jnp.int64)
    rows = Rows(jnp.zeros((capacity, d)), jnp.zeros(capacity), counts, counts, counts, jnp.zeros(capacity), jnp.zeros(capacity))

    def going(carry: tuple) -> Array:
        state, watch, _, filled = carry
        return (watch.halt == Halt.NO) & (filled < most) & (state.local.meter.rounds < max_rounds)

    def once(carry: tuple) -> tuple:
        state, watch, rows, filled = carry
        state_next = step(clients, state)
        watch = _look(watch, state.x0, state_next.x0, state_next.residual)
        rows = _noted(rows, filled, Rows(state_next.x0, state_next.residual, *state_next.local.meter))
        return state_next, watch, rows, jnp.where(watch.halt == Halt.NONFINITE, filled, filled + 1)  # such a row is not kept

    return clients.while_loop(going, once, (state, watch, rows, jnp.zeros((), jnp.int64)))


@jax.jit  # where the loop is Python's, one call in place of many
def _noted(rows: Rows, filled: Array, row: Rows) -> Rows:
    return jax.tree.map(lambda column, entry: column.at[filled].set(entry), rows, row)


@jax.jit
def _look(watch: Watch, x0_before: Array, x0: Array, r: Array) -> Watch:
    finite = jnp.isfinite(r) & jnp.all(jnp.isfinite(x0))
    better = finite & (r < watch.best)
    best = jnp.where(better, r, watch.best)
    largest = jnp.where(finite, jnp.maximum(watch.largest, r), watch.largest)
    progress = finite & (r < 0.99 * watch.mark)
    idle = jnp.where(progress, 0, watch.idle + 1)

    wanted = (r <= watch.ask * jnp.maximum(1.0, norm(x0))) | (r <= watch.ask_relative * largest)
    # below what is wanted anyway, growth means nothing: a start at the optimum has a residual of rounding errors
    best_x0 = jnp.where(better, x0_before, watch.best_x0)
    reference = jnp.maximum(best, watch.ask * jnp.maximum(1.0, norm(best_x0)))
    grown = jnp.where(r > GROWN * reference, watch.grown + 1, 0)
    diverged = (grown >= IN_A_ROW) | (r > HOPELESS * reference)
    stalled = idle >= watch.patience

    reasons = ((stalled, Halt.STALLED), (wanted, Halt.ASK), (diverged, Halt.DIVERGED), (~finite, Halt.NONFINITE))
    halt = jnp.zeros((), jnp.int64)
    for reason, code in reasons:  # the last that applies
        halt = jnp.where(reason, int(code), halt)
    return Watch(
        steps=watch.steps + jnp.where(finite, 1, 0),
        best=best,
        best_x0=best_x0,
        largest=largest,
        grown=grown,
        mark=jnp.where(progress, r, watch.mark),
        idle=idle,
        patience=watch.patience,
        ask=watch.ask,
        ask_relative=watch.ask_relative,
        halt=halt,
    )
