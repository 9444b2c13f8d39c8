"""Secure sums over a link: one question to all sites, and the sum of their answers, of which no single one is ever seen here.

The question itself is the one that would be asked in the open; beside it travels a message of the masks' protocol (secure/sums.py),
into whose masks its SHA-256 goes. A question that is asked again, at a coarser scale or with other keys, is the same to the site's
memory. What the masks' protocol knows is on the disk before a message leaves, so that a server that is killed goes on in the middle.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ..secure.changes import split
from ..secure.errors import Reason, SecureError
from ..secure.fixedpoint import decode
from ..secure.sums import Agreement, Kind, Mode, Phase, SecureServer, Sum
from ..secure.sums import Question as SumQuestion
from ..status import CheckpointError, QuorumLost
from .envelope import BYTES, Question, Refused, digest, seal, seal_masked, seal_question, unseal
from .events import Events
from .exchange import GRACE, PULL, RESEND, Exchange, Gone, Open
from .grid import coarser
from .kept import Kept
from .link import Link
from .terms import Rounds

AHEAD = 3  # rounds in which a site may be missing for which its masks are here beforehand
MOST_TRIES = 100
KEPT = {"round": int, "who": list, "scales": list, "state": int}

Recover = Callable[[str], list[Question]]


class Summed(NamedTuple):
    """What a question brought."""

    row: np.ndarray  # float64: the sum over all sites
    who: tuple[str, ...]  # whose answers are in it for the first time
    scales: tuple[int, ...]
    largest: np.ndarray  # of every part of what was sent together: values, or changes of them


class AskAgain(Exception):
    def __init__(self, name: str, reason: Reason, leaf: int) -> None:
        super().__init__(name, reason, leaf)
        self.name, self.reason, self.leaf = name, reason, leaf


class SumExchange(Exchange):
    def __init__(self, link: Link, rounds: Rounds, events: Events, agreement: Agreement, kept: Kept) -> None:
        super().__init__(link, rounds, agreement.names, events)
        self.agreement, self.kept = agreement, kept
        self.done: tuple[int, Summed] | None = None  # the last round of changes, which cannot be asked again
        self.recover: Recover | None = None
        self.server = self._restored()

    def total(
        self, question: Question, sizes: tuple[int, ...], scales: tuple[int, ...], recover: Recover | None, *, mode: Mode = Mode.SUM
    ) -> Summed:
        """The sum of all sites' answers; in rounds of changes, of their last ones."""
        if mode != Mode.SUM and self.done is not None and self.done[0] == question.round:
            return self.done[1]
        self.open, self.recover = {}, recover
        closed = self.server.phase == Phase.OPENING and self._open_question.step == question.round
        again: AskAgain | None = None
        for tries in range(1, MOST_TRIES):
            try:
                if again is not None:
                    mode = self._renew_keys(question, again, mode)
                if not closed:  # what a server that was killed had not closed gives nobody anything, and is asked anew
                    mode = self._prepare(question, mode)
                    self._ask(question, tuple(zip(sizes, scales, strict=True)), mode)
                return self._finish(question)
            except AskAgain as wanted:
                again, closed = wanted, False
                self.events.tell("asked again", site=again.name, round=question.round, why=again.reason.name.lower())
                if again.reason == Reason.OVERFLOW:
                    scales = self._coarser(scales, again, tries)
        raise QuorumLost(f"round {question.round} was asked {MOST_TRIES} times, and the sites' keys or scales still do not fit together.")

    # ── one attempt ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, question: Question, mode: Mode) -> Mode:
        """Everyone knows everyone's keys, and the masks of a round of changes are here. BASE, where too few could take part in it."""
        ahead = AHEAD if mode != Mode.SUM else 0
        if missing := self.server.hello():
            self._everyone(question, missing, Kind.CARD)
            self._everyone(question, self.server.introduce(ahead), Kind.BUNDLES)
        short = [name for name in self._stocked(False) if ahead]
        if short:
            self._talk(question, self.server.introduce(AHEAD, short), Kind.BUNDLES, lambda waiting: self._limit(waiting, frozenset(short)))
        enough = len(self.server.ready_for_changes()) >= self.agreement.enough
        return Mode.BASE if mode == Mode.CHANGES and not enough else mode

    def _stocked(self, there: bool) -> list[str]:
        stock = self.server.registry.stock
        return [name for name in self.names if bool(stock.get(self.agreement.number(name))) == there]

    def _ask(self, question: Question, leaves: tuple[tuple[int, int], ...], mode: Mode) -> None:
        cohort = None
        if mode == Mode.CHANGES:
            here = self.link.present() & set(self.server.ready_for_changes())
            cohort = here if len(here) >= self.agreement.enough else None
        what = bytes.fromhex(digest(seal_question(question)))
        self.server.ask(question.round, what, leaves, mode, cohort=cohort, ahead=AHEAD)
        self._keep()

    def _finish(self, question: Question) -> Summed:
        """From the open question to its sum."""
        server, mode = self.server, self._open_question.mode
        asked = [self.names[seat.site] for seat in self._open_question.seats]
        if server.phase == Phase.ASKED:
            spare = len(asked) - self.agreement.enough
            may_miss = frozenset(asked) if mode == Mode.CHANGES else frozenset()
            limit = lambda waiting: self._limit(waiting, may_miss if len(waiting) <= spare else frozenset())  # noqa: E731  (one line, used below)
            waiting = self._talk(question, server.pending(), Kind.VECTOR, limit)
            if waiting and (mode != Mode.CHANGES or len(waiting) > spare):
                self._on_absence(waiting, question, frozenset())
            if mode == Mode.CHANGES:
                server.close()
                self._keep()
        if server.phase == Phase.OPENING:
            waiting = self._talk(question, server.pending(), Kind.SHARES, lambda waiting: self._limit(waiting, frozenset()))
            if not server.ready:
                self._on_absence(waiting, question, frozenset())
        leaves = self._open_question.leaves
        try:
            found = server.finish()
        except SecureError as error:
            raise QuorumLost(f"round {question.round} could not be opened. {error}") from None
        return self._noted(question, found, leaves, mode)

    def _noted(self, question: Question, found: Sum, leaves: tuple[tuple[int, int], ...], mode: Mode) -> Summed:
        parts = zip(split(found.whole, leaves), leaves, strict=True)
        largest = np.array([np.max(np.abs(decode(part, scale)), initial=0.0) for part, (_, scale) in parts])
        summed = Summed(np.concatenate(found.leaves), found.sites, tuple(scale for _, scale in leaves), largest)
        if mode == Mode.SUM:
            return summed
        self.late = frozenset(self.names) - frozenset(found.sites)
        if self.late:
            self.events.tell("bridged", round=question.round, sites=sorted(self.late))
        self.done = question.round, summed
        self._keep()
        return summed

    @property
    def _open_question(self) -> SumQuestion:
        assert self.server.open is not None
        return self.server.open.question

    # ── asking again ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _coarser(self, scales: tuple[int, ...], again: AskAgain, tries: int) -> tuple[int, ...]:
        if not again.leaf < len(scales):
            raise QuorumLost(f"{again.name} refuses a scale of a part that its answer does not have.")
        try:
            return coarser(scales, again.leaf, tries)
        except SecureError as error:
            raise QuorumLost(f"{again.name}: {error}") from None

    def _renew_keys(self, question: Question, again: AskAgain, mode: Mode) -> Mode:
        """What the next attempt needs, after a site did not know keys, masks or values that it was asked with."""
        name, ahead = again.name, AHEAD if mode != Mode.SUM else 0
        if again.reason == Reason.OVERFLOW:
            return mode
        if again.reason == Reason.STREAM_LOST:
            return Mode.BASE
        if again.reason == Reason.UNKNOWN_CARD:
            site = self.agreement.number(name)
            before = self.server.registry.cards[site]
            self._everyone(question, self.server.hello([name]), Kind.CARD)
            if self.server.registry.cards[site] != before:
                self.events.tell("new keys", site=name, round=question.round)
                others = [other for other in self.names if other != name]
                self._talk(question, self.server.introduce(0, others), Kind.BUNDLES, lambda waiting: GRACE * self.rounds.deadline)
                mode = Mode.BASE if mode == Mode.CHANGES else mode
        self._everyone(question, self.server.introduce(ahead, [name]), Kind.BUNDLES)
        return mode

    # ── the conversation ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _everyone(self, question: Question, messages: Mapping[str, bytes], kind: Kind) -> None:
        if waiting := self._talk(question, messages, kind, lambda waiting: self._limit(waiting, frozenset())):
            self._on_absence(waiting, question, frozenset())
        self._keep()

    def _talk(self, question: Question, messages: Mapping[str, bytes], kind: Kind, limit: Callable[[set[str]], float]) -> frozenset[str]:
        """Send these, and take the answers until all are here, or enough. Who has not answered."""
        inner = question if kind in (Kind.VECTOR, Kind.SHARES) else question._replace(kind="keys", numbers=(0,), body=np.zeros(0), since=())
        data = seal_question(inner)
        self.sent = {name: seal_masked(data, message) for name, message in messages.items()}
        self.open |= {digest(sent): Open(inner, BYTES, lambda row: "") for sent in self.sent.values()}
        waiting, began = set(self.sent), time.monotonic()
        pushed = began
        self._push(self.sent)
        while waiting and not (kind == Kind.SHARES and self.server.ready):
            spent = time.monotonic() - began
            if spent >= limit(waiting):
                break
            if time.monotonic() - pushed >= RESEND:
                pushed = time.monotonic()
                self._push(waiting)
            for name, raw in self.link.pull(min(PULL, max(0.0, limit(waiting) - spent))):
                if self._take(name, raw) == kind:
                    waiting.discard(name)
        return frozenset(waiting)

    def _take(self, name: str, raw: bytes) -> Kind | None:
        """What kind of message came, where it could be used."""
        answer = self._read(name, raw)
        if answer is None:
            return None
        if answer.refused:
            if name in self.sent:
                self._on_refusal(answer, self.recover)
            return None
        try:
            received = self.server.receive(name, answer.body.tobytes())
        except SecureError as error:
            if error.reason in (Reason.WRONG_ROUND, Reason.UNKNOWN_CARD):  # too late
                self.events.tell("late", site=name, round=answer.round)
            else:
                self._strike(name, str(error))
            return None
        if received.refused is not None:
            if received.new:
                self._refused(name, received.refused, received.leaf)
            return None
        if not received.new and received.kind in (Kind.VECTOR, Kind.SHARES):
            self.events.tell("duplicate", site=name, round=answer.round)
        return received.kind

    def _refused(self, name: str, reason: Reason, leaf: int) -> None:
        if self.server.phase == Phase.OPENING:
            return  # it is closed; a site that has lost its shares is one of those that may be missing
        if reason in (Reason.OVERFLOW, Reason.UNKNOWN_CARD, Reason.STREAM_LOST, Reason.REUSED):
            raise AskAgain(name, reason, leaf)
        asked = self.server.open
        if reason == Reason.TOO_FEW and asked is not None and asked.question.mode == Mode.CHANGES:
            return  # its own file asks for more sites in a sum: this round goes without it
        self._strike(name, f"refused to take part in a sum ({reason.name.lower().replace('_', ' ')}).")

    def _strike(self, name: str, why: str) -> None:
        try:
            super()._strike(name, why)
        except Gone as gone:
            if self.rounds.absent == "drop":
                raise
            raise QuorumLost(f"{gone.why} Secure sums go on without a site only where the terms say so (absent = 'drop').") from None

    # ── what outlives the process ─────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self) -> None:
        """Before any message leaves that this state knows of."""
        round_, found = self.done or (0, Summed(np.zeros(0), (), (), np.zeros(0)))
        state = self.server.state()
        header = {"round": round_, "who": list(found.who), "scales": list(found.scales), "state": len(state)}
        self.kept.save(seal(header, state + np.concatenate([found.largest, found.row]).astype("<f8").tobytes()))

    def _restored(self) -> SecureServer:
        data = self.kept.load()
        if not data and not self.kept.path.exists():
            return SecureServer(self.agreement)
        try:
            header, body = unseal(data, KEPT)
            server = SecureServer(self.agreement, state=body[: header["state"]])
        except (SecureError, Refused) as error:
            raise CheckpointError(f"{self.kept.path} cannot be used: {error} Put back nothing older: delete the run's folder.") from None
        if header["round"]:
            numbers = np.frombuffer(body[header["state"] :], "<f8").astype(np.float64)
            scales = tuple(header["scales"])
            self.done = header["round"], Summed(numbers[len(scales) :], tuple(header["who"]), scales, numbers[: len(scales)])
        return server
