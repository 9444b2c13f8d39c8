"""The eight messages. All begin with magic, kind and the agreement's tag (37 bytes); sites are numbered in name order."""

import hashlib
from enum import IntEnum
from typing import NamedTuple

from .agreement import Agreement
from .cards import ID, Bundle
from .errors import Reason, SecureError
from .wire import Reader, Writer, malformed, message

MOST_LEAVES, MOST_BUNDLES = 1024, 16


class Kind(IntEnum):
    HELLO = 1  # server: who are you?
    CARD = 2  # site: its card
    CARDS = 3  # server: everyone's cards; make so many bundles
    BUNDLES = 4  # site
    ROUND = 5  # server: a question; who else is asked, with which masks
    VECTOR = 6  # site: its masked vector, and new bundles
    UNMASK = 7  # server: these have answered; open their sum
    SHARES = 8  # site
    REFUSED = 9  # site: the number of a reason


class Mode(IntEnum):
    SUM = 0  # everyone's values, once
    BASE = 1  # everyone's values, and from now on changes against them
    CHANGES = 2  # of whoever answers: how its values differ from the last ones that were accepted


class Seat(NamedTuple):
    """One site of a round's cohort: its card, and in rounds of changes its bundle."""

    site: int
    card: bytes
    bundle: Bundle | None


class Question(NamedTuple):
    """The secure part of a question. `shared` is the same for all sites, and its digest is in every mask: whoever was told otherwise
    has masks that do not cancel."""

    round: int  # never twice
    step: int  # of the algorithm: asked again under another round number where a round failed
    mode: Mode
    what: bytes  # SHA-256 of the rest of the question
    base: int  # the base round that changes refer to
    leaves: tuple[tuple[int, int], ...]  # size and scale
    seats: tuple[Seat, ...]
    shared: bytes = b""
    accepted: int = 0  # the last round of this base in which this site's answer was summed
    refill: int = 0  # new bundles wanted

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.leaves)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.shared).digest()

    def sealed(self, tag: bytes) -> bytes:
        """What all sites get of it."""
        to = message(Kind.ROUND, tag).number("Q", self.round).number("Q", self.step).number("B", self.mode).raw(self.what)
        to.number("Q", self.base).number("I", len(self.leaves))
        for size, scale in self.leaves:
            to.number("I", size).number("h", scale)
        to.number("I", len(self.seats))
        for seat in self.seats:
            if seat.bundle is None:
                to.number("H", seat.site).raw(seat.card)
            else:
                seat.bundle.write(to)
        return to.bytes()

    def to_site(self, accepted: int, refill: int) -> bytes:
        return Writer().raw(self.shared).number("Q", accepted).number("B", refill).bytes()

    @staticmethod
    def read(reader: Reader, data: bytes, agreement: Agreement) -> "Question":
        round_, step, mode = reader.number("Q"), reader.number("Q"), reader.number("B")
        if mode not in tuple(Mode):
            raise malformed(f"mode {mode}")
        what, base = reader.raw(32), reader.number("Q")
        leaves = tuple((reader.number("I"), reader.number("h")) for _ in range(reader.count(MOST_LEAVES)))
        seats = tuple(_seat(reader, mode) for _ in range(reader.count(agreement.n)))
        shared = data[: reader.at]
        question = Question(round_, step, Mode(mode), what, base, leaves, seats, shared, reader.number("Q"), reader.number("B"))
        reader.end()
        numbers = [seat.site for seat in seats]
        if numbers != sorted(set(numbers)) or any(number >= agreement.n for number in numbers):
            raise malformed("the sites of a round must be of the roster, in order, and once each")
        if not 1 <= question.size <= agreement.most:
            raise SecureError(
                Reason.NOT_ALLOWED, f"A vector of {question.size} numbers was asked for; 1 to {agreement.most} were agreed on."
            )
        low, high = agreement.scales
        if any(not low <= scale <= high for _, scale in leaves):
            raise SecureError(Reason.NOT_ALLOWED, f"A scale was asked for that is not from 2^{low} to 2^{high}, as was agreed on.")
        return question


def _seat(reader: Reader, mode: int) -> Seat:
    if mode != Mode.CHANGES:
        return Seat(reader.number("H"), reader.raw(ID), None)
    bundle = Bundle.read(reader)
    return Seat(bundle.site, bundle.card, bundle)


def refusal(tag: bytes, site: int, round_: int, error: SecureError) -> bytes:
    return message(Kind.REFUSED, tag).number("H", site).number("Q", round_).number("B", error.reason).number("H", error.leaf).bytes()


def survivors_digest(survivors: tuple[int, ...]) -> bytes:
    return hashlib.sha256(Writer().numbers("H", survivors).bytes()).digest()
