"""Hyper-parameter search: a whole grid of settings as one vmapped run, in bounded memory.

Settings run side by side, each in a lane of its own. The best is the one of least rounds to gap ≤ target (measure.py says what the gap
is); among those that do not get there, the one of least gap. A setting that diverges is dropped. With keep < 1 the search is by
successive halving: after each stage only the best `keep` of the settings go on, for GROWTH times as many steps; survivors go on from
where they are, and nothing is computed twice.
"""

import csv
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .algorithms import refuse_unsuited
from .algorithms.base import Algorithm
from .arguments import positive, whole
from .clients.base import Clients
from .clients.stacked import Stacked
from .fleet import Fleet, expect_fleet
from .measure import BLOCK, DIVERGED, Curve, Optimum, Scale, optimum, scale
from .measure import steps as measured_steps
from .numerics import scope
from .solve import start_value
from .status import InvalidConfig, refuse_unknown_keywords

Array = Any
Setting = dict[str, Any]
GROWTH = 4  # how much longer each stage runs than all before it
MEMORY = 2**30  # bytes that the lanes of one program may take
LANES = 4096  # of one program, whatever the memory
WORTH_COMPILING = 4e9  # flops: a program of fewer lanes must save more than this


@dataclass(frozen=True, repr=False)
class Tuning:
    """Every setting that was tried, how it did, and the best one's whole run."""

    settings: list[Setting]
    rounds: np.ndarray  # to gap ≤ target; inf where that was not reached
    gap: np.ndarray  # at the end of the setting's run; inf where it diverged
    steps: np.ndarray  # that the setting ran
    best: Setting
    curve: Curve
    seconds: float

    def __repr__(self) -> str:
        reached = f"{self.rounds.min():,.0f} rounds" if np.isfinite(self.rounds.min()) else f"gap {self.curve.gap[-1]:.1e}"
        return f"<Tuning: best of {len(self.settings)} settings ({shown(self.best)}), {reached}>"

    def table(self) -> list[dict[str, Any]]:
        """One row per setting, best first; a pair (gradient, newton) has two columns."""
        rows = [
            {**_flat(setting), "rounds": rounds, "gap": gap, "steps": int(steps)}
            for setting, rounds, gap, steps in zip(self.settings, self.rounds.tolist(), self.gap.tolist(), self.steps, strict=True)
        ]
        return sorted(rows, key=lambda row: (row["rounds"], row["gap"]))

    def to_csv(self, path: str | Path) -> None:
        rows = self.table()
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def _flat(setting: Setting) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in setting.items():
        pairs = zip((f"{name}_gradient", f"{name}_newton"), value, strict=True) if isinstance(value, tuple) else [(name, value)]
        flat.update(pairs)
    return flat


def shown(setting: Setting) -> str:
    """A setting in few characters: mu=0.1, a=1, b=(0.01, 0.3)."""

    def number(value: Any) -> str:
        return f"({', '.join(number(entry) for entry in value)})" if isinstance(value, tuple) else f"{value:.3g}"

    return ", ".join(f"{name}={number(value)}" for name, value in setting.items())


