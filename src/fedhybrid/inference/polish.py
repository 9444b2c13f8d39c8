"""From the solver's point to the last digits of the optimum: a few Newton steps with the sum of Hessians that inference needs anyway.

    g = Σᵢ sᵢ(z) + penalty,  H = Σᵢ Hᵢ(z) + penalty,  z⁺ = z − H⁻¹g        while √(gᵀH⁻¹g) halves

The solver ends when ‖z − z*‖ is proved to be small beside ‖z‖; statisticians count the right digits of every coefficient. What limits these
is the rounding of g, for H only has to be about right. So residuals of a gaussian model are formed in twice the precision, and each site
sends its sum with what its last digit leaves out: large sums of sites that cancel lose nothing.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from .asked import MOST_COEFFICIENTS, Questions
from .exact import down_to_one, two_product, two_sum
from .families import Family
from .sums import Look, Table, look, total

Array = Any
MOST_STEPS = 8
LAST_DIGIT = 4.0 * np.finfo(float).eps
ENTRIES_AT_ONCE = 1 << 16  # of a table whose products are summed: what a cache holds


class Slope(NamedTuple):
    score: Array
    rest: Array  # what the last digit of the score leaves out


class Polished(NamedTuple):
    z: Array
    moved: float  # ‖z − the solver's z‖
    looks: tuple[Look, ...]
    gradient: float  # ‖g‖ at z
    eigenvalues: Array | None  # of H at z, in ascending order; None where no Hessian was asked for


def polished(questions: Questions, family: Family, start: Array, penalty: Array, trusted: bool) -> Polished:
    """From `start`, if the solver can be trusted to have come near the optimum. penalty: one per coordinate, of the sum over rows."""
    z, best, best_size = start, None, math.inf
    curved = len(start) <= MOST_COEFFICIENTS
    for _ in range(MOST_STEPS if trusted and curved else 1):
        looks = questions(partial(look, family=family, x=z, curved=curved))
        slopes = total(questions.within(partial(slope, family=family, z=z)))
        seen = total(looks)
        g = slopes.score + slopes.rest + penalty * z
        H = seen.information + np.diag(penalty) if curved else None
        here = Polished(z, float(np.linalg.norm(z - start)), tuple(looks), float(np.linalg.norm(g)), None)
        move = None if H is None else _newton_step(H, g)
        if H is None or move is None:
            return best or here
        size = math.sqrt(max(float(-g @ move), 0.0))
        if not size < 0.5 * best_size:
            break
        best, best_size = here._replace(eigenvalues=np.linalg.eigvalsh(H)), size
        if np.linalg.norm(move) <= LAST_DIGIT * np.linalg.norm(z):
            break
        z = z + move
    assert best is not None  # the first step beats infinity
    return best


def _newton_step(H: Array, g: Array) -> Array | None:
    try:
        return -cho_solve(cho_factor(H, lower=True), g)
    except (LinAlgError, ValueError):  # singular, or not finite
        return None


@np.errstate(over="ignore", invalid="ignore")  # halves of what is too large are not finite, and then no step is made
def slope(table: Table, family: Family, z: Array) -> Slope:
    """A site's score, in twice the precision where the prediction is the mean itself and the rows are a dense table."""
    if family.link != "identity" or scipy.sparse.issparse(table.A):
        score = (table.A.T @ (table.w[:, None] * family.slopes(table.eta(z, family.m), table.y))).reshape(-1)
        return Slope(score, np.zeros(len(score)))
    off, rest = two_sum(table.offset, -table.y)
    for column, value in zip(table.A.T, z, strict=True):
        product, lost = two_product(column, value)
        off, lost_too = two_sum(off, product)
        rest = rest + (lost + lost_too)
    pull, lost = two_product(table.w, off)
    lost = lost + table.w * rest
    at_once = max(1, ENTRIES_AT_ONCE // max(1, len(pull)))
    parts = [_scores(table.A.T[start : start + at_once], pull, lost) for start in range(0, len(z), at_once)]
    values, rests = (np.concatenate([np.zeros(0), *each]) for each in zip(*parts, strict=True)) if parts else (np.zeros(0), np.zeros(0))
    score = values + rests
    return Slope(score, (values - score) + rests)


def _scores(columns: Array, pull: Array, lost: Array) -> tuple[Array, Array]:
    product, error = two_product(np.ascontiguousarray(columns), pull)
    return down_to_one(product, error + columns * lost)
