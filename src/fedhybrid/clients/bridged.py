"""Clients some of whom are away: any subset answers a round, and the last known reply of the others stands in.

    client    present:  (local, up) ← fn(me, local, *down);  reply ← up        absent:  nothing moves
    server    the mean of `reply` over every enrolled client, never over those who answered

At FedHybrid's optimum zᵢ = x* − ∇fᵢ(x*)/μ, whose mean over a subset is not x*: to average those who answered would leave a permanent
error. A last reply is wrong only by how far its sender would have moved. This holds for rounds called with stale=True, which is for the
algorithm to allow; all others wait for everyone, and so does the first, when nobody has replied yet.

Who is there is a pure function of the round, from a seed: a run can be repeated to the last bit. Those who are away cost nothing: what
they would have been sent, have sent and computed is not counted.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arguments import numeric, positive, whole
from ..fleet import Fleet
from ..pytrees import pytree
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Client, Clients, Meter, floats
from .stacked import Stacked

Array = Any


# ── who is there ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Schedule(Protocol):
    """A pytree of arrays: another rate or seed compiles nothing anew."""

    def __call__(self, round: Array) -> Array:
        """Who answers in this round: n truth values, in site order."""
        ...


@pytree("rate", "seed")
@dataclass(frozen=True)
class Random:
    rate: Array  # (n,): how often each is away
    seed: Array

    def __call__(self, round: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(self.seed), round)
        return jax.random.uniform(key, self.rate.shape, self.rate.dtype) >= self.rate


@pytree("every")
@dataclass(frozen=True)
class Slow:
    every: Array  # (n,): each answers in every so-many-th round; its reply is up to so many rounds old

    def __call__(self, round: Array) -> Array:
        return round % self.every == 0


@pytree("table")
@dataclass(frozen=True)
class Table:
    table: Array  # (rounds, n): who answers, over and over

    def __call__(self, round: Array) -> Array:
        return self.table[round % self.table.shape[0]]


@pytree("seconds")
@dataclass(frozen=True)
class Deadline:
    """Rounds close after so many simulated seconds. Who needs k of them answers every k-th: `Bridged.start` finds k by the clock."""

    seconds: Array


@refuse_unknown_keywords
def absent(
    rate: Any = None,
    *,
    every: Any = None,
    present: Any = None,
    deadline: Any = None,
    seed: int = 0,
    over: Callable[[Fleet], Clients] = Stacked,
) -> Callable[[Fleet], "Bridged"]:
    """A transport for `solve`, with clients who are away; give one of

    rate     how often a client is away, at random from `seed`: a number in [0, 1), one per client, or by name, as in {"b": 0.9}
    every    a client answers every so-many-th round: a whole number, one per client, or by name
    present  a table of truth values, rounds × clients, repeated
    deadline simulated seconds after which a round closes; who takes longer answers a later one. Needs over=fedhybrid.Clock(…)

    `over` is the transport underneath.
    """
    given = [value for value in (rate, every, present, deadline) if value is not None]
    if len(given) != 1:
        raise InvalidConfig("absent: give one of rate, every, present and deadline, such as rate=0.1.")
    if deadline is not None:
        positive("absent: deadline", deadline)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise InvalidConfig(f"absent: seed must be a whole number from 0 to 2³² − 1, not {seed!r}.")

    def transport(fleet: Fleet) -> Bridged:
        with jax.enable_x64(True):
            clients = over(fleet)
            if deadline is None:
                return Bridged(clients, _schedule(fleet, rate, every, present, seed))
            if getattr(clients, "rates", None) is None:
                raise InvalidConfig("absent: a deadline needs clients with speeds: over=fedhybrid.Clock(speed=…).")
            return Bridged(clients, Deadline(jnp.asarray(deadline, jnp.float64)))

    return transport


def _schedule(fleet: Fleet, rate: Any, every: Any, present: Any, seed: int) -> Schedule:
    if rate is not None:
        rates = _each(fleet, "rate", rate, 0.0)
        if not np.all((rates >= 0) & (rates < 1)):
            raise InvalidConfig("absent: rate must be in [0, 1); who never comes is no client: use fleet.without(…).")
        return Random(jnp.asarray(rates), jnp.asarray(seed, jnp.uint32))
    if every is not None:
        counts = _each(fleet, "every", every, 1)
        return Slow(jnp.asarray([whole("absent: every", int(k) if k == int(k) else k) for k in counts], jnp.int64))
    table = np.asarray(present)
    if table.dtype != bool or table.ndim != 2 or table.shape[0] == 0 or table.shape[1] != fleet.n:
        raise InvalidConfig(f"absent: present must be a table of truth values with {fleet.n} columns, not {table.dtype} of {table.shape}.")
    if not table.any(axis=0).all():
        raise InvalidConfig("absent: present has a column without a True; who never comes is no client: use fleet.without(…).")
    return Table(jnp.asarray(table))


def _each(fleet: Fleet, name: str, value: Any, otherwise: float) -> np.ndarray:
    if isinstance(value, Mapping):
        if unknown := [str(key) for key in value if key not in fleet.names]:
            raise InvalidConfig(f"absent: {name} names {', '.join(unknown)}, which the fleet has not.")
        value = [value.get(site, otherwise) for site in fleet.names]
    array = numeric(f"absent: {name}", value)
    if array.ndim > 1 or (array.ndim == 1 and array.size != fleet.n) or not np.all(np.isfinite(array)):
        raise InvalidConfig(f"absent: {name} has shape {array.shape}; it must be a number or one per client ({fleet.n}).")
    return np.broadcast_to(array, fleet.n).copy()


# ── the transport ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Held(NamedTuple):
    """What a client's place holds: its own state, and what it last replied."""

    local: Any
    reply: Any


