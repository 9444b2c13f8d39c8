"""Simulated seconds: how long a run would take on a fleet whose clients have given speeds and links.

    client i    flopsᵢ/speedᵢ + 2·latencyᵢ + (floats down + floats up)ᵢ/bandwidthᵢ
    round       as long as its slowest client: the server waits for everyone

The flops are those that the transport counts (work.py), among them the rows that a client is padded with. What clients do before the
first round takes its time too, and nobody talks; what the server does, and `observe`, take none. Seconds change no other number.
"""

import hashlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..arguments import numeric
from ..status import InvalidConfig, refuse_unknown_keywords

if TYPE_CHECKING:
    from ..fleet import Fleet
    from .base import Clients

Array = Any


class Rates(NamedTuple):
    """Speeds and links, one entry per client in site order: data, so that others need no other program."""

    speed: Array
    latency: Array
    bandwidth: Array

    def durations(self, who: Array, flops: Array, floats: Array | int) -> Array:
        """Seconds from the server's question to the answer of the clients numbered `who`, each with its own flops and floats."""
        return flops / self.speed[who] + (2.0 * self.latency[who] + jnp.asarray(floats, jnp.float64) / self.bandwidth[who])

    def working(self, who: Array, flops: Array) -> Array:
        """The same without a word to anybody."""
        return flops / self.speed[who]


class Clock:
    """Speeds and links of a fleet's clients; as a transport, all clients in this process, with simulated seconds.

    speed      flops a second
    latency    seconds that a message is on its way, each way
    bandwidth  floats a second, both ways together

    Each a number, or one per client in site order; a speed or a bandwidth may be infinite.

        fh.solve(fleet, transport=fh.Clock(speed=[1e9, 1e8], latency=0.05, bandwidth=1e6)).seconds

    `fh.Serial(fleet, clock=…)` keeps the same time. A round lasts as long as its slowest client, and has no deadline: a transport that
    closes rounds earlier can ask `clients.durations(fn, local, *down)` who would be late.
    """

    @refuse_unknown_keywords
    def __init__(self, *, speed: Any, latency: Any = 0.0, bandwidth: Any = math.inf) -> None:
        self.speed = _read("speed", speed, lambda value: value > 0)
        self.latency = _read("latency", latency, lambda value: (value >= 0) & (value < np.inf))
        self.bandwidth = _read("bandwidth", bandwidth, lambda value: value > 0)

    def __call__(self, fleet: "Fleet") -> "Clients":
        from .stacked import Stacked  # here, as a transport knows the clock

        return Stacked(fleet, clock=self)

    def rates(self, n: int) -> Rates:
        """One entry for each of n clients."""
        columns = {"speed": self.speed, "latency": self.latency, "bandwidth": self.bandwidth}
        for name, column in columns.items():
            if column.ndim == 1 and len(column) != n:
                raise InvalidConfig(f"clock: {name} has {len(column)} entries for {n} clients; give one number for all, or one per client.")
        return Rates(**{name: np.broadcast_to(column, n).copy() for name, column in columns.items()})

    def __repr__(self) -> str:
        return f"Clock(speed={self.speed.tolist()}, latency={self.latency.tolist()}, bandwidth={self.bandwidth.tolist()})"


def with_clock(rates: Rates | None) -> Rates:
    if rates is None:
        raise InvalidConfig("durations: this transport has no clock; make it with clock=fedhybrid.Clock(speed=…).")
    return rates


def digest(rates: Rates) -> str:
    return hashlib.sha256(b"".join(np.asarray(column).tobytes() for column in rates)).hexdigest()


def slowest(durations: list[Array]) -> Array:
    """What a round lasts."""
    return jnp.max(jnp.concatenate([jnp.ravel(part) for part in durations]))


def _read(name: str, value: Any, allowed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    array = numeric(f"clock: {name}", value)
    if array.ndim > 1 or array.size == 0 or not np.all(allowed(array)):
        what = "not negative, and finite" if name == "latency" else "positive"
        raise InvalidConfig(f"clock: {name} must be {what}: a number, or one per client.")
    return array
