"""Real numbers as integers of a fixed scale, so that a sum has one exact value in whatever order it is taken.

A vector consists of leaves; leaf j is sent as round(v·2^sⱼ), half to even. Nothing is ever clipped or wrapped: a value is refused
where n of its size could reach 2⁶². Values that shrink by many orders in a run (residuals) get a scale of their own for every round:
next_scale proposes it from the last sum, lowered is the answer to a refusal.
"""

import math
from collections.abc import Sequence

import numpy as np

from .errors import Reason, SecureError

SCALE = 40  # 2⁻⁴⁰ ≈ 1e-12; with a thousand sites the largest value is then 4096
LOWEST, HIGHEST = -400, 400  # beyond which no agreement can go
LIMIT = 2**62


def encode(values: np.ndarray, scale: int, n: int, *, leaf: int = 0) -> np.ndarray:
    """round(values·2^scale) as int64; refused where n values of that size could overflow."""
    scaled = _scaled(values, scale, leaf)
    if scaled.size and np.max(np.abs(scaled)) >= LIMIT:
        raise _overflow(scale, n, leaf)
    whole = scaled.astype(np.int64)
    refuse_overflow(whole, scale, n, leaf=leaf)
    return whole


def decode(total: np.ndarray, scale: int) -> np.ndarray:
    """An int64 total as float64, rounded once."""
    return np.ldexp(np.asarray(total, np.int64).astype(np.float64), -scale)


def refuse_overflow(whole: np.ndarray, scale: int, n: int, *, leaf: int = 0) -> None:
    if whole.size and max(int(whole.max()), -int(whole.min())) * n >= LIMIT:
        raise _overflow(scale, n, leaf)


def integers(values: np.ndarray, scale: int, *, leaf: int = 0) -> np.ndarray:
    """round(values·2^scale) as Python integers, of any size."""
    return as_objects([int(v) for v in _scaled(values, scale, leaf).tolist()])


def as_objects(values: Sequence[int]) -> np.ndarray:
    """An array of Python integers: +, − and << on it never overflow."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def coarser(whole: np.ndarray, bits: int) -> np.ndarray:
    """whole/2^bits, rounded half to even; whole holds Python integers."""
    half, mask = 1 << (bits - 1), (1 << bits) - 1
    return as_objects([(v >> bits) + ((v & mask) + ((v >> bits) & 1) > half) for v in whole])


def real(whole: np.ndarray, scale: int) -> np.ndarray:
    """whole/2^scale as float64, rounded once; whole holds Python integers."""
    if scale < 0:
        return np.array([float(int(v) << -scale) for v in whole], np.float64)
    return np.array([int(v) / (1 << scale) for v in whole], np.float64)


def next_scale(last: np.ndarray, scale: int, n: int, limits: tuple[int, int], *, margin: int = 12) -> int:
    """The finest scale at which every site may send 2^margin times the last sum, for values that do not cancel in it.

    A last sum of zero only says that it was finer than its grid: then the next grid is finer by `margin` bits.
    """
    largest = float(np.max(np.abs(last), initial=0.0))
    if not math.isfinite(largest):
        raise SecureError(Reason.NOT_FINITE, "The last sum is not finite, so that no scale follows from it.")
    proposal = scale + margin if largest == 0 else 61 - margin - math.frexp(largest)[1] - (n - 1).bit_length()
    return min(max(proposal, limits[0]), limits[1])


def lowered(scale: int, limits: tuple[int, int], *, by: int = 12) -> int:
    """The scale to ask again with after a site has refused this one."""
    if scale <= limits[0]:
        raise SecureError(
            Reason.OVERFLOW,
            f"A site's values do not fit at scale 2^{scale}, the coarsest that was agreed on. Standardise the columns, or agree on less.",
        )
    return max(scale - by, limits[0])


def _scaled(values: np.ndarray, scale: int, leaf: int) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype != np.float64 or values.ndim != 1:
        raise SecureError(Reason.MALFORMED, f"Part {leaf} must be a flat float64 array, not {values.dtype} of shape {values.shape}.", leaf)
    if not np.all(np.isfinite(values)):
        raise SecureError(Reason.NOT_FINITE, f"Part {leaf} of the vector is not finite. It was not sent.", leaf)
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.rint(np.ldexp(values, scale))  # exact: ldexp moves the exponent only
    if not np.all(np.isfinite(scaled)):
        raise _overflow(scale, 1, leaf)
    return scaled


def _overflow(scale: int, n: int, leaf: int) -> SecureError:
    return SecureError(
        Reason.OVERFLOW,
        f"Part {leaf} of the vector is too large for scale 2^{scale} and {n} sites. It was not sent; ask again with a smaller scale.",
        leaf,
    )
