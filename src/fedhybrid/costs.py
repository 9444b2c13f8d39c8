"""Who should do Newton updates: every site's seconds for either update, and a rehearsal of the method for every threshold.

    prices      seconds of every client function, at every site, by gradient and by Newton: counted flops over a clock's speeds and
                links, or timed on this machine
    rehearsal   the method itself, on the quadratic model of every fᵢ near the start, where a round costs the longest of those prices
    choice      the k sites whose Newton step is quickest do it: of all k, the one whose rehearsal is first at the target

In a synchronous round the slowest client rules: whoever is not slower than the slowest that does Newton work may as well do it, so that
n + 1 choices stand for 2ⁿ. A model needs the Hessians of all sites in one place, as a simulation has them; a site's price it can find
alone. With a clock, and for the same prices, the choice is the same on every machine.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .algorithms import ALGORITHMS
from .algorithms.base import Algorithm
from .algorithms.krylov import krylov
from .clients.base import Client, Local, Meter, decoded, most_floats
from .clients.clock import Clock
from .clients.serial import padded
from .clients.work import count_flops
from .curvature import UPDATES
from .measure import Optimum, measure
from .numerics import scope
from .problem import Quadratic
from .status import InvalidConfig

if TYPE_CHECKING:
    from .fleet import Fleet

Array = Any
KINDS = ("gradient", "newton")
TARGET = 1e-8  # gap of a rehearsal
MOST_ROUNDS = 2000  # of a rehearsal; one that is not there by then is continued at its mean rate
REHEARSALS = 3  # of every choice, from the start and from points near it: what is luck in one is not in the mean
STRAY = 0.1  # of those points, in units of the optimum's coordinates
CLEAR = 0.05  # an advantage that is smaller is none: fewer Newton clients are preferred
ALL_THRESHOLDS = 16  # sites up to which every k is tried; beyond, 0, 1, 2, 4, …, n
TIMES = 5  # a timed function is run, the best counts
LARGEST_MODEL = 2**27  # floats of all Hessians together, beyond which nobody is asked to form one


class SiteChoice(NamedTuple):
    """What a site does, and the seconds that its step takes by either update."""

    update: str
    gradient: float
    newton: float


class Choice(NamedTuple):
    """A resolved update="auto": `updates` can be given to a Fleet again."""

    updates: tuple[str, ...]
    sites: tuple[SiteChoice, ...]
    expected: dict[int, float]  # number of Newton sites → seconds to the target, in rehearsal


def choose(
    fleet: "Fleet", algorithm: Algorithm | Callable[[tuple[str, ...]], Algorithm] | None = None, *, clock: Clock | None = None
) -> Choice:
    """The choice of updates that should reach the optimum in the fewest seconds.

    algorithm  what will be run, or a function that makes it for given updates, where its parameters depend on them; default: krylov()
    clock      speeds and links; without one, every site's work is timed here, and messages take no time
    """
    given = krylov() if algorithm is None else algorithm
    if not callable(given) and not isinstance(given, Algorithm):
        raise InvalidConfig(f"choose: algorithm must be made by a call, such as fedhybrid.krylov(), not {type(given).__name__}.")
    if fleet.n * fleet.d**2 > LARGEST_MODEL:
        return _nobody(fleet)

    def make(updates: tuple[str, ...]) -> Algorithm:
        return given if isinstance(given, Algorithm) else given(updates)

    method = make(("gradient",) * fleet.n)
    if method.spec.name in ALGORITHMS and "rows" in ALGORITHMS[method.spec.name].requires:
        raise InvalidConfig(
            f"choose: {method.spec.name} works on rows, which a quadratic model does not have; no update changes what it does."
        )
    with scope():
        model = _model(fleet)
        if model is None:
            return _nobody(fleet)
        f, best = model
        prices = _prices(fleet, method, clock)
        expected: dict[int, float] = {}
        order = np.argsort(prices.newton, kind="stable")
        rng = np.random.default_rng(0)
        strays = 0 if fleet.on_statistics else REHEARSALS - 1  # of a quadratic objective the model is exact, and one rehearsal the run
        starts = [np.zeros(fleet.d), *(STRAY * rng.normal(size=(strays, fleet.d)) * best.x)]
        for k in _thresholds(fleet.n):
            does_newton = np.isin(np.arange(fleet.n), order[:k])
            clients = Rehearsal(f, does_newton, prices)
            expected[k] = float(np.mean([_seconds(make(_names(does_newton)), clients, best, start) for start in starts]))
    k = min(k for k in expected if expected[k] <= (1.0 + CLEAR) * min(expected.values()))
    updates = _names(np.isin(np.arange(fleet.n), order[:k]))
    each = zip(updates, prices.gradient.tolist(), prices.newton.tolist(), strict=True)
    return Choice(updates, tuple(SiteChoice(*one) for one in each), expected)


def _nobody(fleet: "Fleet") -> Choice:
    return Choice(("gradient",) * fleet.n, (SiteChoice("gradient", math.nan, math.nan),) * fleet.n, {})


def describe(name: str, site: SiteChoice) -> str:
    """A line for notes, such as “site 3: newton, 2.1 ms a step”."""
    if math.isnan(site.gradient):
        return f"{name}: gradient, as there is no model to choose by (the Hessians are too large, or not finite)"
    mine, other = (site.newton, site.gradient) if site.update == "newton" else (site.gradient, site.newton)
    instead = "gradient" if site.update == "newton" else "newton"
    return f"{name}: {site.update}, {_in_words(mine)} a step ({instead}: {_in_words(other)})"


def _in_words(seconds: float) -> str:
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= size), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"


def _names(does_newton: np.ndarray) -> tuple[str, ...]:
    return tuple(KINDS[int(does)] for does in does_newton)


def _thresholds(n: int) -> list[int]:
    return list(range(n + 1)) if n <= ALL_THRESHOLDS else sorted({0, n, *(2**k for k in range(n.bit_length()))})


# ── prices ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


def _prices(fleet: "Fleet", algorithm: Algorithm, clock: Clock | None) -> Prices:
    asked = _questions(fleet, algorithm)
    seconds = {fn: np.zeros((2, fleet.n)) for fn in asked}
    known: dict[Any, list[tuple[float, int]]] = {}
    for i in range(fleet.n):
        rows = fleet.sites[i].A.shape[0]
        me = fleet.client(i, max(1, rows) if clock else padded(rows))
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), me)
        for kind, update in enumerate(KINDS):
            key = (kind, *((leaf.shape, leaf.dtype.str) for leaf in jax.tree.leaves(shapes)))
            if clock and key not in known:  # sites of one shape do the same arithmetic
                known[key] = _counted(asked, shapes._replace(curvature=UPDATES[update]))
            work = known[key] if clock else _timed(asked, jax.device_put(me)._replace(curvature=UPDATES[update]))
            for k, (fn, (amount, sent)) in enumerate(zip(asked, work, strict=True)):
                rates = clock.rates(fleet.n) if clock else None
                if rates is None:
                    seconds[fn][kind, i] = amount
                else:
                    seconds[fn][kind, i] = rates.working(i, amount) if k == 0 else rates.durations(i, amount, sent)
    return Prices(tuple(asked), tuple(seconds.values()))


def _questions(fleet: "Fleet", algorithm: Algorithm) -> dict[Callable[..., Any], tuple]:
    """Every client function that a step may call, the start first, with the shapes of what the server sends along."""
    f = Quadratic(jnp.zeros((fleet.n, fleet.d, fleet.d)), jnp.zeros((fleet.n, fleet.d)), jnp.zeros(fleet.n))
    clients = Rehearsal(f, np.zeros(fleet.n, bool), None)
    jax.eval_shape(lambda x0: algorithm.step(clients, algorithm.init(clients, x0)), jnp.zeros(fleet.d))
    return clients.asked


def _counted(asked: dict[Callable[..., Any], tuple], me: Client) -> list[tuple[float, int]]:
    """(flops, floats both ways) of every function; arguments are shapes."""
    (start, first), *rounds = asked.items()
    local = jax.eval_shape(start, me, *first)
    work = [(count_flops(start, me, *first), 0)]
    for fn, down in rounds:
        up = jax.eval_shape(lambda *args, fn=fn: fn(*args)[1], me, local, *down)
        work.append((count_flops(fn, me, local, *down), most_floats(up) + most_floats(down)))
    return work


def _timed(asked: dict[Callable[..., Any], tuple], me: Client) -> list[tuple[float, int]]:
    """(seconds, 0) of every function on this machine."""
    ones = {fn: jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), down) for fn, down in asked.items()}
    start, *rounds = asked
    local = _on_client(start, me, *ones[start])
    return [(_best_of(start, me, *ones[start]), 0), *((_best_of(fn, me, local, *ones[fn]), 0) for fn in rounds)]


def _best_of(fn: Callable[..., Any], *args: Any) -> float:
    """The least seconds of a few calls, without compilation."""
    jax.block_until_ready(_on_client(fn, *args))
    seconds = []
    for _ in range(TIMES):
        began = time.perf_counter()
        jax.block_until_ready(_on_client(fn, *args))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@functools.partial(jax.jit, static_argnums=0)
def _on_client(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


# ── rehearsal ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _model(fleet: "Fleet") -> tuple[Quadratic, Optimum] | None:
    """The quadratic model of every fᵢ, and its optimum: expanded at zero, or where a Newton step from there leads, if F is less there.
    None where the Hessians are not finite."""
    found = _model_at(fleet, np.zeros(fleet.d))
    if found is None or fleet.on_statistics:
        return found
    closer = _model_at(fleet, found[1].x, below=float(jnp.sum(found[0].constant)))
    return found if closer is None else closer


def _model_at(fleet: "Fleet", x: np.ndarray, below: float = math.inf) -> tuple[Quadratic, Optimum] | None:
    parts = [_expanded(fleet.client(i, padded(fleet.sites[i].A.shape[0])).f, x) for i in range(fleet.n)]
    H, g, value = (np.stack([np.asarray(part) for part in column]) for column in zip(*parts, strict=True))
    if not (np.all(np.isfinite(H)) and np.all(np.isfinite(g)) and value.sum() < below):
        return None
    c, constant = H @ x - g, value - g @ x + 0.5 * (H @ x) @ x
    H_sum, c_sum = H.sum(axis=0), c.sum(axis=0)
    x_best = np.linalg.lstsq(H_sum, c_sum, rcond=None)[0]
    best = Optimum(x_best, float(x_best @ (0.5 * H_sum @ x_best - c_sum) + constant.sum()))
    return Quadratic(*map(jnp.asarray, (H, c, constant))), best


@jax.jit
def _expanded(f: Any, x: Array) -> tuple[Array, Array, Array]:
    return f.hess(x), f.grad(x), f.value(x)


def _seconds(algorithm: Algorithm, clients: "Rehearsal", best: Optimum, start: np.ndarray) -> float:
    """To the target; at its mean rate, for a run that does not get there."""
    curve, _ = measure(algorithm, clients, best, rounds=MOST_ROUNDS, until=TARGET, start=start)
    reached = curve.first_below(TARGET, "seconds")
    if math.isfinite(reached):
        return reached
    gap = float(curve.gap[-1])
    return float(curve.seconds[-1]) * math.log(TARGET) / math.log(gap) if gap < 1.0 else math.inf


class Rehearsal:
    """A transport of models. Every client runs both updates, each on a state of its own, and answers by the one it has chosen: choices
    are data, and one program serves all of them."""

    partial, identity = False, "Rehearsal"

    def __init__(self, f: Quadratic, does_newton: Any, prices: Prices | None) -> None:
        self.n, self.d = f.c.shape
        self.f, self.does_newton = f, jnp.asarray(does_newton)
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

    def mean(self, fn: Callable[..., Any], local: Local, *down: Any, stale: bool = False) -> tuple[Local, Any]:
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
