"""The server's half of secure sums: questions out, answers in, and the sum; nothing of a single site is ever known here.

    hello() → introduce() → [ ask() → receive()… → close() → receive()… → finish() ]…        close() in rounds of changes only

Every call that returns messages changes the state first: persist state() before sending them. After a crash the last of them can be
sent again as they are (pending()).
"""

import hashlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from . import opening
from .agreement import Agreement
from .cards import ED, ID, SEALED, verify_by_card
from .changes import Total, split
from .errors import Reason, SecureError
from .fixedpoint import decode
from .messages import MOST_BUNDLES, Kind, Mode, Question, Seat, survivors_digest
from .registry import Registry
from .shamir import SHARE
from .wire import Reader, Writer, malformed, message, opened

MOST_KEPT = 2**31


class Phase(IntEnum):
    IDLE = 0
    ASKED = 1  # vectors are awaited
    OPENING = 2  # shares are awaited


class Received(NamedTuple):
    """What a site's message was. `refused`: the site's reason, where it did not do what it was asked to."""

    kind: Kind
    new: bool = True  # False: it had come before, and was not used again
    refused: Reason | None = None
    leaf: int = 0


class Sum(NamedTuple):
    """What a round brings. In rounds of changes `leaves` is the sum of the last accepted values of all sites."""

    round: int
    sites: tuple[str, ...]  # whose vectors are in it
    whole: np.ndarray  # their exact sum, int64
    leaves: list[np.ndarray]


