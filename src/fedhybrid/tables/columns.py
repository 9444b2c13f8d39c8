"""One site's columns: of which kind they are, what is missing, which levels occur. Messages name site and column and count."""

import difflib
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..status import InvalidData
from .formula import Factor, Formula, evaluate

NUMERIC = ("number", "truth")
TEXT_BY_ONE_ENTRY = "One entry that is no number, such as a decimal comma or a word, makes a whole column text"
KINDS = {
    "string": "text",
    "boolean": "truth",
    **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal", "empty"), "number"),
}
ROWS_OF_THEIR_OWN = 50  # a category in which each of more rows than these has a level of its own names rows, and must not leave the site


class Column(NamedTuple):
    name: str
    kind: str  # number, truth, text, or category: numbers that stand for categories
    values: np.ndarray  # text as objects, all else as float64; NaN where missing
    missing: np.ndarray

    def at(self, rows: np.ndarray) -> "Column":
        return Column(self.name, self.kind, self.values[rows], self.missing[rows])


def read_columns(site: str, frame: pd.DataFrame, names: Iterable[str]) -> dict[str, Column]:
    if not isinstance(frame, pd.DataFrame):
        raise InvalidData(f"{site}: a pandas DataFrame is needed, not {type(frame).__name__}.")
    return {name: _read_column(site, frame, name) for name in names}


def _read_column(site: str, frame: pd.DataFrame, name: str) -> Column:
    there = [str(column) for column in frame.columns]
    if name not in there:
        raise InvalidData(f"{site}: there is no column {name}.{close(name, there)} Its columns are: {listed(there, 30)}.")
    if there.count(name) > 1:
        raise InvalidData(f"{site}: {there.count(name)} columns are called {name}; rename all but one.")
    series = frame.iloc[:, there.index(name)]
    category = isinstance(series.dtype, pd.CategoricalDtype)
    if category:
        series = series.astype(series.cat.categories.dtype)
    found = pd.api.types.infer_dtype(series, skipna=True)
    kind, missing = KINDS.get(found), series.isna().to_numpy(bool)
    if kind is None:
        advice = "all its entries must be numbers, or all must be texts" if found.startswith("mixed") else "write it as numbers or as text"
        raise InvalidData(f"{site}: the column {name} holds entries of kind {found}, of which no model can be made; {advice}.")
    if kind == "text":
        values = series.to_numpy(object)
    else:
        values = series.to_numpy(np.float64, na_value=np.nan)
        kind = "category" if category and kind == "number" else kind
    return Column(name, kind, values, missing)


def numbers(site: str, factor: Factor, table: Mapping[str, Column]) -> np.ndarray:
    """The value of a factor that is no category."""
    for name in factor.columns:
        if table[name].kind not in NUMERIC:
            what = "text" if table[name].kind == "text" else "a category"
            raise InvalidData(f"{site}: the column {name} is {what}, but {factor.name} needs numbers. {TEXT_BY_ONE_ENTRY}.")
    if factor.expression is None:
        values = table[factor.columns[0]].values
    else:
        with np.errstate(all="ignore"):
            values = np.asarray(evaluate(factor.expression, {name: table[name].values for name in factor.columns}))
    advice = "Look for infinite entries, for logarithms of 0 or less and for divisions by 0."
    refuse_rows(site, factor.name, ~np.isfinite(values), "is not a finite number", advice)
    return values


def levels_of(site: str, column: Column) -> tuple:
    """The different entries, sorted; refused where they are no levels but names of rows."""
    if column.kind != "text":
        refuse_rows(site, column.name, ~np.isfinite(column.values), "is infinite", "A category has finite levels.")
    found = pd.unique(column.values).tolist()
    if len(found) == len(column.values) > ROWS_OF_THEIR_OWN:
        raise InvalidData(
            f"{site}: in {column.name} each of {len(found)} rows has a level of its own, as in a column of names or numbers of patients. "
            f"It tells nothing of the others, and its entries must not leave the site; leave it out. (A number? {TEXT_BY_ONE_ENTRY}.)"
        )
    return sorted_levels(map(bool, found) if column.kind == "truth" else found)


