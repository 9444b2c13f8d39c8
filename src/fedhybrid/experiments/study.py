"""One candidate on one problem: searched, measured, and kept on disk, so that a restarted experiment skips what is done."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import __version__
from ..algorithms.defaults import curvatures
from ..clients.stacked import Stacked
from ..fleet import Fleet
from ..measure import Curve, Optimum, measure, optimum
from ..numerics import scope
from ..tune import LANES, Setting, Tuning, tune
from .candidates import Candidate

FORMAT = 1
TARGET = 1e-8
MOST_MOVES = 3  # of the best setting, at each factor


class Effort(NamedTuple):
    """How hard to search."""

    name: str
    settings: int  # of a grid, about
    rounds: int  # the most that a run may take
    zooms: tuple[float, ...]  # factors of the searches about the best setting
    keep: float  # of the settings after each stage


QUICK = Effort("quick", settings=12, rounds=200, zooms=(), keep=0.25)
FULL = Effort("full", settings=600, rounds=3000, zooms=(3.16, 1.78, 1.33, 1.15), keep=0.25)
EFFORTS = {effort.name: effort for effort in (QUICK, FULL)}


class Problem(NamedTuple):
    """Something to minimise, with any number of Newton clients."""

    name: str
    seed: int
    n: int
    fleet: Callable[..., Fleet]  # fleet(newton, keep_rows)


@dataclass(frozen=True)
class Measured:
    """How a candidate did."""

    label: str
    method: str
    problem: str
    seed: int
    n: int
    setting: Setting
    settings: int  # tried
    curve: Curve
    seconds_a_step: float

    def rounds_to(self, gap: float) -> float:
        return self.curve.first_below(gap)


class Ground(NamedTuple):
    """What all candidates on a problem share."""

    best: Optimum
    curvature: float


def ground(problem: Problem) -> Ground:
    fleet = problem.fleet(0, False)
    with scope():
        return Ground(optimum(fleet), float(np.mean(curvatures(fleet, np.zeros(fleet.d)).ell)))


def study(
    problem: Problem,
    candidate: Candidate,
    effort: Effort,
    folder: Path,
    shared: Callable[[], Ground],
    say: Callable[[str], None] = lambda words: None,
) -> Measured:
    """Search and measure, unless the folder has it already."""
    fleet = problem.fleet(problem.n if candidate.newton is None else candidate.newton, candidate.keep_rows)
    identity = {
        "format": FORMAT,
        "version": __version__,
        "problem": fleet.fingerprint,
        "method": candidate.name,
        "effort": list(effort),
        "search": str(dict(candidate.search)),
        "fixed": str(getattr(candidate.factory, "keywords", {})),
    }
    path = place_of(folder, problem, candidate)
    done = _load(path, identity)
    if done is not None:
        return done
    say("finding the optimum")
    best, curvature = shared()
    tuning, tried = _search(candidate, fleet, effort, best, curvature, say)
    say("measuring the best setting")
    rounds = effort.rounds
    curve, seconds = measure(candidate.factory(**tuning.best), Stacked(fleet), best, rounds=rounds, block=candidate.block)
    found = Measured(candidate.label, candidate.name, problem.name, problem.seed, problem.n, tuning.best, tried, curve, seconds)
    _save(path, identity, found, tuning)
    return found


def _search(
    candidate: Candidate, fleet: Fleet, effort: Effort, best: Optimum, curvature: float, say: Callable[[str], None]
) -> tuple[Tuning, int]:
    # A GPU runs the whole grid at once. On a CPU settings side by side are no faster than one after the other, and one that is dropped
    # costs nothing more.
    keep, lanes = (effort.keep, 1) if jax.default_backend() == "cpu" else (1.0, LANES)
    options: dict[str, Any] = {"rounds": effort.rounds, "target": TARGET, "keep": keep, "best": best, "block": candidate.block}
    options |= {"lanes": lanes}
    options |= {"first": 2 * candidate.block, "progress": say}
    tuning = tune(candidate.factory, candidate.settings(effort.settings, curvature, effort.name == "quick"), fleet, **options)
    tried = len(tuning.settings)
    for factor in effort.zooms if candidate.search else ():
        for _ in range(MOST_MOVES):
            finer = tune(candidate.factory, candidate.around(tuning.best, factor, curvature), fleet, **options)
            tried += len(finer.settings)
            if _order(finer) >= _order(tuning):
                break
            tuning = finer
    return tuning, tried


def _order(tuning: Tuning) -> tuple[float, float]:
    return float(tuning.rounds.min()), float(tuning.curve.gap[-1])


# ── on disk ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def place_of(folder: Path, problem: Problem, candidate: Candidate) -> Path:
    return folder / f"{_slug(problem.name)}-{problem.seed}" / f"{_slug(candidate.label)}.json"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _save(path: Path, identity: dict[str, Any], found: Measured, tuning: Tuning) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tuning.to_csv(path.with_suffix(".settings.csv"))
    record = {
        "identity": identity,
        "label": found.label,
        "method": found.method,
        "problem": found.problem,
        "seed": found.seed,
        "n": found.n,
        "setting": found.setting,
        "settings": found.settings,
        "seconds_a_step": found.seconds_a_step,
        "curve": {name: column.tolist() for name, column in found.curve._asdict().items()},
    }
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(path)  # whole or not at all


def _load(path: Path, identity: dict[str, Any]) -> Measured | None:
    """What is on disk, if it answers the same question; anything else is measured again."""
    try:
        record = json.loads(path.read_text())
        if record["identity"] != json.loads(json.dumps(identity)):
            return None
        setting = {name: tuple(value) if isinstance(value, list) else value for name, value in record["setting"].items()}
        columns = {"seconds": [0.0] * len(record["curve"]["gap"])} | record["curve"]  # simulated, which older records do not have
        curve = Curve(**{name: np.asarray(column) for name, column in columns.items()})
        plain = {name: record[name] for name in ("label", "method", "problem", "seed", "n", "settings", "seconds_a_step")}
        return Measured(**plain, setting=setting, curve=curve)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
