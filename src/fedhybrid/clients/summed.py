"""Sites elsewhere of which the server is told sums only: `Remote`, with a secure sum in place of every round of replies.

Where the method allows it and the terms say "bridge", sites send how their replies changed, and the server's total keeps the last reply
of whoever is late: the same mean over all sites as in the open, without any of them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..federation.grid import Grid
from ..federation.journal import Record
from ..federation.sums import SumExchange, Summed
from ..secure.sums import Mode
from ..status import CheckpointError
from .base import Local, decoded
from .remote import Remote


class SummedRemote(Remote):
    """The sites of one epoch of a run, behind masks."""

    def __init__(self, exchange: SumExchange, *rest: Any) -> None:
        super().__init__(exchange, *rest)
        self.sums = exchange
        self.grids: dict[int, Grid] = {}
        self.stream: int | None = None  # the question whose changes are being summed

    def _census(self) -> np.ndarray:
        return self._refined(Grid((True, True), self.terms.secure.bits, self.n), -1).row

    def _total(self, number: int, body: np.ndarray, up: Any, stale: bool, wrong: Callable) -> tuple[int, frozenset[str], Any]:
        record = next(self.recorded, None)
        real = tuple(leaf.dtype.kind == "f" for leaf in up.leaves)
        grid = self.grids.setdefault(number, Grid(real, self.terms.secure.bits, self.n))
        mode = Mode.SUM
        if stale and self.partial:
            mode, self.stream = Mode.CHANGES if self.stream == number else Mode.BASE, number
        if record is not None:
            found = self._read_sum(record, len(real))
            grid.after(found.scales, found.largest)
        else:
            found = self._refined(grid, number, body, mode)
            header = {"kind": "sum", "round": self.round, "number": number, "who": list(found.who), "scales": list(found.scales)}
            self.journal.add(header, np.concatenate([found.largest, found.row]))
        return len(found.who), frozenset(found.who), decoded(up.unpack(found.row))

    def _refined(self, grid: Grid, number: int, body: np.ndarray | None = None, mode: Mode = Mode.SUM) -> Summed:
        """A sum; at a better scale where the first was a shot in the dark, and far too coarse."""
        census = number < 0
        question = self._question("census", 0) if census else self._question("ask", number, body)
        sizes = (1, 1) if census else self.protocol.questions[number].up.sizes
        recover = None if census else self._recovery
        found = self.sums.total(question, sizes, grid.scales, recover, mode=mode)
        if grid.after(found.scales, found.largest) and mode == Mode.SUM:
            found = self.sums.total(question, sizes, grid.scales, recover)
            grid.after(found.scales, found.largest)
        return found

    def _read_sum(self, record: Record, parts: int) -> Summed:
        header, numbers = record
        if header.get("kind") != "sum" or header["round"] != self.round or len(header["scales"]) != parts:
            raise CheckpointError(f"{self.journal.path} is of another run: its round {self.round} is not this one's.")
        return Summed(numbers[parts:], tuple(header["who"]), tuple(header["scales"]), numbers[:parts])

    def renew(self, local: Local) -> Local:
        self.stream = None
        return super().renew(local)
