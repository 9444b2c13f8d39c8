"""All clients in this process, as one array program per group: vmapped, compiled, on a CPU or a GPU."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..fleet import Fleet, expect_fleet
from ..status import InvalidConfig
from .base import Client, Local, Meter, decoded, floats
from .clock import Clock, Rates, digest, slowest, with_clock
from .work import with_flops

Array = Any
CACHE = 2**21  # bytes: on a CPU clients run in blocks of this size, so that a matrix used twice in a step is read from memory once
WORTH_BLOCKING = 2**23


class Stacked:
    """Every group of the fleet as one vmapped program; with a clock, `trace.seconds` are simulated seconds."""

    partial = False
    rates: Rates | None

    def __init__(self, fleet: Fleet, *, clock: Clock | None = None) -> None:
        expect_fleet("Stacked", fleet)
        self.n, self.d = fleet.n, fleet.d
        with jax.enable_x64(True):
            self.rates = None if clock is None else jax.device_put(clock.rates(fleet.n))
            # one group after the other: on a GPU the host's copy of one is gone before the next is made; on a CPU there is no copy
            self.groups = tuple(jax.device_put(fleet.stack(group)) for group in fleet.groups)

    @property
    def identity(self) -> str:
        return "Stacked" if self.rates is None else f"Stacked, clock {digest(self.rates)}"

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Local:
        return self.call(_start, (fn,), *down)

    def mean(self, fn: Callable[..., Any], local: Local, *down: Any, stale: bool = False, implied: Any = None) -> tuple[Local, Any]:
        answers = [_each_changes(fn, me, part, down) for me, part in zip(self.groups, local.parts, strict=True)]
        parts, ups, flops, sent = zip(*answers, strict=True)
        up = jax.tree.map(lambda *leaves: jnp.sum(jnp.concatenate(leaves), axis=0) / self.n, *ups)
        seconds = self._seconds([me.id for me in self.groups], list(flops), [each + floats(down) for each in sent])
        total, work = (sum(jnp.sum(part) for part in counts) for counts in (sent, flops))
        return Local(parts, local.meter.after_round(self.n, total, down, work, seconds)), up

    def _seconds(self, who: list[Array], flops: list[Array], words: list[Array]) -> Array | float:
        rates = self.rates
        return 0.0 if rates is None else slowest([rates.durations(*each) for each in zip(who, flops, words, strict=True)])

    def missed(self, local: Local) -> Array:
        return np.zeros((), np.int64)  # everybody is here

    def renew(self, local: Local) -> Local:
        return local

    def one(self, fn: Callable[..., Any], local: Local, who: Any, *down: Any) -> tuple[Local, Any]:
        if not isinstance(who, jax.core.Tracer) and not 0 <= int(who) < self.n:
            raise InvalidConfig(f"There is no client number {int(who)}: they are numbered from 0 to {self.n - 1}.")
        who = jnp.asarray(who, self.groups[0].id.dtype)

        def in_group(g: int) -> Callable:
            def answer(parts: tuple) -> tuple:
                me, part = self.groups[g], parts[g]
                k = jnp.argmax(me.id == who)
                (part_next, up), flops = with_flops(fn, *jax.tree.map(lambda leaf: leaf[k], (me, part)), *down)
                changed = jax.tree.map(lambda everyone, mine: everyone.at[k].set(mine), part, part_next)
                return (*parts[:g], changed, *parts[g + 1 :]), decoded(up), jnp.asarray(flops, jnp.float64), _count(up)

            return answer

        # which group holds the client is data, so that another fleet of the same shapes needs no other program
        group = jnp.argmax(jnp.stack([jnp.any(me.id == who) for me in self.groups]))
        parts, up, flops, sent = lax.switch(group, [in_group(g) for g in range(len(self.groups))], local.parts)
        seconds = self._seconds([who], [flops], [sent + floats(down)])
        return Local(parts, local.meter.after_round(1, sent, down, flops, seconds)), up

    def observe(self, fn: Callable[..., Any], local: Local, *down: Any) -> Any:
        return self.call(_observe, (fn,), local, *down)

    def durations(self, fn: Callable[..., Any], local: Local, *down: Any) -> Array:
        """Simulated seconds that every client would take for this round, in site order."""
        return self.call(_durations, (fn,), local, *down)

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


def _each(fn: Callable[..., Any], *stacked: Any) -> Any:
    """fn of every client in a group."""
    leaves = jax.tree.leaves(stacked)
    count = leaves[0].shape[0]
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    block = max(1, CACHE * count // size)
    too_large = size > 2 * CACHE * count  # a client that does not fit gains nothing
    if jax.default_backend() != "cpu" or size <= WORTH_BLOCKING or too_large:
        return jax.vmap(fn)(*stacked)

    def run_block(start: Array) -> Any:
        return jax.vmap(fn)(*jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, block), stacked))

    # The last block begins early enough to be whole: a client in two blocks gives the same twice, and no table is copied to fit.
    starts = np.minimum(np.arange(0, count, block), count - block)
    blocks = lax.map(run_block, jnp.asarray(starts))
    rest = count - block * (len(starts) - 1)

    def join(leaf: Array) -> Array:
        return jnp.concatenate([leaf[:-1].reshape(-1, *leaf.shape[2:]), leaf[-1, block - rest :]])

    return jax.tree.map(join, blocks)


def _count(up: Any) -> Array:
    return jnp.asarray(floats(up), jnp.int64)


def _each_changes(fn: Callable[..., Any], me: Client, local: Any, down: tuple) -> tuple[Any, Any, Array, Array]:
    """fn of every client in a group: next local, up as the server reads it, flops, and how many floats each sends.

    What fn hands back as it got it, such as a cached inverse, is not copied.
    """
    unchanged: list[bool] = []

    def changes(me: Client, local: Any) -> Any:
        (local_next, up), flops = with_flops(fn, me, local, *down)
        pairs = list(zip(jax.tree.leaves(local), jax.tree.leaves(local_next), strict=True))
        unchanged[:] = [before is after for before, after in pairs]
        return [after for before, after in pairs if before is not after], decoded(up), jnp.asarray(flops, jnp.float64), _count(up)

    changed, up, flops, sent = _each(changes, me, local)
    leaves, structure = jax.tree.flatten(local)
    rest = iter(changed)
    leaves = [leaf if same else next(rest) for leaf, same in zip(leaves, unchanged, strict=True)]
    return jax.tree.unflatten(structure, leaves), up, flops, sent


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(program: Callable, static: tuple, clients: Stacked, *args: Any) -> Any:
    # The fleet's arrays are arguments, never constants: XLA would fold whole Hessians of constants while compiling.
    return program(clients, *static, *args)


def _start(clients: Stacked, fn: Callable, *down: Any) -> Local:
    zero, none = jnp.zeros((), jnp.int64), jnp.zeros((), jnp.float64)
    if clients.rates is None:
        return Local(tuple(_each(lambda me: fn(me, *down), me) for me in clients.groups), Meter(zero, zero, zero, none, none))

    def counted(me: Client) -> tuple[Any, Array]:
        first, flops = with_flops(fn, me, *down)
        return first, jnp.asarray(flops, jnp.float64)

    parts, flops = zip(*(_each(counted, me) for me in clients.groups), strict=True)
    seconds = slowest([clients.rates.working(me.id, each) for me, each in zip(clients.groups, flops, strict=True)])
    return Local(parts, Meter(zero, zero, zero, none, seconds))


def _observe(clients: Stacked, fn: Callable, local: Local, *down: Any) -> Any:
    parts = [_each(lambda me, part: fn(me, part, *down), me, part) for me, part in zip(clients.groups, local.parts, strict=True)]
    return _in_site_order(clients, parts)


def _durations(clients: Stacked, fn: Callable, local: Local, *down: Any) -> Array:
    rates = with_clock(clients.rates)
    answers = [_each_changes(fn, me, part, down) for me, part in zip(clients.groups, local.parts, strict=True)]
    words = floats(down)
    each = [rates.durations(me.id, flops, sent + words) for me, (_, _, flops, sent) in zip(clients.groups, answers, strict=True)]
    return _in_site_order(clients, each)


def _in_site_order(clients: Stacked, parts: list) -> Any:
    site_order = jnp.argsort(jnp.concatenate([me.id for me in clients.groups]))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[site_order], *parts)


def _flatten(clients: Stacked) -> tuple[tuple, tuple]:
    return (clients.groups, clients.rates), (clients.n, clients.d)


def _unflatten(static: tuple, children: tuple) -> Stacked:
    clients = object.__new__(Stacked)
    clients.n, clients.d = static
    clients.groups, clients.rates = children
    return clients


jax.tree_util.register_pytree_node(Stacked, _flatten, _unflatten)
