"""The transport's side of the one idea: communication is a call inside the algorithm, and where the clients are is an argument.

    local, up = clients.mean(fn, local, *down)     # one round: everyone runs fn, the server gets the mean of what they send up

A client function is fn(me, local, *down) → (local, up). It is pure, sees one client, and is the only code that a client runs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

Array = Any
Up = Any
ClientFunction = Callable[..., tuple[Any, Up]]


class Client(NamedTuple):
    """What client i owns and never sends."""

    id: Array  # position in site order: picks its own a, b and start values
    f: Any  # its Problem
    curvature: Any  # its choice of update (static: clients of one choice are stacked together)


class Meter(NamedTuple):
    """What has been sent so far, counted where it happens: rounds, and floats summed over all clients."""

    rounds: Array
    floats_up: Array
    floats_down: Array

    def after_round(self, n: int, up: Up, down: Any) -> "Meter":
        """One round in which n clients each got `down` and sent `up`."""
        return Meter(self.rounds + 1, self.floats_up + n * floats(up), self.floats_down + n * floats(down))


class Local(NamedTuple):
    """The clients' states as the algorithm carries them: opaque to it. The meter travels beside them, also inside compiled loops."""

    parts: Any
    meter: Meter


def floats(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


class Clients(Protocol):
    """Where the clients are. Algorithms use nothing else of them."""

    n: int
    d: int

    def start(self, fn: Callable[..., Any], *down: Any) -> Local:
        """Every client's first local state, fn(me, *down). Sends nothing."""
        ...

    def mean(self, fn: ClientFunction, local: Local, *down: Any) -> tuple[Local, Up]:
        """One round. The mean is over every enrolled client."""
        ...

    def observe(self, fn: Callable[..., Any], local: Local, *down: Any) -> Any:
        """fn(me, local, *down) of every client, stacked in site order. For measurement: never counted, never in production."""
        ...

    def while_loop(self, cond: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any) -> Any: ...

    def cond(self, pred: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], carry: Any) -> Any: ...

    def scan(self, body: Callable[[Any], tuple[Any, Any]], carry: Any, length: int) -> tuple[Any, Any]:
        """`length` times carry, row = body(carry); the rows are stacked."""
        ...

    def call(self, program: Callable[..., Any], static: tuple, *args: Any) -> Any:
        """program(clients, *static, *args), compiled where the transport can; `static` must be hashable."""
        ...