class SecureServer:
    def __init__(self, agreement: Agreement, *, state: bytes = b"") -> None:
        self.agreement = agreement
        self.registry = Registry(agreement)
        self.enrolled = tuple(range(agreement.n))
        self.total = Total()
        self.round, self.phase = 0, Phase.IDLE
        self.question: Question | None = None
        self.refill = 0
        self.sealed: dict[int, bytes] = {}  # site → the sealed shares of its bundle in this round
        self.answered: set[int] = set()
        self.whole = np.zeros(0, np.uint64)  # sum of the masked vectors
        self.survivors: tuple[int, ...] = ()
        self.shares: dict[int, list[bytes | None]] = {}
        if state:
            self._restore(state)

    # Keys -----------------------------------------------------------------------------------------------------------------------

    def hello(self, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """For sites that have no card here yet, or the given ones, which say that they know nothing of theirs."""
        chosen = (
            [name for name in self._names(self.enrolled) if self._number(name) not in self.registry.cards] if names is None else list(names)
        )
        return dict.fromkeys(chosen, message(Kind.HELLO, self.agreement.tag).bytes())

    def introduce(self, bundles: int = 0) -> dict[str, bytes]:
        """All cards to all who have one; and so many bundles are wanted of each (rounds of changes use one each)."""
        to = message(Kind.CARDS, self.agreement.tag).number("I", len(self.registry.cards))
        for _, card in sorted(self.registry.cards.items()):
            card.write(to)
        data = to.number("B", min(bundles, MOST_BUNDLES)).bytes()
        return {name: data for name in self._names(self.enrolled) if self._number(name) in self.registry.cards}

    def ready_for_changes(self) -> tuple[str, ...]:
        """Sites that could take part in a round of changes: their values are in the total, and bundles of theirs are here."""
        return tuple(self._names(i for i in self.enrolled if self.registry.stock.get(i) and i in self.total.accepted))

    def depart(self, name: str) -> None:
        """A site has left for good. The total contains its last values, which nobody knows: the next round is a SUM or BASE."""
        self.abandon()
        self.enrolled = tuple(i for i in self.enrolled if i != self._number(name))
        self.total = Total()

    # A round --------------------------------------------------------------------------------------------------------------------

    def ask(
        self,
        step: int,
        what: bytes,
        leaves: Sequence[tuple[int, int]],
        mode: Mode = Mode.SUM,
        *,
        cohort: Iterable[str] | None = None,
        refill: int = 1,
    ) -> dict[str, bytes]:
        """A question for every site of the cohort; the round before, if it was not finished, is given up.

        step     number of the algorithm's question. A round of changes that was closed can be asked again under a new step only
        what     SHA-256 of the rest of the question
        leaves   size and scale exponent of every part of the vector
        cohort   in rounds of changes: who is present (default: everyone who could take part)
        """
        if cohort is not None and mode != Mode.CHANGES:
            raise ValueError("Only rounds of changes can be with some of the sites. Use depart(name) for a site that has left.")
        able = self.ready_for_changes() if mode == Mode.CHANGES else tuple(self._names(self.enrolled))
        chosen = sorted(self._number(name) for name in (able if cohort is None else set(cohort) & set(able)))
        fewest = self.agreement.enough if mode == Mode.CHANGES else self.agreement.least
        unknown = [i for i in chosen if i not in self.registry.cards]
        if len(chosen) < fewest:
            raise SecureError(Reason.TOO_FEW, f"{len(chosen)} sites can take part in a round of step {step}; {fewest} are needed.")
        if unknown:
            raise SecureError(Reason.UNKNOWN_CARD, f"{', '.join(self._names(unknown))} have not introduced themselves: send hello().")
        if mode == Mode.CHANGES and [size for size, _ in leaves] != [len(leaf.whole) for leaf in self.total.leaves]:
            raise ValueError(f"The leaves of step {step} have other sizes than in the base round: ask a BASE round first.")
        self.abandon()
        if mode != Mode.SUM:
            self.total = self.total if mode == Mode.CHANGES else Total()
        taken = {i: self.registry.stock[i].pop(0) for i in chosen} if mode == Mode.CHANGES else {}
        self.sealed = {i: sealed for i, (_, sealed) in taken.items()}
        seats = tuple(Seat(i, self.registry.id(i), taken[i][0] if taken else None) for i in chosen)
        self.round, self.refill, self.phase = self.round + 1, refill, Phase.ASKED
        question = Question(self.round, step, mode, what, self.total.base, tuple(leaves), seats)
        self.question = question._replace(shared=question.sealed(self.agreement.tag))
        self.whole = np.zeros(question.size, np.uint64)
        return self.pending()

    def pending(self) -> dict[str, bytes]:
        """The present phase's messages to those who have not answered it: to send again after a crash, or when one may be lost."""
        if self.question is None or self.phase == Phase.IDLE:
            return {}
        if self.phase == Phase.OPENING:
            return {self.agreement.names[i]: self._unmask(i) for i in self.survivors if i not in self.shares}
        waiting = [seat.site for seat in self.question.seats if seat.site not in self.answered]
        return {self.agreement.names[i]: self.question.to_site(self.total.accepted.get(i, 0), self.refill) for i in waiting}

    def receive(self, name: str, data: bytes) -> Received:
        """One message of the site of this name, by its authenticated identity. What does not belong here raises, and changes nothing."""
        site = self._number(name)
        kind, reader = opened(data, self.agreement.tag)
        if kind == Kind.CARD:
            return Received(Kind.CARD, self.registry.receive_card(site, reader))
        if reader.number("H") != site:
            raise SecureError(Reason.UNVERIFIED, f"A message from {name} says that it is from another site. It was not used.")
        if kind == Kind.BUNDLES:
            return Received(Kind.BUNDLES, self.registry.store(site, self.registry.read_bundles(site, reader)))
        if kind == Kind.VECTOR:
            return self._vector(site, name, data, reader)
        if kind == Kind.SHARES:
            return self._receive_shares(site, name, data, reader)
        if kind == Kind.REFUSED:
            return self._refusal(reader)
        raise malformed(f"kind {kind} is not for the server")

    def _this_round(self, site: int, name: str, data: bytes, reader: Reader) -> Question:
        """Whether a signed answer is of the round that is open now, and from this site's present card."""
        card, round_, digest = reader.raw(ID), reader.number("Q"), reader.raw(32)
        question = self.question
        if question is None or round_ != question.round or digest != question.digest:
            raise SecureError(Reason.WRONG_ROUND, f"{name} answers round {round_}, which is not open. It was not used.")
        if card not in {seat.card for seat in question.seats if seat.site == site}:
            raise SecureError(Reason.UNKNOWN_CARD, f"{name} answers round {round_} by another card than was asked. It was not used.")
        verify_by_card(self.registry.cards[site], data[-ED:], data[:-ED])
        return question

    def _vector(self, site: int, name: str, data: bytes, reader: Reader) -> Received:
        question = self._this_round(site, name, data, reader)
        if site in self.answered:
            return Received(Kind.VECTOR, False)
        if self.phase != Phase.ASKED:
            raise SecureError(Reason.WRONG_ROUND, f"{name} answers round {question.round} after it was closed. It was not used.")
        if reader.count(question.size) != question.size:
            raise malformed(f"a vector that does not have {question.size} numbers")
        words = reader.words(question.size)
        self.registry.store(site, self.registry.read_bundles(site, reader, ED))
        self.whole = self.whole + words
        self.answered.add(site)
        return Received(Kind.VECTOR)

    def _receive_shares(self, site: int, name: str, data: bytes, reader: Reader) -> Received:
        question = self._this_round(site, name, data, reader)
        if self.phase != Phase.OPENING or site not in self.survivors or reader.raw(32) != survivors_digest(self.survivors):
            raise SecureError(
                Reason.WRONG_ROUND, f"{name} opens round {question.round} for other sites than it consists of. It was not used."
            )
        if reader.count(len(question.seats)) != len(question.seats):
            raise malformed(f"shares that are not of {len(question.seats)} sites")
        shares = [reader.raw(SHARE) if reader.number("B") else reader.raw(SHARE)[:0] for _ in question.seats]
        reader.raw(ED)
        reader.end()
        if site in self.shares:
            return Received(Kind.SHARES, False)
        self.shares[site] = [share or None for share in shares]
        return Received(Kind.SHARES)

    def _refusal(self, reader: Reader) -> Received:
        round_, reason, leaf = reader.number("Q"), reader.number("B"), reader.number("H")
        reader.end()
        if reason not in tuple(Reason):
            raise malformed(f"reason {reason}")
        current = round_ in (0, self.round)
        return Received(Kind.REFUSED, current, Reason(reason), leaf)

    # Its sum --------------------------------------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> frozenset[str]:
        return frozenset(self.pending())

    def close(self) -> dict[str, bytes]:
        """A round of changes: whoever has answered is in its sum, and nobody else ever will be. The messages ask them for their shares."""
        if self.phase != Phase.ASKED or self.question is None or self.question.mode != Mode.CHANGES:
            raise ValueError("There is no round of changes to close: ask one first. Other rounds end when all sites have answered.")
        if len(self.answered) < self.agreement.enough:
            raise SecureError(
                Reason.TOO_FEW,
                f"{len(self.answered)} of {len(self.question.seats)} sites have answered round {self.round}, and {self.agreement.enough} are "
                "needed. Nothing is opened: wait for more, or ask again.",
            )
        self.survivors, self.phase = tuple(sorted(self.answered)), Phase.OPENING
        return self.pending()

    def _unmask(self, site: int) -> bytes:
        question = self._open_question()
        to = message(Kind.UNMASK, self.agreement.tag).number("Q", question.round).raw(question.digest)
        to.numbers("H", self.survivors)
        for seat in question.seats:
            to.raw(self.sealed[seat.site][SEALED * site : SEALED * (site + 1)])
        return to.bytes()

    def _open_question(self) -> Question:
        if self.question is None:
            raise ValueError("No round is open: ask one first.")
        return self.question

    @property
    def ready(self) -> bool:
        """Whether finish() can be called."""
        if self.question is None or self.phase == Phase.IDLE:
            return False
        if self.question.mode != Mode.CHANGES:
            return len(self.answered) == len(self.question.seats)
        columns = zip(*self.shares.values(), strict=True)
        return len(self.shares) >= self.agreement.threshold and all(
            sum(share is not None for share in column) >= self.agreement.threshold for column in columns
        )

    def finish(self) -> Sum:
        """The sum of the open round. Below the threshold nothing is opened."""
        question = self._open_question()
        if not self.ready:
            raise SecureError(
                Reason.BELOW_THRESHOLD,
                f"Round {question.round} cannot be opened yet: {len(self.answered)} of {len(question.seats)} vectors and shares of "
                f"{len(self.shares)} sites are here. Send pending() again, or ask another step.",
            )
        sites = self.survivors or tuple(sorted(self.answered))
        words = self.whole
        if question.mode == Mode.CHANGES:
            words = words - opening.masks_left(self.agreement, question, sites, self.shares)
        whole = words.view(np.int64)
        if question.mode == Mode.SUM:
            leaves = [decode(part, scale) for part, (_, scale) in zip(split(whole, question.leaves), question.leaves, strict=True)]
        else:
            update = self.total.begin if question.mode == Mode.BASE else self.total.add
            update(question.round, whole, question.leaves, sites)
            leaves = self.total.real()
        self.abandon()
        return Sum(question.round, tuple(self._names(sites)), whole, leaves)

    def abandon(self) -> None:
        """Give up the open round. Its answers are worth nothing by themselves."""
        self.phase, self.question, self.sealed, self.answered, self.survivors, self.shares = Phase.IDLE, None, {}, set(), (), {}

    # Between processes ----------------------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything, the open round included. There is no secret in it."""
        to = Writer().raw(self.agreement.tag)
        self.registry.write(to)
        to.numbers("H", self.enrolled).number("Q", self.round).number("B", self.phase).number("B", self.refill)
        self.total.write(to)
        to.block(b"" if self.question is None else self.question.to_site(0, 0))
        to.number("I", len(self.sealed))
        for site, boxes in self.sealed.items():
            to.number("H", site).block(boxes)
        to.numbers("H", sorted(self.answered)).numbers("H", self.survivors).block(self.whole.astype("<u8").tobytes())
        to.number("I", len(self.shares))
        for site, shares in self.shares.items():
            to.number("H", site).block(b"".join(b"\0" + bytes(SHARE) if share is None else b"\1" + share for share in shares))
        body = to.bytes()
        return body + hashlib.sha256(body).digest()

    def _restore(self, state: bytes) -> None:
        agreement, body = self.agreement, state[:-32]
        reader = Reader(body)
        if hashlib.sha256(body).digest() != state[-32:] or reader.raw(32) != agreement.tag:
            raise SecureError(Reason.WRONG_RUN, "The server's kept state is damaged, or of another run.")
        self.registry = Registry.read(reader, agreement)
        self.enrolled, self.round = reader.numbers("H", agreement.n), reader.number("Q")
        self.phase, self.refill = Phase(reader.number("B")), reader.number("B")
        self.total = Total.read(reader)
        asked = reader.block(MOST_KEPT)
        self.question = Question.read(opened(asked, agreement.tag)[1], asked, agreement) if asked else None
        self.sealed = {reader.number("H"): reader.block(MOST_KEPT) for _ in range(reader.count(agreement.n))}
        self.answered, self.survivors = set(reader.numbers("H", agreement.n)), reader.numbers("H", agreement.n)
        self.whole = np.frombuffer(reader.block(MOST_KEPT), "<u8").astype(np.uint64)
        for _ in range(reader.count(agreement.n)):
            site, data = reader.number("H"), reader.block(MOST_KEPT)
            boxes = [data[k : k + 1 + SHARE] for k in range(0, len(data), 1 + SHARE)]
            self.shares[site] = [box[1:] if box[:1] == b"\1" else None for box in boxes]
        reader.end()

    def _number(self, name: str) -> int:
        return self.agreement.number(name)

    def _names(self, sites: Iterable[int]) -> list[str]:
        return [self.agreement.names[i] for i in sites]
