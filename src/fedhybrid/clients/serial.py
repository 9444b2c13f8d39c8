"""One client at a time, in a plain Python loop: honest timing per client, and a debugger can step into the server's side."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..fleet import Fleet, expect_fleet
from ..status import InvalidConfig
from .base import Client, Local, Meter, decoded, floats
from .clock import Clock, digest, slowest, with_clock
from .work import with_flops

Array = Any


class Serial:
    """The fleet's clients one after the other, each function compiled once per size of client."""

    partial = False

    def __init__(self, fleet: Fleet, *, clock: Clock | None = None) -> None:
        expect_fleet("Serial", fleet)
        self.n, self.d = fleet.n, fleet.d
        self.rates = None if clock is None else clock.rates(fleet.n)
        with jax.enable_x64(True):
            self.clients: list[Client] = [jax.device_put(fleet.client(i, padded(fleet.sites[i].A.shape[0]))) for i in fleet.order]

    @property
    def identity(self) -> str:
        return "Serial" if self.rates is None else f"Serial, clock {digest(self.rates)}"

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Local:
        zero, none = np.int64(0), np.float64(0.0)
        if self.rates is None:
            return Local([_on_client(fn, me, *down) for me in self.clients], Meter(zero, zero, zero, none, none))
        parts, flops = zip(*(_counted(fn, me, *down) for me in self.clients), strict=True)
        seconds = slowest([self.rates.working(me.id, each) for me, each in zip(self.clients, flops, strict=True)])
        return Local(list(parts), Meter(zero, zero, zero, none, seconds))

    def mean(self, fn: Callable[..., Any], local: Local, *down: Any, stale: bool = False, implied: Any = None) -> tuple[Local, Any]:
        answers = [_round(fn, me, part, *down) for me, part in zip(self.clients, local.parts, strict=True)]
        parts, ups, flops = zip(*answers, strict=True)
        up = jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves) / self.n, *(_decoded(up) for up in ups))
        sent = [int(floats(up)) for up in ups]
        seconds = self._seconds(self.clients, flops, [each + floats(down) for each in sent])
        return Local(list(parts), local.meter.after_round(self.n, sum(sent), down, sum(flops), seconds)), up

    def _seconds(self, clients: list[Client], flops: Any, words: list[int]) -> Array | float:
        rates = self.rates
        return 0.0 if rates is None else slowest([rates.durations(me.id, *each) for me, *each in zip(clients, flops, words, strict=True)])

    def missed(self, local: Local) -> Array:
        return np.zeros((), np.int64)  # everybody is here

    def renew(self, local: Local) -> Local:
        return local

    def one(self, fn: Callable[..., Any], local: Local, who: Any, *down: Any) -> tuple[Local, Any]:
        k = next((k for k, me in enumerate(self.clients) if int(me.id) == int(who)), None)
        if k is None:
            raise InvalidConfig(f"There is no client number {int(who)}: they are numbered from 0 to {self.n - 1}.")
        part, up, flops = _round(fn, self.clients[k], local.parts[k], *down)
        parts = [*local.parts[:k], part, *local.parts[k + 1 :]]
        seconds = self._seconds([self.clients[k]], [flops], [int(floats(up)) + floats(down)])
        return Local(parts, local.meter.after_round(1, int(floats(up)), down, flops, seconds)), _decoded(up)

    def observe(self, fn: Callable[..., Any], local: Local, *down: Any) -> Any:
        seen = [_on_client(fn, me, part, *down) for me, part in zip(self.clients, local.parts, strict=True)]
        return self._in_site_order(seen)

    def durations(self, fn: Callable[..., Any], local: Local, *down: Any) -> Array:
        """Simulated seconds that every client would take for this round, in site order."""
        rates, words = with_clock(self.rates), floats(down)
        answers = [_round(fn, me, part, *down) for me, part in zip(self.clients, local.parts, strict=True)]
        each = [rates.durations(me.id, flops, floats(up) + words) for me, (_, up, flops) in zip(self.clients, answers, strict=True)]
        return self._in_site_order(each)

    def _in_site_order(self, parts: list) -> Any:
        site_order = np.argsort([int(me.id) for me in self.clients])
        return jax.tree.map(lambda *leaves: jnp.stack([leaves[k] for k in site_order]), *parts)

    def while_loop(self, cond: Callable, body: Callable, carry: Any) -> Any:
        while cond(carry):
            carry = body(carry)
        return carry

    def cond(self, pred: Any, yes: Callable, no: Callable, carry: Any) -> Any:
        return yes(carry) if pred else no(carry)

    def scan(self, body: Callable, carry: Any, length: int) -> tuple[Any, Any]:
        rows = []
        for _ in range(length):
            carry, row = body(carry)
            rows.append(row)
        return carry, jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *rows)

    def call(self, program: Callable, static: tuple, *args: Any) -> Any:
        return program(self, *static, *args)


@functools.partial(jax.jit, static_argnums=0)
def _on_client(fn: Callable[..., Any], me: Client, *args: Any) -> Any:
    return fn(me, *args)


@functools.partial(jax.jit, static_argnums=0)
def _counted(fn: Callable[..., Any], me: Client, *down: Any) -> tuple[Any, Any]:
    """The client's first state, and the flops that took."""
    first, flops = with_flops(fn, me, *down)
    return first, jnp.asarray(flops, jnp.float64)


@functools.partial(jax.jit, static_argnums=0)
def _round(fn: Callable[..., Any], me: Client, part: Any, *down: Any) -> tuple[Any, Any, Any]:
    """The client's next state, what it sends, and the flops that took."""
    (part_next, up), flops = with_flops(fn, me, part, *down)
    return part_next, up, jnp.asarray(flops, jnp.float64)


_decoded = jax.jit(decoded)


def padded(rows: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, …: few enough sizes to compile for, at most 1.5 times the rows."""
    power = 1 << max(0, rows - 1).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power
