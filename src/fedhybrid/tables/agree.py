"""From a formula and every site's table to one design: what a site tells of its table, and what all of them make of it.

    describe(site, frame, …)   at a site: its columns' kinds, the levels of its categories, how many rows are complete
    settle(descriptions, …)    from these, and from nothing else, the design: levels are the union over sites, sorted, the reference first
    agree(frames, …)           both

Columns of text, and pandas' categories, are categories by themselves; numbers are where C(…) is around them. True and False are 1 and 0.
A level that occurs only in rows that are dropped, because something is missing in them, does not count.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ..disclosure import withheld
from ..status import InvalidConfig, InvalidData
from .columns import (
    NUMERIC,
    TEXT_BY_ONE_ENTRY,
    close,
    complete_rows,
    finite,
    levels_of,
    listed,
    numbers,
    refuse_numbers_as_text,
    sorted_levels,
    weights_of,
)
from .design import Design, design_of
from .formula import Factor, Formula, parse
from .response import LABELS, read_response, reference_first, settle_response


class SiteColumns(NamedTuple):
    """What one site tells the others of its table: no entry of a row but the levels of categories."""

    site: str
    rows: int  # complete ones
    missing: int
    missing_by_column: dict[str, int]
    kinds: dict[str, str]  # of every column that is used
    levels: dict[str, tuple]  # of every column that is a category
    labels: tuple | None  # of the response, where the family has labels
    remarks: tuple[str, ...]


def agree(
    frames: Mapping[str, pd.DataFrame],
    formula: str,
    *,
    family: str,
    reference: Mapping[str, str | float] | None = None,
    weights: str | None = None,
    offset: str | None = None,
    min_rows: int = 1,
) -> tuple[Design, tuple[str, ...]]:
    """The design of all sites, and notes, which do not tell counts of sites with fewer than `min_rows` rows.

    reference   for a category the level that the others are compared with, and for a response of two values the one that is 0;
                without it, that is the first in sorted order
    """
    parsed = parse(formula)
    parts = [describe(str(site), frame, parsed, family=family, weights=weights, offset=offset) for site, frame in frames.items()]
    return settle(parts, parsed, family=family, reference=reference, weights=weights, offset=offset, min_rows=min_rows)


def describe(
    site: str, frame: pd.DataFrame, formula: Formula, *, family: str, weights: str | None = None, offset: str | None = None
) -> SiteColumns:
    kept, missing, missing_by_column = complete_rows(site, frame, formula, weights, offset)
    labels, remarks = read_response(site, formula.response, family, kept)
    levels = {}
    for factor in formula.factors:
        column = kept[factor.columns[0]]
        if factor.category or (factor.expression is None and column.kind not in NUMERIC):
            levels[column.name] = levels_of(site, column)
        else:
            numbers(site, factor, kept)  # refuses text
    if weights is not None:
        weights_of(site, kept[weights])
    if offset is not None:
        finite(site, "the offset", kept[offset])
    kinds = {name: column.kind for name, column in kept.items()}
    return SiteColumns(site, len(frame) - missing, missing, missing_by_column, kinds, levels, labels, remarks)


def settle(
    parts: Sequence[SiteColumns],
    formula: Formula,
    *,
    family: str,
    reference: Mapping[str, str | float] | None = None,
    weights: str | None = None,
    offset: str | None = None,
    min_rows: int = 1,
) -> tuple[Design, tuple[str, ...]]:
    names = [part.site for part in parts]
    if not names:
        raise InvalidConfig("no site: a table is needed from one at least.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidConfig(f"two sites are called {twice}; every site needs a name of its own.")
    for name in parts[0].kinds:
        _check_kinds(name, parts)
    reference = dict(reference or {})
    levels: dict[str, tuple] = {}
    for factor in formula.factors:
        column = factor.columns[0]
        if factor.category or (factor.expression is None and column in parts[0].levels and parts[0].kinds[column] not in NUMERIC):
            for part in parts if not factor.category else ():
                refuse_numbers_as_text(part.site, column, part.levels[column])
            levels[factor.name] = _settle_levels(factor, [part.levels[column] for part in parts], reference.get(column))
    _check_reference(formula, family, levels, reference)
    start = None if formula.response.expression else reference.get(formula.response.name)
    labels, notes = settle_response({part.site: part.labels for part in parts}, formula.response.name, family, start)
    design = design_of(formula, family, levels, labels, weights, offset)
    hidden = withheld([part.rows for part in parts], min_rows)
    gaps = _missing_notes(parts, hidden)
    return design, (*(remark for part in parts for remark in part.remarks), *gaps, *notes, *_site_notes(parts, design, hidden, min_rows))


def _check_kinds(name: str, parts: Sequence[SiteColumns]) -> None:
    at: dict[str, list[str]] = {}
    for part in parts:
        at.setdefault("number" if part.kinds[name] == "truth" else part.kinds[name], []).append(part.site)
    if len(at) > 1:
        where = " but ".join(f"{kind} at {listed(sites)}" for kind, sites in at.items())
        raise InvalidData(f"the column {name} is {where}. {TEXT_BY_ONE_ENTRY}; write it in the same way everywhere.")


def _settle_levels(factor: Factor, found: Sequence[tuple], wanted: str | float | None) -> tuple:
    column = factor.columns[0]
    levels = sorted_levels(level for each in found for level in each)
    if len(levels) < 2:
        raise InvalidData(f"the category {column} has one level only, at all sites, so that there is nothing to compare; leave it out.")
    if factor.reference is not None and wanted is not None and str(factor.reference) != str(wanted):
        raise InvalidConfig(f"reference of {column}: {factor.name} in the formula names another one.")
    return reference_first(column, levels, wanted if factor.reference is None else factor.reference)


def _check_reference(formula: Formula, family: str, levels: Mapping[str, tuple], reference: Mapping[str, Any]) -> None:
    known = {factor.columns[0] for factor in formula.factors if factor.name in levels}
    if family in LABELS and formula.response.expression is None:
        known.add(formula.response.name)
    if unknown := [column for column in reference if column not in known]:
        there = f"{close(unknown[0], known)} Categories are {listed(sorted(known))}." if known else " It has none."
        raise InvalidConfig(f"reference: {unknown[0]} is no category of this formula.{there}")


def _missing_notes(parts: Sequence[SiteColumns], hidden: Sequence[bool]) -> list[str]:
    notes = []
    for part, hides in zip(parts, hidden, strict=True):
        if part.missing and hides:
            notes.append(f"{part.site}: rows were dropped, because something is missing in them, of {', '.join(part.missing_by_column)}.")
        elif part.missing:
            where = ", ".join(f"{name} in {count}" for name, count in part.missing_by_column.items())
            of = part.rows + part.missing
            notes.append(f"{part.site}: {part.missing} of {of} rows were dropped, because something is missing in them: {where}.")
    return notes


def _site_notes(parts: Sequence[SiteColumns], design: Design, hidden: Sequence[bool], min_rows: int) -> list[str]:
    notes = []
    for factor in design.parsed.factors:
        width = len(design.levels.get(factor.name, ()))
        lack = [part.site for part in parts if len(part.levels.get(factor.columns[0], ())) < width]
        if lack:
            notes.append(f"{factor.name}: not all levels occur at {listed(lack)}; one that a site lacks is a column of zeros there.")
    width, total = len(design.columns) + design.intercept, sum(part.rows for part in parts)
    if total < width:
        told = f"<{min_rows}" if total < min_rows else total
        notes.append(f"there are fewer rows at all sites together ({told}) than coefficients ({width}): the data do not determine them.")
    elif few := [
        part.site if hides else f"{part.site} ({part.rows})" for part, hides in zip(parts, hidden, strict=True) if part.rows < width
    ]:
        notes.append(f"fewer rows than coefficients ({width}) at {listed(few)}; no harm is done, as all rows are fitted together.")
    return notes