class Bridge(NamedTuple):
    """All places, as the algorithm carries them."""

    parts: Any  # of the transport underneath
    meter: Meter
    clock: Array  # rounds called with stale=True: what a schedule counts
    fresh: Array  # whether everyone must answer the next of them
    absent: Array  # how many were away in the last round
    every: Array  # (n,): with a deadline, how many rounds each takes to answer


class Bridged:
    """Another transport's clients, of whom `schedule` says who answers."""

    partial = True

    def __init__(self, clients: Clients, schedule: Schedule | Deadline) -> None:
        self.clients, self.schedule = clients, schedule
        self.n, self.d = clients.n, clients.d

    @property
    def identity(self) -> str:
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.schedule):
            digest.update(np.asarray(leaf).tobytes())
        return f"Bridged({self.clients.identity}, {type(self.schedule).__name__} {digest.hexdigest()})"

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Bridge:
        reply_of, *reply_down = bridged or (_no_reply,)
        parts = self.clients.start(_Starting(fn, reply_of, len(down)), *down, *reply_down)
        zero, every = jnp.zeros((), jnp.int64), jnp.ones(self.n, jnp.int64)
        if isinstance(self.schedule, Deadline) and bridged is not None:
            clients: Any = self.clients  # one with a clock, as `absent` made sure
            durations = clients.durations(_Inside(reply_of), parts, *reply_down)
            every = jnp.maximum(1, jnp.ceil(durations / self.schedule.seconds).astype(jnp.int64))
        return Bridge(parts, parts.meter, zero, jnp.ones((), bool), zero, every)

    def mean(self, fn: Callable[..., Any], local: Bridge, *down: Any, stale: bool = False, implied: Any = None) -> tuple[Bridge, Any]:
        if not stale:
            parts, up = self.clients.mean(_Inside(fn), local.parts, *down)
            return self._after(local, parts, self.n, down), up
        here = local.clock % local.every == 0 if isinstance(self.schedule, Deadline) else self.schedule(local.clock)
        present = here | local.fresh
        count = jnp.sum(present)
        parts, up = self.clients.mean(_Bridging(fn), local.parts, present, *down)
        after = self._after(local, parts, count, down)
        if isinstance(self.schedule, Deadline):  # the first round, when nobody has replied yet, waits for everyone
            lasted = after.meter.seconds - local.meter.seconds
            seconds = local.meter.seconds + jnp.where(local.fresh, lasted, jnp.minimum(lasted, self.schedule.seconds))
            after = after._replace(meter=after.meter._replace(seconds=seconds))
        return after._replace(clock=local.clock + 1, fresh=jnp.zeros((), bool), absent=self.n - count), up

    def _after(self, local: Bridge, parts: Any, count: Any, down: tuple) -> Bridge:
        """One more round, of which `count` clients took part."""
        before, now = local.parts.meter, parts.meter
        sent = (now.floats_up - before.floats_up) // self.n
        meter = Meter(
            local.meter.rounds + 1,
            local.meter.floats_up + count * sent,
            local.meter.floats_down + count * floats(down),
            local.meter.flops + (now.flops - before.flops),
            local.meter.seconds + (now.seconds - before.seconds),
        )
        return local._replace(parts=parts, meter=meter, absent=jnp.zeros((), jnp.int64))

    def one(self, fn: Callable[..., Any], local: Bridge, who: Any, *down: Any) -> tuple[Bridge, Any]:
        parts, up = self.clients.one(_Inside(fn), local.parts, who, *down)
        meter = jax.tree.map(lambda total, now, before: total + (now - before), local.meter, parts.meter, local.parts.meter)
        return local._replace(parts=parts, meter=meter, absent=jnp.zeros((), jnp.int64)), up

    def renew(self, local: Bridge) -> Bridge:
        return local._replace(fresh=jnp.ones((), bool))

    def missed(self, local: Bridge) -> Array:
        return local.absent

    def observe(self, fn: Callable[..., Any], local: Bridge, *down: Any) -> Any:
        return self.clients.observe(_Seen(fn), local.parts, *down)

    def while_loop(self, cond: Callable, body: Callable, carry: Any) -> Any:
        return self.clients.while_loop(cond, body, carry)

    def cond(self, pred: Any, yes: Callable, no: Callable, carry: Any) -> Any:
        return self.clients.cond(pred, yes, no, carry)

    def scan(self, body: Callable, carry: Any, length: int) -> tuple[Any, Any]:
        return self.clients.scan(body, carry, length)

    def call(self, program: Callable, static: tuple, *args: Any) -> Any:
        return self.clients.call(_bridged, (program, static), self.schedule, *args)


