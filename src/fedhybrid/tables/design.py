"""The columns of one model, the same at all sites, and a site's own rows in them.

A level that a site lacks is a column of zeros there. Rows in which a column that is used is missing are dropped, counted and told.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import formulaic
import numpy as np
import pandas as pd
from formulaic.parser import types as shown

from ..status import InvalidConfig
from .columns import Column, any_missing, codes, complete_rows, finite, numbers, read_columns, refuse_rows, weights_of
from .formula import Formula, parse
from .response import tell_response

NEW_ROWS = "the new rows"


class Rows(NamedTuple):
    """One site's, ready for a Fleet."""

    A: np.ndarray  # (N, p) float64, without the intercept's column
    y: np.ndarray
    w: np.ndarray | None
    offset: np.ndarray | None
    missing: int  # rows that were dropped
    missing_by_column: dict[str, int]


@dataclass(frozen=True)
class Design:
    formula: str
    family: str
    columns: tuple[str, ...]  # of A: without the intercept
    intercept: bool
    levels: Mapping[str, tuple]  # category, as the formula has it → its levels, the reference first
    response_levels: tuple | None  # what y = 0, 1, … stand for; None: y is the number itself
    weights: str | None = None
    offset: str | None = None
    parsed: Formula = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed", parse(self.formula))

    @property
    def response(self) -> str:
        return self.parsed.response.name

    def rows(self, site: str, frame: pd.DataFrame) -> Rows:
        """A site's complete rows."""
        kept, missing, missing_by_column = complete_rows(site, frame, self.parsed, self.weights, self.offset)
        y = tell_response(site, self.parsed.response, self.family, self.response_levels, kept)
        w = None if self.weights is None else weights_of(site, kept[self.weights])
        offset = None if self.offset is None else finite(site, "the offset", kept[self.offset])
        return Rows(self._encode(site, kept, len(y)), y, w, offset, missing, missing_by_column)

    def matrix(self, frame: pd.DataFrame, site: str = NEW_ROWS) -> np.ndarray:
        """A of rows whose response is not known; one with something missing is a row of NaN."""
        table = read_columns(site, frame, dict.fromkeys(name for factor in self.parsed.factors for name in factor.columns))
        complete = ~any_missing(table, len(frame))
        A = np.full((len(frame), len(self.columns)), np.nan)
        A[complete] = self._encode(site, {name: column.at(complete) for name, column in table.items()}, int(complete.sum()))
        return A

    def offsets(self, frame: pd.DataFrame, site: str = NEW_ROWS) -> np.ndarray | None:
        """The offset of the same rows, NaN where it is missing; None if the design has none."""
        if self.offset is None:
            return None
        column = read_columns(site, frame, [self.offset])[self.offset]
        finite(site, "the offset", column.at(~column.missing))
        return column.values

    def _encode(self, site: str, table: Mapping[str, Column], rows: int) -> np.ndarray:
        values: dict[str, Any] = {}
        for factor in self.parsed.factors:
            if factor.name in self.levels:
                levels = self.levels[factor.name]
                values[factor.name] = pd.Categorical.from_codes(codes(site, table[factor.columns[0]], levels), categories=list(levels))
            else:
                values[factor.name] = numbers(site, factor, table)
        names, A = _multiply_out(self.parsed, values, rows)
        for name, column in zip(names, A.T, strict=True):
            refuse_rows(site, name, ~np.isfinite(column), "is too large for a float", "Rescale its columns.")
        return A

    def to_dict(self) -> dict[str, Any]:
        return {
            "formula": self.formula,
            "family": self.family,
            "columns": list(self.columns),
            "intercept": self.intercept,
            "levels": {name: list(levels) for name, levels in self.levels.items()},
            "response_levels": None if self.response_levels is None else list(self.response_levels),
            "weights": self.weights,
            "offset": self.offset,
        }

    @staticmethod
    def from_dict(given: Any) -> "Design":
        """The design of `to_dict`. What follows from formula and levels is worked out anew, and must be what is written."""
        keys = {"formula": str, "family": str, "columns": list, "intercept": bool, "levels": dict}
        optional = {"response_levels": list, "weights": str, "offset": str}
        if not isinstance(given, dict) or set(given) != {*keys, *optional}:
            raise InvalidConfig(f"design: its keys must be {', '.join([*keys, *optional])}.")
        for name, kind in (*keys.items(), *optional.items()):
            if not (isinstance(given[name], kind) or (name in optional and given[name] is None)):
                raise InvalidConfig(f"design: {name} cannot be {type(given[name]).__name__}.")
        levels = {name: _read_levels(name, each) for name, each in given["levels"].items()}
        labels = None if given["response_levels"] is None else _read_levels("response", given["response_levels"])
        formula = parse(given["formula"])
        could_be = {factor.name for factor in formula.factors if factor.expression is None}
        must_be = {factor.name for factor in formula.factors if factor.category}
        if not must_be <= set(levels) <= could_be:
            raise InvalidConfig("design: levels must be those of the formula's categories.")
        design = design_of(formula, given["family"], levels, labels, given["weights"], given["offset"])
        if design.to_dict() != given:
            raise InvalidConfig("design: columns and intercept are not those that the formula and the levels make.")
        return design


def _read_levels(name: str, levels: Any) -> tuple:
    good = isinstance(levels, list) and len(levels) > 1 and all(isinstance(level, str | int | float) for level in levels)
    if good:
        alike = len({isinstance(level, str) for level in levels}) == 1
        good = alike and len(set(levels)) == len(levels) and all(isinstance(level, str) or math.isfinite(level) for level in levels)
    if not good:
        raise InvalidConfig(f"design: the levels of {str(name)[:80]} must be at least two different texts, or two different numbers.")
    return tuple(levels)


def design_of(
    formula: Formula, family: str, levels: dict[str, tuple], labels: tuple | None, weights: str | None, offset: str | None
) -> Design:
    one_row = {
        factor.name: pd.Categorical.from_codes([0], categories=list(levels[factor.name])) if factor.name in levels else np.ones(1)
        for factor in formula.factors
    }
    columns, _ = _multiply_out(formula, one_row, 1)
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InvalidConfig(f"formula: two of its terms make a column called {twice}; rename a column of the tables.")
    return Design(formula.text, family, columns, formula.intercept, levels, labels, weights, offset)


def _multiply_out(formula: Formula, values: Mapping[str, Any], rows: int) -> tuple[tuple[str, ...], np.ndarray]:
    """The columns of all terms, by formulaic, which is given every factor's value and evaluates nothing: names, and values."""
    terms = [shown.Term([shown.Factor(factor.name, eval_method="lookup") for factor in term]) for term in formula.terms]
    if not terms:
        return (), np.empty((rows, 0))
    one = [shown.Term([shown.Factor("1", eval_method="literal")])] if formula.intercept else []
    frame = pd.DataFrame(dict(values), index=range(rows))
    with np.errstate(over="ignore"):  # noticed by the caller
        matrix = formulaic.Formula([*one, *terms]).get_model_matrix(frame, context={}, output="numpy", na_action="ignore")
    names = matrix.model_spec.column_names[len(one) :]
    return tuple(names), np.asarray(matrix, np.float64)[:, len(one) :]
