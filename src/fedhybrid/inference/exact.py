"""Sums and products of which nothing is lost: a float and, beside it, what its rounding left out."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any
HALVES = 2.0**27 + 1.0  # by which a float of 53 bits is cut into two of 26


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, and what its rounding left out, exactly (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Array, b: Any) -> tuple[Array, Array]:
    """a·b, and what its rounding left out, exactly (Dekker, Veltkamp)."""
    p = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: Any) -> tuple[Any, Any]:
    c = HALVES * a
    high = c - (c - a)
    return high, a - high


def down_to_one(values: Array, rest: Array) -> tuple[Array, Array]:
    """Σ values + Σ rest along the last axis, as floats and what they leave out: halves are added to each other until one is left."""
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1]), np.zeros(values.shape[:-1])
    while (n := values.shape[-1]) > 1:
        half, odd = (n + 1) // 2, n % 2
        more, more_rest = values[..., half:], rest[..., half:]
        if odd:
            none = np.zeros((*values.shape[:-1], 1))
            more, more_rest = np.concatenate([more, none], axis=-1), np.concatenate([more_rest, none], axis=-1)
        values, lost = two_sum(values[..., :half], more)
        rest = rest[..., :half] + more_rest + lost
    return values[..., 0], rest[..., 0]


def exact_sum(arrays: Sequence[Array]) -> Array:
    """Entry by entry the float next to the true sum, and so the same in every order.

    What the roundings left out is summed too; where that sum's own rounding could matter, `math.fsum` decides.
    """
    flat = np.stack([np.asarray(array, float).ravel() for array in arrays])
    found, rest, size = np.zeros(flat.shape[1]), np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    with np.errstate(all="ignore"):  # what is not finite is not sure either
        for values in flat:
            found, lost = two_sum(found, values)
            rest, size = rest + lost, size + np.abs(lost)
        found, rest = two_sum(found, rest)
        unsure = 2.0 * len(flat) * np.finfo(float).eps * size
        sure = (found + (rest - unsure) == found) & (found + (rest + unsure) == found) & np.isfinite(found)
    for k in np.flatnonzero(~sure):
        found[k] = math.fsum(flat[:, k])
    return (found + 0.0).reshape(np.shape(arrays[0]))
