"""SIGTERM and Ctrl-C, as an exception at the server and as an event at a site."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn


class Stopped(BaseException):
    """SIGTERM or Ctrl-C. Not a KeyboardInterrupt, which a solver answers with one more round: all is on the disk already."""


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    def raise_once(number: int, frame: Any) -> NoReturn:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    with _handled(raise_once):
        yield


@contextlib.contextmanager
def stop_set_by_signals(stop: threading.Event) -> Iterator[None]:
    with _handled(lambda number, frame: stop.set()):
        yield


@contextlib.contextmanager
def _handled(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
