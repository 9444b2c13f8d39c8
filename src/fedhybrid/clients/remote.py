"""Sites elsewhere, as the algorithm's clients: every round is a question to all of them, and nothing of it is lost.

What the sites replied is on the disk before the next question is asked (journal). A server that begins again takes the same steps, with
replies from there as far as they go. So does a site that has lost its state: it is asked its past questions again (`_recovery`).

Where the method allows it (stale=True) and the terms say "bridge", a site that is late is stood in for by its last reply. Replies are
summed by the sites' names, so that the order in which they come changes nothing.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..algorithms.oracle import unpack
from ..certificate import hessian_at
from ..federation.envelope import Question
from ..federation.events import Events
from ..federation.exchange import Exchange
from ..federation.journal import Journal, Record
from ..federation.protocol import Protocol
from ..federation.terms import Terms
from ..status import CheckpointError, InvalidConfig
from ..watch import norm
from .base import Local, Meter, decoded

Array = Any
PIECE = 1 << 17  # floats of past questions in one message
NOISE = 3  # floats that say how private a site is
STILL_OF_USE = 256  # rounds for which a late answer is waited for


class Remote:
    """The sites of one epoch of a run."""

    def __init__(
        self, exchange: Exchange, terms: Terms, agreed: str, protocol: Protocol, journal: Journal, events: Events, run: str
    ) -> None:
        self.exchange, self.terms, self.agreed, self.protocol = exchange, terms, agreed, protocol
        self.journal, self.events, self.run = journal, events, run
        self.n, self.names, self.d = terms.n, terms.names, terms.stand_in().d
        self.partial = terms.rounds.absent == "bridge"
        self.identity = f"Remote {agreed} {' '.join(self.names)}"
        self.epoch, self.total_weight, self.row_norm = 0, 0.0, 0.0  # `enrol` finds them
        self.noise: dict[str, list[float]] = {}  # of a private run: what every site declared in the beginning
        self.round = self.away = 0
        self.recorded: Iterator[Record] = iter(journal.records)
        self.begun = np.zeros(0)
        self.asked: list[tuple[int, np.ndarray, frozenset[str]]] = []  # number, body and who took part, of every round
        self.since = dict.fromkeys(self.names, 0)  # the last round in which each took part
        self.last: dict[str, tuple[int, np.ndarray]] = {}  # round and reply that may stand in
        self.digests: list[str] = []  # of the last few questions
        self.m_without_one = 0.0  # least curvature of all sites but one, whichever that is, where single sites are judged

    def enrol(self, epoch: int) -> None:
        """Who is there, and how much their rows weigh together."""
        self.epoch = epoch
        record, header = next(self.recorded, None), {"kind": "census", "run": self.run, "epoch": epoch, "terms": self.agreed}
        if self.terms.rounds.private:  # rows are not counted; sites say how private they are
            if record is None:
                rows = [(budget, delta, budget) for budget, delta, _ in self.declared().values()]
                record = Record(header, np.ravel(rows))
                self.journal.add(*record)
            self.total_weight, self.noise = 1.0, dict(zip(self.names, record.rows.reshape(self.n, NOISE).tolist(), strict=True))
        elif record is None:
            weight, squares = self._census()
            self.total_weight, self.row_norm = float(weight), float(np.sqrt(squares))
            if not self.total_weight > 0:
                raise InvalidConfig("no site has a row (of positive weight).")
            self.journal.add(header, np.array([self.total_weight, self.row_norm]))
        else:
            self.total_weight, self.row_norm = record.rows.tolist()

    def declared(self, may_be_away: frozenset[str] = frozenset()) -> dict[str, list[float]]:
        """What the sites say of their noise: the budget ε, δ, and the ε that is spent."""
        found = self.exchange.ask(self._question("census", 0), NOISE, usable=_says_how_private, bridged=may_be_away)
        return {name: found[name][1].tolist() for name in self.names if name in found}

    def _census(self) -> np.ndarray:
        """Sums over all sites."""
        found = self.exchange.ask(self._question("census", 0), 2)
        return np.sum([found[name][1] for name in self.names], axis=0)

    # ── the algorithm's side ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Local:
        self.begun = np.concatenate([[self.total_weight], self.protocol.start[1].pack(down)])
        if next(self.recorded, None) is None:
            self.exchange.ask(self._question("start", 0, self.begun), 0)
            self.journal.add({"kind": "start"}, np.zeros(0))
        zero, none = np.int64(0), np.float64(0.0)
        return Local((), Meter(zero, zero, zero, none, none))

    def mean(
        self, fn: Callable[..., Any], local: Local, *down: Any, stale: bool = False, implied: Callable[[Any], Any] | None = None
    ) -> tuple[Local, Any]:
        number = self.protocol.number_of(fn)
        _, down_shape, up, _ = self.protocol.questions[number]
        body = down_shape.pack(down)
        self.round += 1
        answered, here, total = self._total(number, body, up, stale, self._check(up, implied))
        self.asked.append((number, body, here))
        self.since |= dict.fromkeys(here, self.round)
        mean = jax.tree.map(lambda leaf: leaf / self.n, total)
        self.away = self.n - len(here)
        meter = local.meter
        counted = Meter(
            meter.rounds + 1, meter.floats_up + answered * up.floats, meter.floats_down + self.n * body.size, meter.flops, meter.seconds
        )
        bytes_so_far = {"bytes_up": self.exchange.bytes_up, "bytes_down": self.exchange.bytes_down}
        self.events.tell("round", round=self.round, answered=answered, of=self.n, sites=sorted(here), **bytes_so_far)
        return Local((), counted), mean

    def one(self, fn: Callable[..., Any], local: Local, who: Any, *down: Any) -> tuple[Local, Any]:
        raise InvalidConfig(
            "this method asks one site alone for its Hessian, which no sum can hide; sites of a federation do not answer that."
        )

    def renew(self, local: Local) -> Local:
        self.last.clear()
        return local

    def missed(self, local: Local) -> Array:
        return np.int64(self.away)

    def observe(self, fn: Callable[..., Any], local: Local, *down: Any) -> Any:
        return None  # nothing is sent for measurement

    def while_loop(self, cond: Callable, body: Callable, carry: Any) -> Any:
        while cond(carry):
            carry = body(carry)
        return carry

    def cond(self, pred: Any, yes: Callable, no: Callable, carry: Any) -> Any:
        return yes(carry) if pred else no(carry)

    def scan(self, body: Callable, carry: Any, length: int) -> tuple[Any, Any]:
        rows = []
        for _ in range(length):
            carry, row = body(carry)
            rows.append(row)
        return carry, jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *rows)

    def call(self, program: Callable, static: tuple, *args: Any) -> Any:
        return program(self, *static, *args)

    # ── the sites' side ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _question(self, kind: str, number: int, body: np.ndarray | None = None) -> Question:
        body = np.zeros(0) if body is None else body
        since = tuple(self.since.values()) if kind == "ask" else ()
        return Question(kind, self.agreed, self.run, self.epoch, self.round, (number,), self.names, body, since)

    def _total(self, number: int, body: np.ndarray, up: Any, stale: bool, wrong: Callable) -> tuple[int, frozenset[str], Any]:
        """How many answered, who of them in this round, and the sum over all sites."""
        record = next(self.recorded, None)
        answers = self._ask(number, body, up.floats, stale, wrong) if record is None else self._read(record, up.floats)
        if stale:
            self.last |= answers
        rows = [(self.last if stale else answers)[name][1] for name in self.names]
        if self.protocol.questions[number].fn is hessian_at and self.terms.rounds.largest_gradient is not None:
            self.m_without_one = _least_without_one(np.stack([unpack(row, self.d) for row in rows]))
        total = jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *(decoded(up.unpack(row)) for row in rows))
        return len(answers), frozenset(name for name, (round, _) in answers.items() if round == self.round), total

    def _ask(self, number: int, body: np.ndarray, floats: int, stale: bool, usable: Callable) -> dict[str, tuple[int, np.ndarray]]:
        """Round and reply of everyone who answered, on the disk."""
        may_be_late = frozenset(self.last) if stale and self.partial else frozenset()
        question = self._question("ask", number, body)
        also = self.digests[-STILL_OF_USE:] if stale and self.last else ()
        found = self.exchange.ask(question, floats, usable=usable, bridged=may_be_late, recover=self._recovery, also=also)
        self.digests = [*self.digests[-STILL_OF_USE:], self.exchange.latest] if stale else []
        known = {name: round for name, (round, _) in self.last.items()} if stale else {}
        answers = {name: found[name] for name in self.names if name in found and found[name][0] > known.get(name, -1)}
        who = [[self.names.index(name), round] for name, (round, _) in answers.items()]
        header = {"kind": "round", "round": self.round, "number": number, "who": who}
        self.journal.add(header, np.concatenate([np.zeros(0), *(row for _, row in answers.values())]))
        return answers

    def _read(self, record: Record, floats: int) -> dict[str, tuple[int, np.ndarray]]:
        """The same, from the record of a run that ended too soon."""
        if (
            record.header.get("kind") != "round"
            or record.header["round"] != self.round
            or len(record.rows) != len(record.header["who"]) * floats
        ):
            raise CheckpointError(f"{self.journal.path} is of another run: its round {self.round} is not this one's.")
        rows = record.rows.reshape(len(record.header["who"]), floats)
        return {self.names[k]: (round, row) for (k, round), row in zip(record.header["who"], rows, strict=True)}

    def _check(self, up: Any, implied: Callable[[Any], Any] | None) -> Callable[[np.ndarray], str]:
        largest = self.terms.rounds.largest_gradient

        def wrong(row: np.ndarray) -> str:
            if not up.whole_where_it_must_be(row):
                return "holds fractions where whole numbers belong."
            if largest is None or implied is None:
                return ""
            size = float(norm(jnp.asarray(implied(up.unpack(row)))))  # one that does not overflow
            return "" if size <= largest else f"implies a gradient of norm {size:.3g}; the largest that was agreed is {largest:g}."

        return wrong

    def _recovery(self, name: str) -> list[Question]:
        """The questions that lead a site from nothing to the state that it had before this round."""

        def past(kind: str, round: int, numbers: list[int], body: np.ndarray, since: tuple[int, ...]) -> Question:
            return Question(kind, self.agreed, self.run, self.epoch, round, tuple(numbers), self.names, body, since)

        questions = [past("start", 0, [0], self.begun, ())]
        numbers: list[int] = []
        bodies: list[np.ndarray] = []
        given = last = 0  # rounds: what it has by the questions so far, and with those that are being gathered
        for k, (number, body, who) in enumerate(self.asked, 1):
            if name in who:
                numbers.append(number)
                bodies.append(body)
                last = k
            full = sum(len(body) for body in bodies) > PIECE or len(numbers) > 4096
            if numbers and (full or k == len(self.asked)):
                since = tuple(given if site == name else 0 for site in self.names)
                questions.append(past("again", last, numbers, np.concatenate(bodies), since))
                numbers, bodies, given = [], [], last
        return questions


def _least_without_one(hessians: np.ndarray) -> float:
    """How a lying site may inflate its own Hessian does not matter: the sum without it is among these."""
    return float(min(np.linalg.eigvalsh(hessians.sum(axis=0) - own)[0] for own in hessians))


def _says_how_private(row: np.ndarray) -> str:
    return "" if np.all(row >= 0.0) and row[1] < 1.0 and (row[1] > 0.0) == (row[0] > 0.0) else "says nothing of its noise that can be used."
