"""Why data do not determine a model, in the names of columns: from sums over sites, and a yes or no from each.

constant    columns of one value everywhere, which the intercept tells already
tied        columns of which one follows from the others: null vectors of ΣAᵀA, in standardised coordinates, where all sizes are alike
certain     a combination v of columns along which no row becomes less likely: coefficients grow along it without end
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..certificate import extremes
from ..scaling import Scaling
from ..tables.columns import listed
from .asked import Questions
from .families import Family
from .fit import INTERCEPT
from .sums import Table, total, weighted_gram

Array = Any
MOST_COEFFICIENTS = 1024
BELONGS = 1e-5  # to a null vector: an entry that is larger than this part of its largest
CLEAN = 1e-3  # the same, of a direction that was only found by rounds
MOSTLY = 0.2  # a column that is told to have a part in a direction


def tied(questions: Questions, columns: Sequence[str], intercept: bool) -> str:
    """Which columns are constant or tied, or "". columns: names, that of the intercept last."""
    gram = total(questions(_gram)).matrix
    names = np.array(columns, object)
    if extremes(np.linalg.eigvalsh(gram)).singular is False:
        return ""
    size = np.sqrt(np.diag(gram))
    flat = size <= np.finfo(float).eps * size.max()
    if flat.any():
        what = "has the same value" if intercept else "is 0"
        return f"{listed(names[flat])}: {what} in all rows of all sites. Leave such a column out, or set reg > 0."
    values, vectors = np.linalg.eigh(gram / np.outer(size, size))
    null = np.abs(vectors[:, values <= len(values) * np.finfo(float).eps * values[-1]])
    in_it = np.any(null > BELONGS * null.max(axis=0, initial=0.0), axis=1)
    if not in_it.any():
        return ""
    advice = "Leave one of them out, or set reg > 0."
    return f"{listed(names[in_it])}: these columns are tied at all sites together, for one follows from the others. {advice}"


def certain(
    questions: Questions, original: Sequence[Table], family: Family, scaling: Scaling, columns: Sequence[str], response: str, found: Array
) -> str:
    """The columns of a direction along which coefficients grow without end, if it is one, or "".

    original   the tables before they were standardised, in which columns of 0 and 1 are exact
    found      a direction of x; either sign of it is tried, and without its small entries
    """
    if family.classes:
        return ""
    size = np.abs(found) * scaling.scale
    clean = np.where(size >= CLEAN * size.max(), found, 0.0)
    if not any(_holds(questions, original, family, v) for v in (clean, -clean, found, -found)):
        return ""
    part = np.abs(scaling.scaled(found))  # about their means columns tell themselves apart from the intercept
    mostly = [name for name, share in zip(columns, part, strict=True) if share >= MOSTLY * part.max() and name != INTERCEPT]
    if not mostly:
        return f"{response} has one value only, at all sites: there is nothing to explain."
    return (
        f"{response} is told for certain, in some rows or all, by {listed(mostly)}: coefficients grow without end. "
        "Leave such a column out, join levels that are rare, or set reg > 0."
    )


def _holds(questions: Questions, original: Sequence[Table], family: Family, v: Array) -> bool:
    answers = questions(partial(along, family=family, v=v), original)
    return all(answer.never_falls for answer in answers) and any(answer.rises for answer in answers)


class Gram(NamedTuple):
    matrix: Array


class Along(NamedTuple):
    """What a site says of a direction."""

    never_falls: bool  # no row's likelihood does
    rises: bool  # some row's does, for ever


def _gram(table: Table) -> Gram:
    return Gram(weighted_gram(table.A, table.w[:, None, None]))


def along(table: Table, family: Family, v: Array) -> Along:
    held = table.w > 0
    change, y = (table.A @ v)[held], table.y[held]
    if family.name == "binomial":
        margin = (2.0 * y - 1.0) * change
        return Along(bool(np.all(margin >= 0.0)), bool(np.any(margin > 0.0)))
    if family.name == "poisson":
        return Along(bool(np.all(np.where(y > 0.0, change == 0.0, change <= 0.0))), bool(np.any(change < 0.0)))
    return Along(False, False)
