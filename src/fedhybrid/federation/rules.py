"""A site's own file, site.toml, and its table: whose rows, which update, how few rows or sites are too few. No question changes them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..curvature import UPDATES
from ..status import InvalidData
from ..tables.records import read_numbers
from .schema import Key, load, one_of, read_section, site_name, text, whole
from .terms import Problem

SITE = {
    "name": Key(site_name),
    "data": Key(text),
    "update": Key(one_of(*UPDATES), "newton"),
    "minimum_rows": Key(whole(0), 10),
    "minimum_sites": Key(whole(1), 3),
    "key": Key(text, None),
    "state": Key(text, "state"),
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


def read_rules(path: Path) -> Rules:
    given = read_section(str(path), load(path), SITE)
    for name in ("data", "key", "state"):
        given[name] = None if given[name] is None else path.parent / given[name]
    return Rules(**given)


def read_rows(path: Path, problem: Problem) -> tuple:
    """(A, y, w, offset) from the columns that were agreed on; others are not looked at."""
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
