"""A site's own file, site.toml, and its table: whose rows, which update, how few rows or sites are too few. No question changes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..curvature import UPDATES
from ..status import InvalidConfig, InvalidData
from ..tables.records import read_numbers
from .schema import Key, load, number, one_of, read_section, site_name, text, whole
from .terms import Problem

PRIVACY = {
    "clip": Key(number(0.0, 1e100, open_low=True)),
    "epsilon": Key(number(0.0, 1e4, open_low=True)),
    "delta": Key(number(0.0, 0.1, open_low=True)),
    "sigma": Key(number(0.0, 1e100, open_low=True), None),
    "rounds": Key(whole(1), None),
}


@dataclass(frozen=True)
class Privacy:
    """How much a site's answers may tell, in all runs together: (epsilon, delta).

    clip     the largest gradient that an answer may imply
    sigma    of the noise on each of its entries; omitted, the budget is spread evenly over
    rounds   answers; omitted, those of one run
    """

    clip: float
    epsilon: float
    delta: float
    sigma: float | None = None
    rounds: int | None = None


def own_privacy(name: str, value: Any) -> Privacy:
    given = Privacy(**read_section(f"[{name.split()[-1]}]", value, PRIVACY))
    if given.sigma is not None and given.rounds is not None:
        raise InvalidConfig("[privacy] sigma, or rounds from which it follows: not both.")
    return given


SITE = {
    "name": Key(site_name),
    "data": Key(text),
    "update": Key(one_of(*UPDATES), "newton"),
    "minimum_rows": Key(whole(0), 10),
    "minimum_sites": Key(whole(1), 3),
    "key": Key(text, None),
    "state": Key(text, "state"),
    "privacy": Key(own_privacy, None),
}


@dataclass(frozen=True)
class Rules:
    """A site's own file. Paths are relative to it."""

    name: str
    data: Path
    update: str = "newton"
    minimum_rows: int = 10
    minimum_sites: int = 3
    key: Path | None = None
    state: Path = Path("state")
    privacy: Privacy | None = None


def read_rules(path: Path) -> Rules:
    given = read_section(str(path), load(path), SITE)
    for name in ("data", "key", "state"):
        given[name] = None if given[name] is None else path.parent / given[name]
    return Rules(**given)


def read_rows(path: Path, problem: Problem) -> tuple:
    """(A, y, w, offset) from the columns that were agreed on; others are not looked at."""
    if not path.exists():
        raise InvalidData(f"there is no table {path}: put it there, or name it by --data.")
    header, table = read_numbers(path)
    wanted = [*problem.features, problem.response, *(name for name in (problem.weight, problem.offset) if name)]
    if missing := [name for name in wanted if name not in header]:
        raise InvalidData(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(header)}.")
    columns = {name: table[:, header.index(name)] for name in wanted}
    A = np.column_stack([columns[name] for name in problem.features])
    return A, columns[problem.response], *(columns[name] if name else None for name in (problem.weight, problem.offset))


def coded(name: str, rows: tuple, problem: Problem) -> tuple:
    """The same rows, with every response as the number of its class among those that were agreed on."""
    if problem.classes is None:
        return rows
    A, y, *rest = rows
    same = np.asarray(y, np.float64)[..., None] == np.array(problem.classes)
    if bad := int(np.count_nonzero(~same.any(axis=-1))):
        agreed = ", ".join(f"{label:g}" for label in problem.classes)
        raise InvalidData(f"{name}: {problem.response} has {bad} of {same.shape[0]} entries that are none of the classes {agreed}.")
    return A, np.argmax(same, axis=-1).astype(np.float64), *rest
