"""The transport's side of the one idea: communication is a call inside the algorithm, and where the clients are is an argument.

    local, up = clients.mean(fn, local, *down)     # one round: everyone runs fn, the server gets the mean of what they send up

A client function is fn(me, local, *down) → (local, up). It is pure, sees one client, and is the only code that a client runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from ..pytrees import pytree

Array = Any
Up = Any
ClientFunction = Callable[..., tuple[Any, Up]]


class Client(NamedTuple):
    """What client i owns and never sends."""

    id: Array  # position in site order: picks its own a, b and start values
    f: Any  # its Problem
    curvature: Any  # its choice of update (static: clients of one choice are stacked together)


class Meter(NamedTuple):
    """What it has cost so far, counted where it happens: rounds; floats and the clients' flops, summed over all clients; and
    simulated seconds, where the transport has a clock."""

    rounds: Array
    floats_up: Array
    floats_down: Array
    flops: Array
    seconds: Array

    def after_round(self, n: int, sent: Array | int, down: Any, flops: Array, seconds: Array | float) -> "Meter":
        """One round of so many seconds in which n clients each got `down`, and together sent so many floats and took so many flops."""
        up, got = self.floats_up + sent, self.floats_down + n * floats(down)
        return Meter(self.rounds + 1, up, got, self.flops + flops, self.seconds + seconds)


@pytree("payload", "count", static=("decode", "linear"))
@dataclass(frozen=True)
class Packed:
    """Something that a client sends in fewer numbers than it stands for: counted by its payload, averaged after decode(payload)."""

    payload: Any
    decode: Callable[[Any], Any]  # hashable, and equal for equal codes: a program is compiled for it
    count: Array | None = None  # how many of the payload's numbers are sent, where the others are zero and the server knows which
    linear: bool = False  # decode(mean of payloads) is the mean of decode(payload): a secure sum can be read


def decoded(up: Up) -> Up:
    """What was sent, as the server reads it."""
    return jax.tree.map(lambda part: part.decode(part.payload) if _is_packed(part) else part, up, is_leaf=_is_packed)


def summable(up: Up) -> bool:
    """Whether the mean of what is sent gives the mean of what it stands for."""
    return all(part.linear for part in jax.tree.leaves(up, is_leaf=_is_packed) if _is_packed(part))


def _is_packed(part: Any) -> bool:
    return isinstance(part, Packed)


class Local(NamedTuple):
    """The clients' states as the algorithm carries them: opaque to it. The meter travels beside them, also inside compiled loops."""

    parts: Any
    meter: Meter


def floats(tree: Any) -> Any:
    """How many numbers a message is; a tracer where that depends on data."""
    parts = jax.tree.leaves(tree, is_leaf=_is_packed)
    return sum(part.count if _is_packed(part) and part.count is not None else most_floats(part) for part in parts)


def most_floats(tree: Any) -> int:
    """How many numbers a message can be."""
    parts = jax.tree.leaves(tree, is_leaf=_is_packed)
    return sum(leaf.size for part in parts for leaf in jax.tree.leaves(part.payload if _is_packed(part) else part))


class Clients(Protocol):
    """Where the clients are. Algorithms use nothing else of them."""

    n: int
    d: int
    partial: bool  # whether replies can be missing

    @property
    def identity(self) -> str:
        """For checkpoints: a run goes on only where it began."""
        ...

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Local:
        """Every client's first local state, fn(me, *down). Sends nothing.

        `bridged`: (fn, *down) of the round, as it will be called with stale=True.
        """
        ...

    def mean(
        self, fn: ClientFunction, local: Local, *down: Any, stale: bool = False, implied: Callable[[Up], Any] | None = None
    ) -> tuple[Local, Up]:
        """One round. The mean is over every enrolled client.

        stale    where a client's reply is missing its last one stands in, and its state stays. Otherwise the round waits for all
        implied  what a reply says of its sender's gradient: a federation can refuse one that says too much
        """
        ...

    def renew(self, local: Local) -> Local:
        """What was replied so far answers another question: the next round waits for everyone, stale or not."""
        ...

    def missed(self, local: Local) -> Array:
        """How many replies were missing in the last round."""
        ...

    def one(self, fn: ClientFunction, local: Local, who: Any, *down: Any) -> tuple[Local, Up]:
        """One round with client number `who` alone. What it sends is seen as it is: no secure sum can hide it."""
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
