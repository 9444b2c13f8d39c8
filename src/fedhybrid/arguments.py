"""Reading parameters: numbers that are numbers, or an `InvalidConfig` that says what would do."""

from typing import Any

import jax
import numpy as np

from .status import InvalidConfig


def numeric(name: str, value: Any) -> np.ndarray:
    """`value` as float64; whole and real numbers only, no strings, truth values or complex numbers."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidConfig(f"{name} must be a number or an array of numbers, not {type(value).__name__}.") from None


def positive(name: str, value: Any, *, per_client: bool = False) -> Any:
    """A positive number, or (per_client) an array of them; inside somebody's vmap or jit it is taken as it is."""
    if isinstance(value, jax.core.Tracer):
        return value
    array = numeric(name, value)
    if array.ndim > per_client:
        raise InvalidConfig(f"{name} must be {'a number or one per client' if per_client else 'one number'}.")
    if not (np.all(np.isfinite(array)) and np.all(array > 0)):
        raise InvalidConfig(f"{name} must be positive and finite.")
    return float(array) if array.ndim == 0 else array


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidConfig(f"{name} must be True or False, not {value!r}.")
    return bool(value)


def whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 2**53:
        raise InvalidConfig(f"{name} must be a positive whole number, not {value!r}.")
    return int(value)
