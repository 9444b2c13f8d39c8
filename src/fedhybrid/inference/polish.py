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
from .families import Family
from .sums import Look, Table, look, total

Array = Any
MOST_STEPS = 8
LAST_DIGIT = 4.0 * np.finfo(float).eps
HALVES = 2.0**27 + 1.0  # by which a float of 53 bits is cut into two of 26


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


def slope(table: Table, family: Family, z: Array) -> Slope:
    """A site's score, in twice the precision where the prediction is the mean itself and the rows are a dense table."""
    if family.link != "identity" or scipy.sparse.issparse(table.A):
        score = (table.A.T @ (table.w[:, None] * family.slopes(table.eta(z, family.m), table.y))).reshape(-1)
        return Slope(score, np.zeros(len(score)))
    off, rest = _sum(table.offset, -table.y)
    for column, value in zip(table.A.T, z, strict=True):
        product, lost = _product(column, value)
        off, lost_too = _sum(off, product)
        rest = rest + (lost + lost_too)
    pull, lost = _product(table.w, off)
    lost = lost + table.w * rest
    sums = np.array([_down_to_one(product, error + column * lost) for column in table.A.T for product, error in [_product(column, pull)]])
    values, rests = sums.reshape(-1, 2).T
    score = values + rests
    return Slope(score, (values - score) + rests)


def _down_to_one(values: Array, rest: Array) -> tuple[float, float]:
    """Σ values + Σ rest, as a float and what it leaves out: halves are added to each other until one is left."""
    if not len(values):
        return 0.0, 0.0
    while len(values) > 1:
        half = (len(values) + 1) // 2
        gap = (0, 2 * half - len(values))
        values, lost = _sum(values[:half], np.pad(values[half:], gap))
        rest = rest[:half] + np.pad(rest[half:], gap) + lost
    return float(values[0]), float(rest[0])


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, and what its rounding left out, exactly (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _product(a: Array, b: Any) -> tuple[Array, Array]:
    """a·b, and what its rounding left out, exactly (Dekker, Veltkamp)."""
    p = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: Any) -> tuple[Any, Any]:
    c = HALVES * a
    high = c - (c - a)
    return high, a - high
