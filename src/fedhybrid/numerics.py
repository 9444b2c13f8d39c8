"""The settings that numbers are computed under, scoped: a caller's own settings stay as they are."""

import contextlib
import functools
from collections.abc import Iterator

import jax
from threadpoolctl import ThreadpoolController


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """float64, and one thread inside each BLAS call.

    XLA runs several small factorisations at once, each a BLAS call; if each of these splits itself over the same cores again,
    they wait for one another (a 100 × 100 triangular solve took 8 ms instead of 0.3 on two cores).
    """
    with jax.enable_x64(True), _libraries().limit(limits=1, user_api="blas"):
        yield
