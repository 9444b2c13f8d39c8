"""Clients of which every one could do either update, and does the one it has chosen: who does what is data, and one program serves all
choices.

A round takes the longest of the prices that the clients' functions are given.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..curvature import UPDATES
from ..problem import Problem
from .base import Client, Local, Meter, decoded, most_floats

Array = Any


class Prices(NamedTuple):
    """Seconds of every client function: `functions[k]` costs site i `seconds[k][0, i]` by gradient and `seconds[k][1, i]` by Newton."""

    functions: tuple[Callable[..., Any], ...]  # the start first
    seconds: tuple[np.ndarray, ...]

    @property
    def gradient(self) -> np.ndarray:
        return self._step(0)

    @property
    def newton(self) -> np.ndarray:
        return self._step(1)

    def _step(self, kind: int) -> np.ndarray:
        """Seconds of the rounds in which the two differ, one by one; of all rounds, where none differs."""
        differ = [each for each in self.seconds[1:] if np.any(each[0] != each[1])]
        return np.sum([each[kind] for each in differ or self.seconds[1:]], axis=0)


class Rehearsal:
    """A transport whose clients run both updates, each on a state of its own, and answer by the one they have chosen."""

    partial, identity = False, "Rehearsal"

    def __init__(self, f: Problem, d: int, does_newton: Any, prices: Prices | None) -> None:
        self.f, self.d, self.n, self.does_newton = f, d, len(does_newton), jnp.asarray(does_newton)
        self.functions = () if prices is None else prices.functions
        self.seconds = () if prices is None else tuple(jnp.asarray(each) for each in prices.seconds)
        self.asked: dict[Callable[..., Any], tuple] = {}

    def _each(self, fn: Callable[..., Any], *mine: Any) -> tuple[Any, Any]:
        """fn(me, *mine) of every client, by gradient and by Newton."""
        ids = jnp.arange(self.n, dtype=jnp.int32)
        both = mine or ((), ())

        def by(update: str, parts: Any) -> Any:
            return jax.vmap(lambda id, f, part: fn(Client(id, f, UPDATES[update]), *part))(ids, self.f, parts)

        return by("gradient", both[0]), by("newton", both[1])

    def _chosen(self, by_gradient: Any, by_newton: Any) -> Any:
        def pick(gradient: Array, newton: Array) -> Array:
            return jnp.where(self.does_newton.reshape(-1, *(1,) * (newton.ndim - 1)), newton, gradient)

        return jax.tree.map(pick, by_gradient, by_newton)

    def _prices_of(self, fn: Callable[..., Any], down: tuple) -> Array:
        """Seconds of every client by its choice."""
        if fn in self.functions:
            return self._chosen(*self.seconds[self.functions.index(fn)])
        self.asked.setdefault(fn, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), down))
        return jnp.zeros(self.n)

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Local:
        return self.call(_start, (fn,), *down)

    def renew(self, local: Local) -> Local:
        return local

    def missed(self, local: Local) -> Array:
        return np.zeros((), np.int64)  # everybody is here

    def mean(self, fn: Callable[..., Any], local: Local, *down: Any, stale: bool = False, implied: Any = None) -> tuple[Local, Any]:
        parts, up, sent = self._round(fn, local, down)
        up = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / self.n, up)
        return Local(parts, local.meter.after_round(self.n, self.n * sent, down, 0.0, jnp.max(self._prices_of(fn, down)))), up

    def one(self, fn: Callable[..., Any], local: Local, who: Any, *down: Any) -> tuple[Local, Any]:
        parts, up, sent = self._round(fn, local, down)
        moved = jax.tree.map(lambda before, after: before.at[who].set(after[who]), local.parts, parts)
        meter = local.meter.after_round(1, sent, down, 0.0, self._prices_of(fn, down)[who])
        return Local(moved, meter), jax.tree.map(lambda leaf: leaf[who], up)

    def _round(self, fn: Callable[..., Any], local: Local, down: tuple) -> tuple[Any, Any, int]:
        sent: list[int] = []

        def answer(me: Client, part: Any) -> tuple[Any, Any]:
            part_next, up = fn(me, part, *down)
            sent[:] = [most_floats(up)]
            return part_next, decoded(up)

        (gradient, up_gradient), (newton, up_newton) = self._each(answer, *((part,) for part in local.parts))
        return (gradient, newton), self._chosen(up_gradient, up_newton), sent[0]

    def observe(self, fn: Callable[..., Any], local: Local, *down: Any) -> Any:
        return self.call(_observe, (fn,), local, *down)

    def while_loop(self, cond: Callable, body: Callable, carry: Any) -> Any:
        return lax.while_loop(cond, body, carry)

    def cond(self, pred: Any, yes: Callable, no: Callable, carry: Any) -> Any:
        return lax.cond(pred, yes, no, carry)

    def scan(self, body: Callable, carry: Any, length: int) -> tuple[Any, Any]:
        return lax.scan(lambda state, _: body(state), carry, None, length=length)

    def call(self, program: Callable, static: tuple, *args: Any) -> Any:
        if not self.functions or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self, args))):
            return program(self, *static, *args)
        return _compiled(program, static, self, *args)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(program: Callable, static: tuple, clients: Rehearsal, *args: Any) -> Any:
    return program(clients, *static, *args)


def _start(clients: Rehearsal, fn: Callable, *down: Any) -> Local:
    zero, none = jnp.zeros((), jnp.int64), jnp.zeros((), jnp.float64)
    seconds = jnp.max(clients._prices_of(fn, down))
    return Local(clients._each(lambda me: fn(me, *down)), Meter(zero, zero, zero, none, seconds))


def _observe(clients: Rehearsal, fn: Callable, local: Local, *down: Any) -> Any:
    return clients._chosen(*clients._each(lambda me, part: fn(me, part, *down), *((part,) for part in local.parts)))


def _flatten(clients: Rehearsal) -> tuple[tuple, tuple]:
    return (clients.f, clients.does_newton, clients.seconds), (clients.n, clients.d, clients.functions)


def _unflatten(static: tuple, children: tuple) -> Rehearsal:
    clients = object.__new__(Rehearsal)
    clients.n, clients.d, clients.functions = static
    clients.f, clients.does_newton, clients.seconds = children
    clients.asked = {}
    return clients


jax.tree_util.register_pytree_node(Rehearsal, _flatten, _unflatten)
