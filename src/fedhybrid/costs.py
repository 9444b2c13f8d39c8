"""Who should do Newton updates: every site's seconds for either update, and a rehearsal of the method for every choice that may be best.

    prices      seconds of every client function, at every site, by gradient and by Newton: counted flops over a clock's speeds and
                links, or timed on this machine
    rehearsal   the method itself, where a round costs the longest of those prices
    choice      the one whose rehearsal is first at the target

With a clock and a few sites all 2ⁿ choices are rehearsed, on the losses themselves: that is what a simulation is for. Else the method is
rehearsed on the quadratic model of every fᵢ near the start, and the k sites whose Newton step is quickest do it, for every k: in a
synchronous round the slowest client rules, and whoever is not slower than the slowest that does Newton work may as well do it. Either
needs the sites' data or Hessians in one place, as a simulation has them; a site's price it can find alone. With a clock, and for the
same prices, the choice is the same on every machine.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .algorithms import ALGORITHMS
from .algorithms.base import Algorithm
from .algorithms.krylov import krylov
from .clients.base import Client, most_floats
from .clients.clock import Clock
from .clients.rehearsal import Prices, Rehearsal
from .clients.serial import padded
from .clients.work import count_flops
from .curvature import UPDATES
from .fleet import Fleet, Group, expect_fleet
from .measure import Optimum, measure, optimum
from .numerics import scope
from .problem import Problem, Quadratic
from .status import InvalidConfig, InvalidData

Array = Any
KINDS = ("gradient", "newton")
TARGET = 1e-8  # gap of a rehearsal
MOST_ROUNDS = 2000  # of a rehearsal; one that is not there by then is continued at its mean rate
REHEARSALS = 3  # of every choice, from the start and from points near it: what is luck in one is not in the mean
STRAY = 0.1  # of those points, in units of the optimum's coordinates
CLEAR = 0.05  # an advantage that is smaller is none: fewer Newton clients are preferred
ALL_CHOICES = 8  # sites up to which all 2ⁿ choices are rehearsed, with a clock
ALL_THRESHOLDS = 16  # sites up to which every k is tried; beyond, 0, 1, 2, 4, …, n
TIMES = 5  # a timed function is run, the best counts
LARGEST_STAGE = 2**22  # floats of all rows together, beyond which only a model is rehearsed
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

    def __str__(self) -> str:
        return "\n".join(describe(f"client {i}", site) for i, site in enumerate(self.sites))


def choose(
    fleet: Fleet, algorithm: Algorithm | Callable[[tuple[str, ...]], Algorithm] | None = None, *, clock: Clock | None = None
) -> Choice:
    """The choice of updates that should reach the optimum in the fewest seconds.

    algorithm  what will be run, or a function that makes it for given updates, where its parameters depend on them; default: krylov()
    clock      speeds and links; without one, every site's work is timed here, and messages take no time
    """
    expect_fleet("choose", fleet)
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
        prices = _prices(fleet, method, clock)
        order = np.argsort(prices.newton, kind="stable").tolist()
        stage = (_losses(fleet) if clock and fleet.n <= ALL_CHOICES else None) or _model(fleet)
        if stage is None:
            return _nobody(fleet)
        found = _rehearse(make, stage, prices, order)
    clear = (1.0 + CLEAR) * min(found.values())
    chosen = min((len(who), seconds, who) for who, seconds in found.items() if seconds <= clear)[-1]
    updates = _names(chosen, fleet.n)
    each = zip(updates, prices.gradient.tolist(), prices.newton.tolist(), strict=True)
    expected = {k: min(seconds for who, seconds in found.items() if len(who) == k) for k in sorted({len(who) for who in found})}
    return Choice(updates, tuple(SiteChoice(*one) for one in each), expected)


def _nobody(fleet: Fleet) -> Choice:
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


def _names(newton: Iterable[int], n: int) -> tuple[str, ...]:
    return tuple(KINDS[int(does)] for does in np.isin(np.arange(n), list(newton)))


# ── prices ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prices(fleet: Fleet, algorithm: Algorithm, clock: Clock | None) -> Prices:
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


def _questions(fleet: Fleet, algorithm: Algorithm) -> dict[Callable[..., Any], tuple]:
    """Every client function that a step may call, the start first, with the shapes of what the server sends along."""
    f = Quadratic(jnp.zeros((fleet.n, fleet.d, fleet.d)), jnp.zeros((fleet.n, fleet.d)), jnp.zeros(fleet.n))
    clients = Rehearsal(f, fleet.d, np.zeros(fleet.n, bool), None)
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


class Stage(NamedTuple):
    """Where the method is rehearsed: every fᵢ or a model of it, the optimum there, and from where."""

    f: Problem
    best: Optimum
    starts: list[np.ndarray]
    every: bool  # all 2ⁿ choices, or those by thresholds


def _rehearse(make: Callable[[tuple[str, ...]], Algorithm], stage: Stage, prices: Prices, order: list[int]) -> dict[tuple[int, ...], float]:
    """Seconds to the target of every choice, by the sites that do Newton updates."""
    n, d = len(order), len(stage.best.x)
    found: dict[tuple[int, ...], float] = {}

    def rehearse(newton: tuple[int, ...], limit: float) -> None:
        clients = Rehearsal(stage.f, d, np.isin(np.arange(n), newton), prices)
        algorithm = make(_names(newton, n))
        found[newton] = float(np.mean([_seconds(algorithm, clients, stage.best, start, limit) for start in stage.starts]))

    for k in _thresholds(n):
        rehearse(tuple(order[:k]), math.inf)
    if stage.every:
        for newton in (who for k in range(1, n) for who in itertools.combinations(order, k)):
            if newton not in found:
                rehearse(newton, (1.0 + CLEAR) * min(found.values()))  # who is later than that is not chosen
    return found


def _thresholds(n: int) -> list[int]:
    return list(range(n + 1)) if n <= ALL_THRESHOLDS else sorted({0, n, *(2**k for k in range(n.bit_length()))})


def _losses(fleet: Fleet) -> Stage | None:
    """The losses themselves; None where they are large, or have no minimiser."""
    rows = max(1, *(site.A.shape[0] for site in fleet.sites))
    if not fleet.on_statistics and fleet.n * rows * fleet.p > LARGEST_STAGE:
        return None
    try:
        best = optimum(fleet)
    except InvalidData:
        return None
    f = jax.device_put(fleet.stack(Group(tuple(range(fleet.n)), rows))).f
    return Stage(f, best, [np.zeros(fleet.d)], every=True)


def _model(fleet: Fleet) -> Stage | None:
    """The quadratic model of every fᵢ, expanded at zero, or where a Newton step from there leads, if F is less there. None where the
    Hessians are not finite."""
    zero = np.zeros(fleet.d)
    found = _model_at(fleet, zero)
    if found is None:
        return None
    if fleet.on_statistics:
        return Stage(*found, [zero], every=False)  # the model is exact, and one rehearsal the run
    f, best = _model_at(fleet, found[1].x, below=float(jnp.sum(found[0].constant))) or found
    strays = STRAY * np.random.default_rng(0).normal(size=(REHEARSALS - 1, fleet.d)) * best.x
    return Stage(f, best, [zero, *strays], every=False)


def _model_at(fleet: Fleet, x: np.ndarray, below: float = math.inf) -> tuple[Quadratic, Optimum] | None:
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


def _seconds(algorithm: Algorithm, clients: Rehearsal, best: Optimum, start: np.ndarray, limit: float) -> float:
    """To the target; at its mean rate, for a run that does not get there; inf beyond the limit."""
    curve, _ = measure(algorithm, clients, best, rounds=MOST_ROUNDS, until=TARGET, seconds=limit, start=start)
    reached = curve.first_below(TARGET, "seconds")
    if math.isfinite(reached):
        return reached
    gap, spent = float(curve.gap[-1]), float(curve.seconds[-1])
    return spent * math.log(TARGET) / math.log(gap) if gap < 1.0 and spent < limit else math.inf
