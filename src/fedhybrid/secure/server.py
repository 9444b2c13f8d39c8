"""The server's half of secure sums: questions out, answers in, and the sum; nothing of a single site is ever known here.

    hello() → introduce() → [ ask() → receive()… → close() → receive()… → finish() ]…        close() in rounds of changes only

Every call that returns messages changes the state first: persist state() before sending them. After a crash the last of them can be
sent again as they are (pending()).
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .agreement import Agreement
from .changes import Total, split
from .errors import Reason, SecureError
from .fixedpoint import decode
from .messages import MOST_BUNDLES, Kind, Mode, Question, Seat
from .openround import OpenRound, Phase
from .registry import Registry
from .wire import Reader, Writer, malformed, message, opened


class Received(NamedTuple):
    """What a site's message was. `refused`: the site's reason, where it did not do what it was asked to."""

    kind: Kind
    new: bool = True  # False: it had come before, or is about a round that is over, and was not used
    refused: Reason | None = None
    leaf: int = 0


class Sum(NamedTuple):
    """What a round brings. After BASE, and in rounds of changes, `leaves` is the sum of the last accepted values of all sites."""

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
        self.round = 0
        self.open: OpenRound | None = None
        if state:
            self._restore(state)

    # Keys -----------------------------------------------------------------------------------------------------------------------

    def hello(self, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """For all sites that have no card here yet; or for the given ones, which say that they do not know their card."""
        missing = (name for name in self._names(self.enrolled) if self._number(name) not in self.registry.cards)
        return dict.fromkeys(missing if names is None else names, message(Kind.HELLO, self.agreement.tag).bytes())

    def introduce(self, bundles: int = 0, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """All cards, to all who have one or to the given ones; so many bundles are wanted of each. Rounds of changes use one each."""
        to = message(Kind.CARDS, self.agreement.tag).number("I", len(self.registry.cards))
        for _, card in sorted(self.registry.cards.items()):
            card.write(to)
        data = to.number("B", min(bundles, MOST_BUNDLES)).bytes()
        known = self._names(i for i in self.enrolled if i in self.registry.cards)
        return dict.fromkeys(known if names is None else (name for name in names if name in known), data)

    def ready_for_changes(self) -> tuple[str, ...]:
        """Sites that could take part in a round of changes: their values are in the total, and bundles of theirs are here."""
        return self._names(i for i in self.enrolled if self.registry.stock.get(i) and i in self.total.accepted)

    def depart(self, name: str) -> None:
        """A site has left for good. The total contains its last values, which nobody knows: the next round must be a SUM or BASE."""
        self.open, self.total = None, Total()
        self.enrolled = tuple(i for i in self.enrolled if i != self._number(name))

    # A round --------------------------------------------------------------------------------------------------------------------

    def ask(
        self,
        step: int,
        what: bytes,
        leaves: Sequence[tuple[int, int]],
        mode: Mode = Mode.SUM,
        *,
        cohort: Iterable[str] | None = None,
        ahead: int = 2,
    ) -> dict[str, bytes]:
        """A question for every site of the cohort. A round before it that was not finished is given up.

        step     number of the algorithm's question. After close(), a round that failed can be asked again as another step only
        what     SHA-256 of the rest of the question
        leaves   size and scale exponent of every part of the vector
        cohort   in rounds of changes: who is present (default: everyone who could take part)
        ahead    in rounds of changes: for how many later rounds every site's bundles shall be here; the answers bring the missing ones
        """
        if cohort is not None and mode != Mode.CHANGES:
            raise ValueError("Only rounds of changes can be with some of the sites. Use depart(name) for a site that has left.")
        able = self.ready_for_changes() if mode == Mode.CHANGES else self._names(self.enrolled)
        chosen = sorted(self._number(name) for name in (able if cohort is None else set(cohort) & set(able)))
        self._check(chosen, step, leaves, mode)
        taken = {i: self.registry.stock[i].pop(0) for i in chosen} if mode == Mode.CHANGES else {}
        if mode == Mode.BASE:
            self.total = Total()
        seats = tuple(Seat(i, self.registry.id(i), taken[i][0] if taken else None) for i in chosen)
        self.round += 1
        question = Question(self.round, step, mode, what, self.total.base, tuple(leaves), seats)
        question = question._replace(shared=question.sealed(self.agreement.tag))
        refill = {i: min(max(ahead - len(self.registry.stock[i]), 0), MOST_BUNDLES) for i in taken}
        self.open = OpenRound(self.agreement, question, {i: sealed for i, (_, sealed) in taken.items()}, refill)
        return self.pending()

    def _check(self, chosen: list[int], step: int, leaves: Sequence[tuple[int, int]], mode: Mode) -> None:
        fewest = self.agreement.enough if mode == Mode.CHANGES else self.agreement.least
        if len(chosen) < fewest:
            raise SecureError(Reason.TOO_FEW, f"{len(chosen)} sites can take part in a round of step {step}, and {fewest} are needed.")
        unknown = self._names(i for i in chosen if i not in self.registry.cards)
        if unknown:
            raise SecureError(Reason.UNKNOWN_CARD, f"{', '.join(unknown)} must introduce themselves first: send hello(), then introduce().")
        if mode == Mode.CHANGES and [size for size, _ in leaves] != [len(leaf.whole) for leaf in self.total.leaves]:
            raise ValueError(f"The leaves of step {step} have other sizes than in the base round: ask a BASE round first.")

    def pending(self) -> dict[str, bytes]:
        """The open round's messages to those who have not answered them: to send again after a crash, or where one may be lost."""
        if self.open is None:
            return {}
        return {self.agreement.names[i]: self.open.to_site(i, self.total.accepted.get(i, 0)) for i in self.open.outstanding()}

    def receive(self, name: str, data: bytes) -> Received:
        """One message of the site of this name, by its authenticated identity. What does not belong here raises, and changes nothing."""
        site = self._number(name)
        kind, reader = opened(data, self.agreement.tag)
        if kind == Kind.CARD:
            return Received(Kind.CARD, self.registry.receive_card(site, reader))
        if reader.number("H") != site:
            raise SecureError(Reason.UNVERIFIED, f"A message from {name} says that it is from another site. It was not used.")
        if kind == Kind.BUNDLES:
            return Received(Kind.BUNDLES, self.registry.receive_bundles(site, data, reader))
        if kind == Kind.REFUSED:
            return self._refusal(reader)
        if kind not in (Kind.VECTOR, Kind.SHARES):
            raise malformed(f"kind {kind} is not for the server")
        if self.open is None:
            raise SecureError(Reason.WRONG_ROUND, f"{name} answers a round, but none is open. It was not used.")
        self.open.check(site, name, data, reader, self.registry)
        if kind == Kind.VECTOR:
            return Received(Kind.VECTOR, self.open.receive_vector(site, name, reader, self.registry))
        return Received(Kind.SHARES, self.open.receive_shares(site, name, reader))

    def _refusal(self, reader: Reader) -> Received:
        round_, reason, leaf = reader.number("Q"), reader.number("B"), reader.number("H")
        reader.end()
        if reason not in tuple(Reason):
            raise malformed(f"reason {reason}")
        return Received(Kind.REFUSED, round_ in (0, self.round), Reason(reason), leaf)

    # Its sum --------------------------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return Phase.IDLE if self.open is None else self.open.phase

    @property
    def outstanding(self) -> frozenset[str]:
        """Who has not answered the open round's last message."""
        return frozenset() if self.open is None else frozenset(self._names(self.open.outstanding()))

    @property
    def ready(self) -> bool:
        """Whether finish() can be called."""
        return self.open is not None and self.open.ready

    def close(self) -> dict[str, bytes]:
        """A round of changes: whoever has answered is in its sum, and nobody else ever will be. The messages ask them for their shares."""
        self._opened().close()
        return self.pending()

    def finish(self) -> Sum:
        """The sum of the open round. Below the threshold nothing is opened."""
        question = self._opened().question
        sites, whole = self._opened().sum()
        if question.mode == Mode.SUM:
            leaves = [decode(part, scale) for part, (_, scale) in zip(split(whole, question.leaves), question.leaves, strict=True)]
        else:
            update = self.total.begin if question.mode == Mode.BASE else self.total.add
            update(question.round, whole, question.leaves, sites)
            leaves = self.total.real()
        self.abandon()
        return Sum(question.round, self._names(sites), whole, leaves)

    def abandon(self) -> None:
        """Give up the open round. Its answers are worth nothing by themselves."""
        self.open = None

    def _opened(self) -> OpenRound:
        if self.open is None:
            raise ValueError("No round is open: ask one first.")
        return self.open

    # Between processes ----------------------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything, the open round included. There is no secret in it."""
        to = Writer().raw(self.agreement.tag)
        self.registry.write(to)
        to.numbers("H", self.enrolled).number("Q", self.round)
        self.total.write(to)
        to.number("B", self.open is not None)
        if self.open is not None:
            self.open.write(to)
        body = to.bytes()
        return body + hashlib.sha256(body).digest()

    def _restore(self, state: bytes) -> None:
        body = state[:-32]
        reader = Reader(body)
        if hashlib.sha256(body).digest() != state[-32:] or reader.raw(32) != self.agreement.tag:
            raise SecureError(Reason.WRONG_RUN, "The server's kept state is damaged, or of another run.")
        self.registry = Registry.read(reader, self.agreement)
        self.enrolled, self.round = reader.numbers("H", self.agreement.n), reader.number("Q")
        self.total = Total.read(reader)
        self.open = OpenRound.read(reader, self.agreement) if reader.number("B") else None
        reader.end()

    def _number(self, name: str) -> int:
        return self.agreement.number(name)

    def _names(self, sites: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.agreement.names[i] for i in sites)
