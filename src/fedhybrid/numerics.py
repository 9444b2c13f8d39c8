"""The settings that numbers are computed under, scoped: a caller's own settings stay as they are."""

import contextlib
import functools
import threading
from collections.abc import Iterator

import jax
from threadpoolctl import ThreadpoolController


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


class _OneThread:
    """BLAS limited to one thread while anybody is inside: the limit is the process's, so threads share one and the last restores it."""

    def __init__(self) -> None:
        self.lock, self.inside, self.limit = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.limit.enter_context(_libraries().limit(limits=1, user_api="blas"))

    def __exit__(self, *exc: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.limit.close()


_one_thread = _OneThread()


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """float64, and one thread inside each BLAS call.

    XLA runs several small factorisations at once, each a BLAS call; if each of these splits itself over the same cores again,
    they wait for one another (a 100 × 100 triangular solve took 8 ms instead of 0.3 on two cores).
    """
    with jax.enable_x64(True), _one_thread:
        yield