def product(grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def zoom(setting: Setting, factor: float) -> list[Setting]:
    """The setting and its neighbours: every value as it is, divided and multiplied by `factor`."""
    values, structure = jax.tree.flatten(setting)
    around = itertools.product(*((value, value / factor, value * factor) for value in values))
    return [jax.tree.unflatten(structure, neighbour) for neighbour in around]


@refuse_unknown_keywords
def tune(
    factory: Callable[..., Algorithm],
    grid: Mapping[str, Sequence[Any]] | Iterable[Setting],
    fleet: Fleet,
    *,
    rounds: int = 1000,
    target: float = 1e-8,
    keep: float = 0.25,
    first: int = 2 * BLOCK,
    block: int = BLOCK,
    x0: Any = None,
    best: Optimum | None = None,
    memory: int = MEMORY,
    lanes: int = LANES,
    progress: Callable[[str], None] | None = None,
) -> Tuning:
    """The best setting of `factory`'s continuous parameters, of a grid or a list of settings.

    rounds    the most that a setting may take
    keep      the part of the settings that goes on after each stage; 1: the whole grid to the end
    first     steps of the first stage
    block     steps of one compiled program; few where a step takes many rounds
    best      the optimum, where it is known already (`measure.optimum`)
    memory    bytes that the settings of one program may take
    lanes     how many settings run side by side at most; 1: one after the other, by the program of a single run
    progress  called with a few words whenever there is something to say

    A setting's values are numbers, or tuples of them such as a=(gradient, newton). Parameters that are not continuous, such as a
    number of local steps, are bound beforehand: functools.partial(fedhybrid.fedavg, local_steps=5).
    """
    expect_fleet("tune", fleet)
    if not callable(factory):
        raise InvalidConfig(f"tune: the first argument must make a method, such as fedhybrid.gd without a call, not {factory!r}.")
    settings = _settings(grid)
    if not settings:
        raise InvalidConfig("tune: the grid is empty; give every parameter at least one value.")
    if not 0.0 < keep <= 1.0:
        raise InvalidConfig(f"tune: keep must be above 0 and at most 1, not {keep!r}.")
    rounds, first, block = whole("tune: rounds", rounds), whole("tune: first", first), whole("tune: block", block)
    lanes, memory, target = whole("tune: lanes", lanes), whole("tune: memory", memory), positive("tune: target", target)
    _refuse_bad_settings(factory, settings)
    began = time.perf_counter()
    with scope():
        refuse_unsuited(factory(**settings[0]), fleet)
        clients = Stacked(fleet)
        best = optimum(fleet, clients) if best is None else best
        start = start_value(x0, fleet.d)
        race = _Race(factory, settings, clients, best, start, Limits(target, rounds, block, memory, lanes, everyone=keep == 1.0))
        until = first
        while len(race.alive):
            if progress is not None:
                progress(f"{len(race.alive):,} of {len(settings):,} settings, to step {until:,}")
            race.advance(until)
            if len(race.alive) and keep < 1.0:
                race.keep(math.ceil(keep * len(race.alive)))
            until *= GROWTH
        return race.finish(time.perf_counter() - began)


def _settings(grid: Any) -> list[Setting]:
    try:
        return product(grid) if isinstance(grid, Mapping) else [dict(setting) for setting in grid]
    except (TypeError, ValueError):
        raise InvalidConfig("tune: the grid must be a dict of lists, such as {'mu': [0.1, 1.0]}, or a list of dicts.") from None


def _refuse_bad_settings(factory: Callable[..., Algorithm], settings: list[Setting]) -> None:
    """Every setting is tried outside of vmap first, where a factory says what is wrong with it."""
    structure: Any = jax.tree.structure(settings[0])
    for setting in settings:
        factory(**setting)
        if jax.tree.structure(setting) != structure:
            raise InvalidConfig(f"tune: all settings must have the same parameters, of the same form; {setting} and {settings[0]} differ.")


class Limits(NamedTuple):
    target: float
    rounds: int
    block: int
    memory: int
    lanes: int
    everyone: bool  # also those that can no longer be the first


class _Race:
    """All settings, side by side or one after the other."""

    def __init__(
        self,
        factory: Callable[..., Algorithm],
        settings: list[Setting],
        clients: Stacked,
        best: Optimum,
        start: Array,
        limits: Limits,
    ) -> None:
        self.settings, self.clients, self.limits = settings, clients, limits
        self.alive = np.arange(len(settings))  # settings that still run
        self.done = 0  # steps
        self.blocks: list[tuple[np.ndarray, Curve]] = []  # who ran, and their curves, (settings, steps) each
        self.rounds = np.full(len(settings), math.inf)  # to the target
        self.gap = np.full(len(settings), math.inf)  # the last
        self.steps = np.zeros(len(settings), int)
        self.by = scale(clients, best, start)
        self.step = factory(**settings[0]).step
        values = jax.tree.map(lambda *entries: jnp.asarray(entries, jnp.float64), *settings)
        one = jax.eval_shape(lambda values: _init(clients, factory, values, 0, start), values)
        most = int(np.clip(limits.memory // _lane_bytes(one, clients), 1, limits.lanes))
        self.vmapped = most > 1
        self.lane = np.arange(len(settings))  # of every setting, counted through all chunks
        self.begins = np.arange(0, len(settings), most)  # the first lane of every chunk
        if self.vmapped:
            lanes = [jnp.arange(begin, min(begin + most, len(settings))) for begin in self.begins]
            self.states = [clients.call(_init_lanes, (factory,), values, members, start) for members in lanes]
        else:
            self.states = [factory(**setting).init(clients, start) for setting in settings]

    def advance(self, until: int) -> None:
        """Every living setting to step `until`."""
        while self.done < until and len(self.alive):
            self._block()
            self._drop_what_is_decided()
            if self.vmapped and len(self.alive):
                self._compact()

    def _block(self) -> None:
        """A block of steps of every chunk in which somebody lives."""
        program, static = (_lanes if self.vmapped else measured_steps), (self.step, self.limits.block)
        chunk = np.searchsorted(self.begins, self.lane[self.alive], side="right") - 1
        parts = []
        for k in np.unique(chunk):
            self.states[k], rows = self.clients.call(program, static, self.states[k], self.by)
            places = self.lane[self.alive[chunk == k]] - self.begins[k]
            parts.append([np.asarray(column)[places] if self.vmapped else np.asarray(column)[None] for column in rows])
        curve = Curve(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        self.blocks.append((self.alive, curve))
        self.done += self.limits.block
        self.steps[self.alive] += self.limits.block
        with np.errstate(invalid="ignore"):
            last, below = curve.gap[:, -1], curve.gap <= self.limits.target
            self.gap[self.alive] = np.where(np.isfinite(last) & (last < DIVERGED), last, math.inf)
        self.rounds[self.alive] = np.where(below.any(axis=1), curve.rounds[np.arange(len(below)), below.argmax(axis=1)], math.inf)

    def _drop_what_is_decided(self) -> None:
        """What diverged, has reached the target, is out of rounds, or (unless everyone runs) can no longer be the first to get there."""
        most = self.limits.rounds if self.limits.everyone else min(self.limits.rounds, self.rounds.min())
        going = np.isfinite(self.gap[self.alive]) & np.isinf(self.rounds[self.alive])
        self.alive = self.alive[going & (self.blocks[-1][1].rounds[:, -1] < most)]

    def keep(self, count: int) -> None:
        """The best by what they have reached, and by what they promise, in equal parts: the first to fall far is often not the best."""
        ranks = (np.argsort(self.gap[self.alive], kind="stable"), np.argsort(self._promise(), kind="stable"))
        ranked = list(dict.fromkeys(np.stack(ranks, axis=1).reshape(-1).tolist()))
        self.alive = np.sort(self.alive[ranked[:count]])

    def _compact(self) -> None:
        """Living settings into fewer lanes, where that saves more than compiling another program costs."""
        lanes, size = sum(jax.tree.leaves(states)[0].shape[0] for states in self.states), _power_of_eight(len(self.alive))
        if size >= lanes:
            return
        last = self._curves(self.alive, self.blocks[-1:])
        left = last.flops[:, -1] * (self.limits.rounds / last.rounds[:, -1] - 1.0)  # a setting's flops to its end
        if np.mean(left) * (lanes - size) < WORTH_COMPILING:
            return
        chosen = jnp.asarray(np.resize(self.lane[self.alive], size))  # lanes left over repeat some setting
        together = self.states[0] if len(self.states) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *self.states)
        self.states, self.begins = [jax.tree.map(lambda leaf: leaf[chosen], together)], np.zeros(1, int)
        self.lane[self.alive] = np.arange(len(self.alive))

    def _curves(self, settings: np.ndarray, blocks: list[tuple[np.ndarray, Curve]]) -> Curve:
        """The curves of settings that ran in all these blocks, (settings, steps) each."""
        parts = [[column[np.searchsorted(who, settings)] for column in curve] for who, curve in blocks]
        return Curve(*(np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True)))

    def _promise(self) -> np.ndarray:
        """Steps to the target, if a setting goes on as it did since half time; by the worst of a window, as a gap may oscillate."""
        gap = np.maximum(self._curves(self.alive, self.blocks).gap, self.limits.target)
        steps, window = gap.shape[1], max(2, gap.shape[1] // 4)
        end = np.log(gap[:, -window:].max(axis=1))
        middle = np.log(gap[:, steps // 2 - window // 2 : steps // 2 + window // 2].max(axis=1))
        rate = (middle - end) / (steps / 2 - window / 4)
        return np.where(rate > 0, (end - np.log(self.limits.target)) / np.where(rate > 0, rate, 1.0), math.inf)

    def finish(self, seconds: float) -> Tuning:
        # among settings that did not get there, those that ran to the end were better all along
        longest = self.steps[np.isfinite(self.gap)].max(initial=0)
        best = int(np.lexsort((self.gap, self.steps < longest, self.rounds))[0])
        curve = self._curves(np.array([best]), [block for block in self.blocks if best in block[0]])
        best_curve = Curve(*(column[0] for column in curve))
        return Tuning(self.settings, self.rounds, self.gap, self.steps, self.settings[best], best_curve, seconds)


def _init(clients: Clients, factory: Callable[..., Algorithm], values: Setting, lane: Any, start: Array) -> Any:
    return factory(**jax.tree.map(lambda value: value[lane], values)).init(clients, start)


def _init_lanes(clients: Clients, factory: Callable[..., Algorithm], values: Setting, lanes: Array, start: Array) -> Any:
    return jax.vmap(lambda lane: _init(clients, factory, values, lane, start))(lanes)


def _lanes(clients: Clients, step: Callable, length: int, states: Any, by: Scale) -> tuple[Any, Curve]:
    return jax.vmap(lambda state: measured_steps(clients, step, length, state, by))(states)


def _power_of_eight(count: int) -> int:
    """Few different numbers of lanes, so that few programs are compiled."""
    size = 1
    while size < count:
        size *= 8
    return size


def _lane_bytes(state: Any, clients: Stacked) -> int:
    """An estimate of what a lane needs: its state twice, and per client a matrix or two and a few numbers a row."""
    own = sum(math.prod(leaf.shape) * 8 for leaf in jax.tree.leaves(state))
    rows = sum(math.prod(leaf.shape[:2]) for me in clients.groups for leaf in jax.tree.leaves(me.f) if leaf.ndim == 2)
    return 2 * own + 16 * clients.n * clients.d**2 + 8 * rows