def sorted_levels(levels: Iterable) -> tuple:
    """Each once; numbers as whole ones where all of them are (truth values beside numbers are numbers)."""
    given = list(levels)
    if all(isinstance(level, str) for level in given) or all(isinstance(level, bool) for level in given):
        return tuple(sorted(set(given)))
    whole = all(float(level).is_integer() for level in given)
    return tuple(int(level) if whole else float(level) for level in sorted(set(given)))


def codes(site: str, column: Column, levels: tuple) -> np.ndarray:
    """Every entry as the place of its level."""
    if not len(column.values):
        return np.empty(0, np.int64)  # of which kind the column is cannot be seen
    text = isinstance(levels[0], str)
    if text != (column.kind == "text"):
        kinds = ("text", "numbers") if text else ("numbers", "text")
        raise InvalidData(f"{site}: the column {column.name} was agreed on as {kinds[0]}, but is {kinds[1]} here.")
    index = pd.Index(levels, dtype=object) if text else pd.Index(np.asarray(levels, np.float64))
    found = index.get_indexer(column.values)
    refuse_rows(site, column.name, found < 0, "has a level that was not agreed on", f"Known are {listed(levels, 10)}.")
    return found


def any_missing(table: Mapping[str, Column], rows: int) -> np.ndarray:
    return functools.reduce(np.logical_or, (column.missing for column in table.values()), np.zeros(rows, bool))


def complete_rows(
    site: str, frame: pd.DataFrame, formula: Formula, weights: str | None, offset: str | None
) -> tuple[dict[str, Column], int, dict[str, int]]:
    """The columns that are used at the rows where none is missing; how many rows are left out, and because of which columns."""
    used = dict.fromkeys((*formula.columns, *(name for name in (weights, offset) if name is not None)))
    table = read_columns(site, frame, used)
    missing = any_missing(table, len(frame))
    by_column = {name: count for name, column in table.items() if (count := int(column.missing.sum()))}
    if missing.all():
        each = listed((f"{name} in {count}" for name, count in by_column.items()), 10)
        because = f": something is missing in all {len(frame)}, {each}" if len(frame) else ""
        raise InvalidData(f"{site}: there is no row to use{because}. Fill in what is missing, or leave the column or the site out.")
    return {name: column.at(~missing) for name, column in table.items()}, int(missing.sum()), by_column


def finite(site: str, what: str, column: Column) -> np.ndarray:
    if column.kind not in NUMERIC:
        raise InvalidData(f"{site}: {what} {column.name} is {column.kind}, but must be numbers.")
    refuse_rows(site, f"{what} {column.name}", ~np.isfinite(column.values), "is infinite")
    return column.values


def weights_of(site: str, column: Column) -> np.ndarray:
    values = finite(site, "the weight", column)
    refuse_rows(site, f"the weight {column.name}", values < 0, "is negative")
    return values


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def refuse_rows(site: str, what: str, bad: np.ndarray, is_so: str, advice: str = "") -> None:
    if count := int(np.count_nonzero(bad)):
        raise InvalidData(f"{site}: {what} {is_so} in {count} of {len(bad)} rows. {advice}".rstrip())


def listed(names: Iterable[Any], most: int = 5) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def refuse_numbers_as_text(site: str, name: str, levels: Iterable[Any]) -> None:
    """A column that would be a category because of a few entries, and was not meant to be one."""
    texts = [level for level in levels if isinstance(level, str)]
    plain, readable = (sum(_reads_as_number(text.replace(",", mark)) for text in texts) for mark in (",", "."))
    if plain < len(texts) < 2 * readable:
        raise InvalidData(
            f"{site}: the column {name} is text, but most of its different entries read as numbers. {TEXT_BY_ONE_ENTRY}; mend it, or "
            f"write C({name}) in the formula if it is a category."
        )


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def close(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""
