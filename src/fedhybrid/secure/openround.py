"""One round as the server holds it: who has answered, the sum of what they sent, and the shares that open it."""

from enum import IntEnum

import numpy as np

from . import opening
from .agreement import Agreement
from .cards import ED, ID, SEALED
from .errors import Reason, SecureError
from .messages import Kind, Mode, Question, survivors_digest
from .registry import Registry
from .shamir import SHARE
from .wire import Reader, Writer, malformed, message, opened

MOST_KEPT = 2**31


class Phase(IntEnum):
    IDLE = 0
    ASKED = 1  # vectors are awaited
    OPENING = 2  # shares are awaited


class OpenRound:
    def __init__(self, agreement: Agreement, question: Question, sealed: dict[int, bytes], refill: dict[int, int]) -> None:
        self.agreement, self.question = agreement, question
        self.sealed = sealed  # site → the sealed shares of its bundle
        self.refill = refill  # site → new bundles that its answer is to bring
        self.phase = Phase.ASKED
        self.answered: set[int] = set()
        self.whole = np.zeros(question.size, np.uint64)  # sum of the masked vectors
        self.survivors: tuple[int, ...] = ()
        self.shares: dict[int, list[bytes | None]] = {}

    def outstanding(self) -> list[int]:
        if self.phase == Phase.OPENING:
            return [i for i in self.survivors if i not in self.shares]
        return [seat.site for seat in self.question.seats if seat.site not in self.answered]

    def to_site(self, site: int, accepted: int) -> bytes:
        if self.phase == Phase.ASKED:
            return self.question.to_site(accepted, self.refill.get(site, 0))
        to = message(Kind.UNMASK, self.agreement.tag).number("Q", self.question.round).raw(self.question.digest)
        to.numbers("H", self.survivors)
        for seat in self.question.seats:
            to.raw(self.sealed[seat.site][SEALED * site : SEALED * (site + 1)])
        return to.bytes()

    def check(self, site: int, name: str, data: bytes, reader: Reader, registry: Registry) -> None:
        """Whether a signed answer is of this round, and from the card of this site that was asked."""
        card, round_, digest = reader.raw(ID), reader.number("Q"), reader.raw(32)
        if round_ != self.question.round or digest != self.question.digest:
            raise SecureError(Reason.WRONG_ROUND, f"{name} answers round {round_}, which is not open. It was not used.")
        if card not in {seat.card for seat in self.question.seats if seat.site == site}:
            raise SecureError(Reason.UNKNOWN_CARD, f"{name} answers round {round_} by another card than was asked. It was not used.")
        registry.verify(site, data[-ED:], data[:-ED])

    def receive_vector(self, site: int, name: str, reader: Reader, registry: Registry) -> bool:
        """Whether it was the first one."""
        if site in self.answered:
            return False
        if self.phase != Phase.ASKED:
            raise SecureError(Reason.WRONG_ROUND, f"{name} answers round {self.question.round} after it was closed. It was not used.")
        if reader.count(self.question.size) != self.question.size:
            raise malformed(f"a vector that does not have {self.question.size} numbers")
        words = reader.words(self.question.size)
        registry.store(site, registry.read_bundles(site, reader))
        self.whole = self.whole + words
        self.answered.add(site)
        return True

    def receive_shares(self, site: int, name: str, reader: Reader) -> bool:
        """Whether they were the first ones."""
        number, seats = self.question.round, self.question.seats
        if self.phase != Phase.OPENING or site not in self.survivors or reader.raw(32) != survivors_digest(self.survivors):
            raise SecureError(Reason.WRONG_ROUND, f"{name} opens round {number} for other sites than it consists of. It was not used.")
        if reader.count(len(seats)) != len(seats):
            raise malformed(f"shares that are not of {len(seats)} sites")
        shares = [(reader.number("B"), reader.raw(SHARE)) for _ in seats]
        reader.raw(ED)
        reader.end()
        if site in self.shares:
            return False
        self.shares[site] = [share if there else None for there, share in shares]
        return True

    def close(self) -> None:
        if self.phase != Phase.ASKED or self.question.mode != Mode.CHANGES:
            raise ValueError("There is no round of changes to close. Other rounds end when all sites have answered.")
        if len(self.answered) < self.agreement.enough:
            raise SecureError(
                Reason.TOO_FEW,
                f"{len(self.answered)} of {len(self.question.seats)} sites have answered round {self.question.round}, and "
                f"{self.agreement.enough} are needed. Nothing is opened: wait for more, or ask again.",
            )
        self.survivors, self.phase = tuple(sorted(self.answered)), Phase.OPENING

    @property
    def ready(self) -> bool:
        if self.question.mode != Mode.CHANGES:
            return len(self.answered) == len(self.question.seats)
        enough = self.agreement.threshold
        columns = zip(*self.shares.values(), strict=True)
        return len(self.shares) >= enough and all(sum(share is not None for share in column) >= enough for column in columns)

    def sum(self) -> tuple[tuple[int, ...], np.ndarray]:
        """Whose vectors it consists of, and the sum. Below the threshold nothing is opened."""
        if not self.ready:
            raise SecureError(
                Reason.BELOW_THRESHOLD,
                f"Round {self.question.round} cannot be opened: {len(self.answered)} of {len(self.question.seats)} vectors and shares of "
                f"{len(self.shares)} sites are here. Send pending() again, or ask another step.",
            )
        if self.question.mode != Mode.CHANGES:
            return tuple(sorted(self.answered)), self.whole.view(np.int64)
        masks = opening.masks_left(self.agreement, self.question, self.survivors, self.shares)
        return self.survivors, (self.whole - masks).view(np.int64)

    def write(self, to: Writer) -> None:
        to.block(self.question.to_site(0, 0)).number("B", self.phase).number("I", len(self.sealed))
        for site, boxes in self.sealed.items():
            to.number("H", site).number("B", self.refill[site]).block(boxes)
        to.numbers("H", sorted(self.answered)).numbers("H", self.survivors).block(self.whole.astype("<u8").tobytes())
        to.number("I", len(self.shares))
        for site, shares in self.shares.items():
            to.number("H", site)
            for share in shares:
                to.block(share or b"")

    @staticmethod
    def read(reader: Reader, agreement: Agreement) -> "OpenRound":
        asked, phase = reader.block(MOST_KEPT), reader.number("B")
        question = Question.read(opened(asked, agreement.tag)[1], asked, agreement)
        found = OpenRound(agreement, question, {}, {})
        for _ in range(reader.count(agreement.n)):
            site = reader.number("H")
            found.refill[site], found.sealed[site] = reader.number("B"), reader.block(MOST_KEPT)
        found.phase = Phase(phase)
        found.answered, found.survivors = set(reader.numbers("H", agreement.n)), reader.numbers("H", agreement.n)
        found.whole = np.frombuffer(reader.block(MOST_KEPT), "<u8").astype(np.uint64)
        for _ in range(reader.count(agreement.n)):
            site = reader.number("H")
            found.shares[site] = [reader.block(SHARE) or None for _ in question.seats]
        return found
