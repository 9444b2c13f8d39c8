"""What a fit is given, by a formula or as arrays: every site's rows, and what is known of their columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from ..status import InvalidConfig, InvalidData
from ..tables.columns import listed
from ..validation import read_sites
from .fit import INTERCEPT

if TYPE_CHECKING:
    from ..tables.design import Design


class Given(NamedTuple):
    """Every site's rows, and what is known of their columns."""

    rows: Any  # for Fleet
    columns: tuple[str, ...]
    intercept: bool
    missing: tuple[int, ...]
    notes: tuple[str, ...]
    design: "Design | None"

    @property
    def levels(self) -> tuple[Any, ...]:
        return () if self.design is None else tuple(self.design.response_levels or ())


def by_formula(frames: Any, formula: str, family: str, weights: Any, offset: Any, reference: Mapping[str, str], min_rows: int) -> Given:
    from ..tables.agree import agree

    if not isinstance(frames, Mapping) or not all(isinstance(frame, pd.DataFrame) for frame in frames.values()):
        raise InvalidData("with a formula, sites must be a dict of data frames by name.")
    design, notes = agree(frames, formula, family=family, reference=reference, weights=weights, offset=offset, min_rows=min_rows)
    found = {str(name): design.rows(str(name), frame) for name, frame in frames.items()}
    rows = {name: (site.A, site.y, site.w, site.offset) for name, site in found.items()}
    return Given(
        rows,
        design.columns,
        design.intercept,
        tuple(site.missing for site in found.values()),
        (*notes, *_one_value(rows, design, min_rows)),
        design,
    )


def _one_value(rows: Mapping[str, tuple[Any, ...]], design: "Design", min_rows: int) -> list[str]:
    """Where a column of numbers or the response is the same in all rows of some sites: alone, such a site could not be fitted."""
    numbers = {factor.name for factor in design.parsed.factors if factor.name not in design.levels}
    same: dict[str, list[str]] = {}
    for name, (A, y, *_) in rows.items():
        columns = [(design.response, y)] if design.family in ("binomial", "multinomial") else []
        columns += [(column, values) for column, values in zip(design.columns, A.T, strict=True) if column in numbers]
        for column, values in columns:
            if len(y) >= max(min_rows, 2) and np.ptp(values) == 0.0:
                same.setdefault(column, []).append(name)
    return [
        f"{column} is the same in all rows at {listed(sites)}; no harm is done, as all sites' rows are fitted together."
        for column, sites in same.items()
        if len(sites) < len(rows)
    ]


def by_arrays(sites: Any, intercept: bool, columns: Sequence[str] | None) -> Given:
    given = sites.values() if isinstance(sites, Mapping) else sites
    if isinstance(given, Iterable) and any(isinstance(site, pd.DataFrame) for site in given):
        raise InvalidConfig("data frames need a formula, such as 'death ~ age + C(sex)'; without one a site is (A, y).")
    read, _ = read_sites(sites, None)
    p = read[0].A.shape[1]
    names = tuple(f"x{c + 1}" for c in range(p)) if columns is None else tuple(str(column) for column in columns)
    if len(names) != p or len(set(names)) < p or INTERCEPT in names:
        raise InvalidConfig(f"columns must be {p} different names, none of them {INTERCEPT}.")
    return Given({site.name: tuple(site[1:]) for site in read}, names, intercept, (0,) * len(read), (), None)