def _bridged(clients: Clients, program: Callable, static: tuple, schedule: Schedule | Deadline, *args: Any) -> Any:
    return program(Bridged(clients, schedule), *static, *args)


# Client functions around client functions. Frozen dataclasses: equal for equal functions, so that nothing is compiled twice.


def _no_reply(me: Client, local: Any) -> tuple[Any, tuple]:
    return local, ()


@dataclass(frozen=True)
class _Starting:
    fn: Callable[..., Any]
    reply_of: Callable[..., Any]
    taken: int  # of what comes down by fn

    def __call__(self, me: Client, *down: Any) -> Held:
        local = self.fn(me, *down[: self.taken])
        shape = jax.eval_shape(lambda: self.reply_of(me, local, *down[self.taken :])[1])
        return Held(local, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape))


@dataclass(frozen=True)
class _Inside:
    """As ever, on the state inside. The last reply stays: it answers another question."""

    fn: Callable[..., Any]

    def __call__(self, me: Client, held: Held, *down: Any) -> tuple[Held, Any]:
        local, up = self.fn(me, held.local, *down)
        return held._replace(local=local), up


@dataclass(frozen=True)
class _Bridging:
    fn: Callable[..., Any]

    def __call__(self, me: Client, held: Held, present: Array, *down: Any) -> tuple[Held, Any]:
        before, structure = jax.tree.flatten(held.local)
        same: list[bool] = []

        def moves(held: Held) -> tuple[list, Any]:
            """The leaves that fn changes, and the reply; the others, such as a cached inverse, are not copied."""
            local_next, up = self.fn(me, held.local, *down)
            pairs = list(zip(jax.tree.leaves(held.local), jax.tree.leaves(local_next), strict=True))
            same[:] = [old is new for old, new in pairs]
            return [new for old, new in pairs if old is not new], up

        def stays(held: Held) -> tuple[list, Any]:
            return [old for old, kept in zip(jax.tree.leaves(held.local), same, strict=True) if not kept], held.reply

        jax.eval_shape(moves, held)  # `stays` has to know what `moves` changes
        changed, reply = lax.cond(present[me.id], moves, stays, held)
        rest = iter(changed)
        leaves = [old if kept else next(rest) for old, kept in zip(before, same, strict=True)]
        return Held(jax.tree.unflatten(structure, leaves), reply), reply


@dataclass(frozen=True)
class _Seen:
    fn: Callable[..., Any]

    def __call__(self, me: Client, held: Held, *down: Any) -> Any:
        return self.fn(me, held.local, *down)


__all__ = ["Bridge", "Bridged", "Deadline", "Random", "Slow", "Table", "absent"]
