"""Whoever wants to hear how a run goes: a bar in the terminal, a tracker of experiments, a plot of one's own.

class Print(fh.Callback):
    def advance(self, rows):
        print(rows["rounds"][-1], rows["residual"][-1])

fh.solve(fleet, callbacks=[Print()])
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .result import Result
from .status import InvalidConfig


class Callback:
    """What it does changes no number of the run; if it fails, the run goes on without it, and a note of the result says so."""

    def begin(self, run: Mapping[str, Any]) -> None:
        """Before the first round: algorithm, parameters, loss, sites, d, tol, …, in plain types."""

    def advance(self, rows: Mapping[str, np.ndarray]) -> None:
        """After every few steps: the new rows of the trace, by column: rounds, residual, floats_up, …; and x0, a matrix."""

    def end(self, result: Result) -> None:
        """At the end, however it ended."""


class Audience:
    """All callbacks of a run."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        try:
            self.callbacks = list(callbacks)
        except TypeError:
            raise InvalidConfig(f"callbacks must be a list, not {type(callbacks).__name__}.") from None
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise InvalidConfig(f"callbacks must be instances of fedhybrid.Callback, not {callback!r}.")
        self.notes: tuple[str, ...] = ()

    def begin(self, run: Mapping[str, Any]) -> None:
        self._tell("begin", run)

    def advance(self, rows: Mapping[str, np.ndarray]) -> None:
        self._tell("advance", rows)

    def end(self, result: Result) -> None:
        self._tell("end", result)

    def _tell(self, what: str, about: Any) -> None:
        for callback in list(self.callbacks):
            try:
                getattr(callback, what)(about)
            except Exception as error:  # hours of rounds are not to be lost because a tracker's disk is full
                self.callbacks.remove(callback)
                self.notes = (*self.notes, f"{type(callback).__name__} failed and was left out: {type(error).__name__}: {error}")
