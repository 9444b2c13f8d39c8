"""The response as its family needs it: numbers, counts, or labels that are coded in the same way at all sites."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..status import InvalidConfig, InvalidData
from .columns import NUMERIC, Column, close, codes, levels_of, listed, numbers, refuse_rows, sorted_levels
from .formula import Factor

LABELS = ("binomial", "multinomial")


def _column(site: str, factor: Factor, family: str, table: Mapping[str, Column]) -> Column:
    if factor.expression is None and family in LABELS:
        return table[factor.columns[0]]
    if factor.expression is None and table[factor.columns[0]].kind not in NUMERIC:
        advice = f"The family {family} needs numbers; labels have the family binomial or multinomial."
        raise InvalidData(f"{site}: the response {factor.name} is text. {advice}")
    values = numbers(site, factor, table)
    return Column(factor.name, "number", values, np.zeros(len(values), bool))


def read_response(site: str, factor: Factor, family: str, table: Mapping[str, Column]) -> tuple[tuple | None, tuple[str, ...]]:
    """The labels that occur at a site, if the family has labels, and what is worth a note."""
    column = _column(site, factor, family, table)
    response, values = f"the response {factor.name}", column.values
    if family == "poisson":
        refuse_rows(site, response, values < 0, "is negative", "Counts are not.")
        note = f"{site}: {response} is no whole number in some rows; they were taken as they are."
        return None, (note,) if np.any(values != np.floor(values)) else ()
    if family not in LABELS:
        return None, ()
    if family == "multinomial" and column.kind != "text":
        refuse_rows(site, response, values != np.floor(values), "is no whole number", "Labels are texts or whole numbers.")
    labels = levels_of(site, column)
    if family == "binomial" and len(labels) > 2:
        raise InvalidData(f"{site}: {response} has {len(labels)} different values; binomial needs two, such as 0 and 1.")
    return labels, ()


def settle_response(
    found: Mapping[str, tuple | None], name: str, family: str, reference: str | float | None
) -> tuple[tuple | None, tuple[str, ...]]:
    """The labels over all sites, the first for y = 0, and a note of what stands for what; None where y is the number itself."""
    if family not in LABELS:
        return None, ()
    labels = sorted_levels(label for part in found.values() for label in part or ())
    if all(isinstance(label, bool) for label in labels):
        labels = (False, True)
    if family == "multinomial":
        if len(labels) < 2:
            raise InvalidData(f"the response {name} has one value only, at all sites; multinomial needs two classes or more.")
        labels = reference_first(name, labels, reference)
        return labels, (f"{name}: the class that the others are compared with is {labels[0]}.",)
    plain = not isinstance(labels[0], str | bool)
    if len(labels) > 2:
        each = listed(f"{site} {len(part or ())}" for site, part in found.items())
        raise InvalidData(f"the response {name} has {len(labels)} different values over all sites ({each}); code the two alike everywhere.")
    if plain and set(labels) <= {0, 1}:
        if reference is None:
            return None, ()
        labels = (0, 1)
    elif len(labels) < 2:
        raise InvalidData(f"the response {name} has one value only, at all sites; binomial needs two, such as 0 and 1.")
    elif plain and labels != (-1, 1) and reference is None:
        raise InvalidData(
            f"the response {name} has two values that are not 0 and 1; write 0 and 1, or say which of the two is the 0 (as its reference)."
        )
    labels = reference_first(name, labels, reference)
    return labels, (f"{name}: {labels[1]} counts as 1, {labels[0]} as 0.",)


def tell_response(site: str, factor: Factor, family: str, levels: tuple | None, table: Mapping[str, Column]) -> np.ndarray:
    """y of the complete rows."""
    column = _column(site, factor, family, table)
    if levels is not None:
        return codes(site, column, levels).astype(np.float64)
    read_response(site, factor, family, table)
    if family == "binomial":
        return codes(site, column, (0, 1)).astype(np.float64)
    return column.values


def reference_first(name: str, levels: Sequence, reference: str | float | None) -> tuple:
    if reference is None:
        return tuple(levels)
    by_text = {level if isinstance(level, str) else _as_written(level): level for level in levels}
    wanted = reference if isinstance(reference, str) else _as_written(reference)
    if wanted not in by_text and not isinstance(levels[0], str | bool):
        wanted = _as_number(wanted)
    if wanted not in by_text:
        there = f"{close(wanted, by_text)} Its levels are {listed(by_text, 10)}."
        raise InvalidConfig(f"reference of {name}: {wanted[:80]!r} is a level at no site.{there}")
    first = by_text[wanted]
    return (first, *(level for level in levels if level is not first))


def _as_written(level: float) -> str:
    """Whole numbers without a point, so that 9 names the level 9.0."""
    whole = not isinstance(level, bool) and float(level).is_integer()
    return str(int(level)) if whole else str(level)


def _as_number(text: str) -> str:
    try:
        return _as_written(float(text))
    except (ValueError, OverflowError):
        return text
