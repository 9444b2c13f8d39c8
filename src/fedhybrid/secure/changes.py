"""Last-known values under secure sums: a site sends how its values changed since the last ones accepted, the server keeps the total.

Changes are rounded, values are not: what a site remembers is its last accepted value plus the change that it sent, in exact integers.
So the server's total is the sum of what the sites remember, bit for bit, also where the scale is another one in every round; and what
rounding loses in one round the next one brings back.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import fixedpoint
from .errors import Reason, SecureError
from .wire import Reader, Writer

MOST = 10**9


class Leaf(NamedTuple):
    """whole/2^scale, exactly."""

    whole: np.ndarray  # Python integers
    scale: int

    def finer(self, scale: int) -> "Leaf":
        """The same at this scale, if that is a finer one."""
        return self if scale <= self.scale else Leaf(self.whole << (scale - self.scale), scale)

    def plus(self, change: np.ndarray, scale: int) -> "Leaf":
        fine = self.finer(scale)
        return Leaf(fine.whole + (fixedpoint.as_objects(change.tolist()) << (fine.scale - scale)), fine.scale)

    def write(self, to: Writer) -> None:
        to.number("h", self.scale).integers(self.whole)

    @staticmethod
    def read(reader: Reader) -> "Leaf":
        scale = reader.number("h")
        return Leaf(fixedpoint.as_objects(reader.integers(MOST)), scale)


Leaves = tuple[Leaf, ...]
Scales = Sequence[tuple[int, int]]  # size and scale exponent of every leaf


def split(flat: np.ndarray, scales: Scales) -> list[np.ndarray]:
    ends = np.cumsum([size for size, _ in scales])
    return np.split(flat, ends[:-1])


class Changes:
    """The site's half: the values of the last accepted round, and of the answer that may become it."""

    def __init__(self) -> None:
        self.base = 0
        self.held: dict[int, Leaves] = {}

    def begin(self, round_: int, encoded: np.ndarray, scales: Scales) -> None:
        """A base round: these values, as they are sent."""
        parts = zip(split(encoded, scales), scales, strict=True)
        self.base, self.held = round_, {round_: tuple(Leaf(fixedpoint.as_objects(part.tolist()), s) for part, (_, s) in parts)}

    def change(self, base: int, accepted: int, values: Sequence[np.ndarray], scales: Scales, n: int) -> np.ndarray:
        """What to send, int64; nothing is remembered of it yet."""
        if base != self.base or accepted not in self.held:
            raise SecureError(
                Reason.STREAM_LOST, f"The values of round {accepted} (base {base}) are not kept here. A base round has to begin anew."
            )
        last = self.held[accepted]
        if [len(leaf.whole) for leaf in last] != [size for size, _ in scales]:
            raise SecureError(Reason.NOT_ALLOWED, "The parts of the vector have other sizes than in the base round.")
        parts = zip(last, values, scales, strict=True)
        changes = [_change(leaf, value, scale, n, j) for j, (leaf, value, (_, scale)) in enumerate(parts)]
        return np.concatenate(changes)

    def sent(self, accepted: int, round_: int, whole: np.ndarray, scales: Scales) -> None:
        """This is what was sent. Other rounds than these two are over: the server has said which one it accepted."""
        last = self.held[accepted]
        parts = zip(last, split(whole, scales), scales, strict=True)
        self.held = {accepted: last, round_: tuple(leaf.plus(part, scale) for leaf, part, (_, scale) in parts)}

    def values(self, accepted: int) -> list[np.ndarray]:
        return [fixedpoint.real(leaf.whole, leaf.scale) for leaf in self.held[accepted]]

    def write(self, to: Writer) -> None:
        to.number("Q", self.base).number("B", len(self.held))
        for round_, leaves in sorted(self.held.items()):
            to.number("Q", round_)
            write_leaves(to, leaves)

    @staticmethod
    def read(reader: Reader) -> "Changes":
        changes = Changes()
        changes.base = reader.number("Q")
        changes.held = {reader.number("Q"): read_leaves(reader) for _ in range(reader.number("B"))}
        return changes


def _change(last: Leaf, value: np.ndarray, scale: int, n: int, j: int) -> np.ndarray:
    fine = last.finer(scale)
    change = fixedpoint.integers(value, fine.scale, leaf=j) - fine.whole
    if fine.scale > scale:
        change = fixedpoint.coarser(change, fine.scale - scale)
    largest = max((abs(v) for v in change), default=0)
    fixedpoint.refuse_overflow(np.array([min(largest, fixedpoint.LIMIT)], np.int64), scale, n, leaf=j)
    return change.astype(np.int64)


class Total:
    """The server's half: the sum of what all sites remember, and whose answer of which round is in it."""

    def __init__(self) -> None:
        self.base = 0
        self.accepted: dict[int, int] = {}
        self.leaves: Leaves = ()

    def begin(self, round_: int, whole: np.ndarray, scales: Scales, sites: Sequence[int]) -> None:
        parts = zip(split(whole, scales), scales, strict=True)
        self.base, self.accepted = round_, dict.fromkeys(sites, round_)
        self.leaves = tuple(Leaf(fixedpoint.as_objects(part.tolist()), s) for part, (_, s) in parts)

    def add(self, round_: int, whole: np.ndarray, scales: Scales, sites: Sequence[int]) -> None:
        parts = zip(self.leaves, split(whole, scales), scales, strict=True)
        self.leaves = tuple(leaf.plus(part, scale) for leaf, part, (_, scale) in parts)
        self.accepted |= dict.fromkeys(sites, round_)

    def real(self) -> list[np.ndarray]:
        return [fixedpoint.real(leaf.whole, leaf.scale) for leaf in self.leaves]

    def write(self, to: Writer) -> None:
        to.number("Q", self.base).number("I", len(self.accepted))
        for site, round_ in sorted(self.accepted.items()):
            to.number("H", site).number("Q", round_)
        write_leaves(to, self.leaves)

    @staticmethod
    def read(reader: Reader) -> "Total":
        total = Total()
        total.base = reader.number("Q")
        total.accepted = {reader.number("H"): reader.number("Q") for _ in range(reader.count(MOST))}
        total.leaves = read_leaves(reader)
        return total


def write_leaves(to: Writer, leaves: Leaves) -> None:
    to.number("I", len(leaves))
    for leaf in leaves:
        leaf.write(to)


def read_leaves(reader: Reader) -> Leaves:
    return tuple(Leaf.read(reader) for _ in range(reader.count(MOST)))
