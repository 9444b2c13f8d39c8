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
from .arguments import whole
from .clients.base import Clients
from .clients.stacked import Stacked
from .fleet import Fleet
from .measure import BLOCK, DIVERGED, Curve, Optimum, Scale, optimum, scale
from .measure import steps as measured_steps
from .numerics import scope
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
    settings = product(grid) if isinstance(grid, Mapping) else [dict(setting) for setting in grid]
    if not settings:
        raise InvalidConfig("tune: the grid is empty; give every parameter at least one value.")
    if not 0.0 < keep <= 1.0:
        raise InvalidConfig(f"tune: keep must be above 0 and at most 1, not {keep!r}.")
    rounds, first, block = whole("tune: rounds", rounds), whole("tune: first", first), whole("tune: block", block)
    lanes = whole("tune: lanes", lanes)
    _refuse_bad_settings(factory, settings)
    began = time.perf_counter()
    with scope():
        refuse_unsuited(factory(**settings[0]), fleet)
        clients = Stacked(fleet)
        best = optimum(fleet, clients) if best is None else best
        race = _Race(factory, settings, clients, best, x0, Limits(target, rounds, block, memory, lanes, everyone=keep == 1.0))
        until = first
        while race.alive:
            if progress is not None:
                progress(f"{len(race.alive):,} of {len(settings):,} settings, to step {until:,}")
            race.advance(until)
            if race.alive and keep < 1.0:
                race.keep(math.ceil(keep * len(race.alive)))
            until *= GROWTH
        return race.finish(time.perf_counter() - began)


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
    """All settings, side by side."""

    def __init__(
        self,
        factory: Callable[..., Algorithm],
        settings: list[Setting],
        clients: Stacked,
        best: Optimum,
        x0: Any,
        limits: Limits,
    ) -> None:
        self.settings, self.clients, self.limits = settings, clients, limits
        self.alive = list(range(len(settings)))  # settings that still run
        self.done = 0  # steps
        self.least = math.inf  # rounds in which some setting has reached the target
        self.curves: list[list[Curve]] = [[] for _ in settings]
        start = jnp.zeros(clients.d) if x0 is None else jnp.asarray(x0, jnp.float64)
        self.by = scale(clients, best, start)
        self.step = factory(**settings[0]).step

        values = jax.tree.map(lambda *entries: jnp.asarray(entries, jnp.float64), *settings)
        one = jax.eval_shape(lambda values: _init(clients, factory, values, 0, start), values)
        most = int(np.clip(limits.memory // _lane_bytes(one, clients), 1, limits.lanes))
        self.states: list[Any] = []
        self.lane: dict[int, tuple[int, int]] = {}  # of a setting: the chunk, and the place in it
        for begin in range(0, len(settings), most):
            members = range(begin, min(begin + most, len(settings)))
            self.lane |= {setting: (len(self.states), place) for place, setting in enumerate(members)}
            if most == 1:
                self.states.append(factory(**settings[begin]).init(clients, start))
            else:
                self.states.append(clients.call(_init_lanes, (factory,), values, jnp.asarray(members), start))
        self.vmapped = most > 1

    def advance(self, until: int) -> None:
        """Every living setting to step `until`."""
        while self.done < until and self.alive:
            for chunk in sorted({self.lane[setting][0] for setting in self.alive}):
                self._block(chunk)
            self.done += self.limits.block
            self._drop_what_is_decided()
            if self.vmapped:
                self._compact()

    def _block(self, chunk: int) -> None:
        """A block of steps of every lane of the chunk."""
        program = _lanes if self.vmapped else measured_steps
        self.states[chunk], rows = self.clients.call(program, (self.step, self.limits.block), self.states[chunk], self.by)
        columns = [np.asarray(column) for column in rows]
        for setting in self.alive:
            its_chunk, place = self.lane[setting]
            if its_chunk == chunk:
                self.curves[setting].append(Curve(*(column[place] if self.vmapped else column for column in columns)))

    def _drop_what_is_decided(self) -> None:
        """What diverged, has reached the target, is out of rounds, or (unless everyone runs) can no longer be the first to get there."""
        self.least = min(self.least, *(self._rounds(setting) for setting in self.alive))

        most = self.limits.rounds if self.limits.everyone else min(self.limits.rounds, self.least)

        def open_still(setting: int) -> bool:
            return self._gap(setting) < DIVERGED and self._rounds(setting) == math.inf and self.curves[setting][-1].rounds[-1] < most

        self.alive = [setting for setting in self.alive if open_still(setting)]

    def keep(self, count: int) -> None:
        """The best by what they have reached, and by what they promise, in equal parts: the first to fall far is often not the best."""
        pairs = zip(sorted(self.alive, key=self._gap), sorted(self.alive, key=self._promise), strict=True)
        ranked = dict.fromkeys(setting for pair in pairs for setting in pair)
        self.alive = sorted(list(ranked)[:count])

    def _compact(self) -> None:
        """Living settings into fewer lanes, where that saves more than compiling another program costs."""
        lanes, size = sum(jax.tree.leaves(states)[0].shape[0] for states in self.states), _power_of_eight(len(self.alive))
        if not self.alive or size >= lanes:
            return
        last = [self.curves[setting][-1] for setting in self.alive]
        left = [curve.flops[-1] * (self.limits.rounds / curve.rounds[-1] - 1.0) for curve in last]  # a setting's flops to its end
        if np.mean(left) * (lanes - size) < WORTH_COMPILING:
            return
        begins = np.cumsum([0, *(jax.tree.leaves(states)[0].shape[0] for states in self.states)])
        old = [begins[chunk] + place for chunk, place in (self.lane[setting] for setting in self.alive)]
        chosen = jnp.asarray(np.resize(old, size))  # lanes left over repeat some setting
        together = self.states[0] if len(self.states) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *self.states)
        self.states = [jax.tree.map(lambda leaf: leaf[chosen], together)]
        self.lane = {setting: (0, place) for place, setting in enumerate(self.alive)}

    def _rounds(self, setting: int) -> float:
        return min((block.first_below(self.limits.target) for block in self.curves[setting]), default=math.inf)

    def _gap(self, setting: int) -> float:
        gap = self.curves[setting][-1].gap[-1]
        return float(gap) if np.isfinite(gap) and gap < DIVERGED else math.inf

    def _promise(self, setting: int) -> float:
        """Steps to the target, if it goes on as it did since half time; by the worst of a window, as a gap may oscillate."""
        gap = np.maximum(np.concatenate([block.gap for block in self.curves[setting]]), self.limits.target)
        steps, window = len(gap), max(2, len(gap) // 4)
        end = np.log(gap[-window:].max())
        middle = np.log(gap[steps // 2 - window // 2 : steps // 2 + window // 2].max())
        rate = (middle - end) / (steps / 2 - window / 4)
        return float((end - np.log(self.limits.target)) / rate) if rate > 0 else math.inf

    def finish(self, seconds: float) -> Tuning:
        everyone = range(len(self.settings))
        rounds, gap = (np.array([of(setting) for setting in everyone]) for of in (self._rounds, self._gap))
        steps = np.array([sum(len(block.gap) for block in curve) for curve in self.curves])
        # among settings that did not get there, those that ran to the end were better all along
        ran = np.array([curve[-1].rounds[-1] for curve in self.curves])
        best = min(everyone, key=lambda setting: (rounds[setting], ran[setting] < ran[gap < DIVERGED].max(initial=0), gap[setting]))
        curve = Curve(*(np.concatenate(blocks) for blocks in zip(*self.curves[best], strict=True)))
        return Tuning(self.settings, rounds, gap, steps, self.settings[best], curve, seconds)


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
