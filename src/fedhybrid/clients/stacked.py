"""All clients in this process, as one array program per group: vmapped, compiled, on a CPU or a GPU."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..fleet import Fleet
from .base import Client, Local, Meter

Array = Any
CACHE = 2**20  # bytes: on a CPU clients run in blocks of this size, so that a matrix used twice in a step is read from memory once
WORTH_BLOCKING = 2**23


class Stacked:
    """Every group of the fleet as one vmapped program."""

    def __init__(self, fleet: Fleet) -> None:
        self.n, self.d, self.names = fleet.n, fleet.d, fleet.names
        with jax.enable_x64(True):
            # group by group: the host's copy of one is gone before the next is made
            self.groups = tuple(jax.tree.map(jnp.asarray, fleet.stack(group)) for group in fleet.groups)

    def _each(self, fn: Callable[..., Any], me: Client, local: tuple, down: tuple) -> Any:
        """fn of every client in a group."""
        count = me.id.shape[0]
        size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves((me, local)))
        if jax.default_backend() != "cpu" or size <= WORTH_BLOCKING or count == 1:
            return jax.vmap(lambda me, local: fn(me, *local, *down))(me, local)
        block = max(1, CACHE * count // size)
        return lax.map(lambda one: fn(one[0], *one[1], *down), (me, local), batch_size=block)

    def start(self, fn: Callable[..., Any], *down: Any) -> Local:
        return self.call(_start, (fn,), *down)

    def mean(self, fn: Callable[..., Any], local: Local, *down: Any) -> tuple[Local, Any]:
        pairs = [self._each(fn, me, (part,), down) for me, part in zip(self.groups, local.parts, strict=True)]
        parts, ups = zip(*pairs, strict=True)
        up = jax.tree.map(lambda *leaves: jnp.sum(jnp.concatenate(leaves), axis=0) / self.n, *ups)
        return Local(parts, local.meter.after_round(self.n, up, down)), up

    def observe(self, fn: Callable[..., Any], local: Local, *down: Any) -> Any:
        return self.call(_observe, (fn,), local, *down)

    def while_loop(self, cond: Callable, body: Callable, carry: Any) -> Any:
        return lax.while_loop(cond, body, carry)

    def cond(self, pred: Any, yes: Callable, no: Callable, carry: Any) -> Any:
        return lax.cond(pred, yes, no, carry)

    def scan(self, body: Callable, carry: Any, length: int) -> tuple[Any, Any]:
        return lax.scan(lambda state, _: body(state), carry, None, length=length)

    def call(self, program: Callable, static: tuple, *args: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self, args))):
            return program(self, *static, *args)  # inside somebody's jit or vmap: a cache of our own would keep their tracers
        return _compiled(program, static, self, *args)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(program: Callable, static: tuple, clients: Stacked, *args: Any) -> Any:
    # The fleet's arrays are arguments, never constants: XLA would fold whole Hessians of constants while compiling.
    return program(clients, *static, *args)


def _start(clients: Stacked, fn: Callable, *down: Any) -> Local:
    zero = jnp.zeros((), jnp.int64)
    return Local(tuple(clients._each(fn, me, (), down) for me in clients.groups), Meter(zero, zero, zero))


def _observe(clients: Stacked, fn: Callable, local: Local, *down: Any) -> Any:
    parts = [clients._each(fn, me, (part,), down) for me, part in zip(clients.groups, local.parts, strict=True)]
    site_order = jnp.argsort(jnp.concatenate([me.id for me in clients.groups]))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[site_order], *parts)


def _flatten(clients: Stacked) -> tuple[tuple, tuple]:
    return (clients.groups,), (clients.n, clients.d, clients.names)


def _unflatten(static: tuple, children: tuple) -> Stacked:
    clients = object.__new__(Stacked)
    clients.n, clients.d, clients.names = static
    (clients.groups,) = children
    return clients


jax.tree_util.register_pytree_node(Stacked, _flatten, _unflatten)
