"""A site: its own rows and its own rules; it answers questions about them, and remembers what it has answered.

Before an answer leaves, the site's state after it and the answer itself are on its disk. A question that comes twice is answered from
there: so a lost answer, a server that was restarted or a site that was killed change nothing, not the last bit. A site that has lost
its state says so, and is asked its past questions again: its state follows from its rows and from them.

Whose rows, which update, how few rows or sites are too few: that stands in the site's own file, and no question can change it.
"""

import contextlib
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .. import checkpoint as files
from ..clients.base import Client
from ..clients.serial import padded
from ..numerics import scope
from ..status import CheckpointError, InvalidConfig, InvalidData
from .ending import Ending, keep_ending, read_ending
from .envelope import Answer, Question, Refused, digest, read_masked, read_question, seal_answer
from .memory import Memory, Store, last_begun
from .private import NO_NOISE, Private
from .protocol import Protocol, protocol_of
from .rules import Rules, coded, read_rows, read_rules
from .schema import NAME
from .terms import Terms

NOTHING = np.zeros(0)
OTHER_TERMS = "has agreed to other terms: its federation.toml is not the server's."
CENSUS = 2  # floats: the rows' total weight, and the square of their largest norm


class Site:
    """`answer(question) → answer`, as bytes. It never raises: what is wrong with a question is an answer too."""

    def __init__(self, terms: Terms, rules: Rules, sites: tuple | None = None, identity: Any = None) -> None:
        """`sites`: the rows themselves (A, y, …), where they are not to be read from the file that the rules name.
        `identity`: the private key itself, likewise."""
        if rules.name not in terms.names:
            raise InvalidConfig(f"{rules.name} is none of the sites of this federation: {', '.join(terms.names)}.")
        if terms.n < rules.minimum_sites:
            raise InvalidConfig(f"{rules.name}: the federation has {terms.n} sites, and minimum_sites is {rules.minimum_sites}.")
        self.terms, self.rules, self.agreed = terms, rules, terms.digest()
        rows = read_rows(rules.data, terms.problem) if sites is None else sites
        self.fleet = terms.fleet({rules.name: coded(rules.name, rows, terms.problem)}, update=rules.update)
        if (held := self.fleet.sites[0].A.shape[0]) < rules.minimum_rows:
            raise InvalidData(
                f"{rules.name}: the table has fewer rows than minimum_rows = {rules.minimum_rows}, and takes no part ({held})."
            )
        self.identity: Any = None
        if terms.secure.sums:
            from .vault import identified

            self.identity = identified(terms, rules.name, rules.key, identity)
        self.private = None if rules.privacy is None else Private(rules.name, rules.privacy, terms, rules.state)
        self.vault: Any = None
        self.key: tuple[str, int] | None = None  # the run and epoch that all below is of
        self.me: Any = None
        self.protocol: Protocol | None = None
        self.memory: Memory | None = None
        self.store: Store | None = None

    def answer(self, data: bytes) -> bytes:
        masked = read_masked(data)
        try:
            ending = read_ending(data)
            question = read_question(data if masked is None else masked[0]) if ending is None else ending.question
        except Refused as error:
            return self._seal(Question("", "", "", 0, 0, (), (), NOTHING), digest(data) if isinstance(data, bytes) else "", error)
        try:
            if ending is not None:
                return self._seal(question, digest(data), self._end(ending))
            with scope():
                body = self._in_the_open(question, digest(data)) if masked is None else self._behind_masks(question, *masked)
                return self._seal(question, digest(data), body)
        except Refused as error:
            return self._seal(question, digest(data), error)
        except (CheckpointError, OSError) as error:
            return self._seal(question, digest(data), Refused("failed", f"could not keep its state: {error}"))
        except Exception as error:
            # a mistake here must not take the site down, nor tell the server what an exception says of the site's data
            logging.getLogger("fedhybrid").exception("A question could not be answered.")
            return self._seal(question, digest(data), Refused("failed", f"failed with {type(error).__name__}; its own log says more."))

    def _seal(self, question: Question, asked: str, outcome: np.ndarray | Refused) -> bytes:
        refused, message, body = ("", "", outcome) if isinstance(outcome, np.ndarray) else (outcome.code, str(outcome), NOTHING)
        memory = self.memory.name if self.memory else ""
        return seal_answer(Answer(question.run, question.epoch, question.round, asked, self.rules.name, memory, refused, message, body))

    def _end(self, ending: Ending) -> np.ndarray:
        """The site's own copy of the answer, on its disk."""
        if ending.terms != self.agreed:
            raise Refused("terms", OTHER_TERMS)
        if not ending.sites or not set(ending.sites) <= set(self.terms.names):
            raise Refused("sites", "is told of sites that it does not know.")
        if len(ending.x) != self.fleet.d:
            raise Refused("question", f"is told {len(ending.x)} coefficients, and there are {self.fleet.d}.")
        if ending.run != last_begun(self.rules.state):
            raise Refused("run", "is told of the end of a run that is not the last one in which it took part.")
        keep_ending(ending, self.terms.coefficients, self.rules.state)
        return NOTHING

    # ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _in_the_open(self, question: Question, asked: str) -> np.ndarray:
        self._admit(question)
        told = ("start", "again", "census") if self.terms.rounds.private else ("start", "again")  # with nothing of the rows
        if self.terms.secure.sums and question.kind not in told:
            raise Refused("question", "answers in secure sums only, as was agreed.")
        return self._answer(question, asked)

    def _behind_masks(self, question: Question, data: bytes, message: bytes) -> np.ndarray:
        """A message of the masks' protocol; the question's answer goes into a sum, and is seen by nobody."""
        self._admit(question)
        if self.identity is None:
            raise Refused("question", "is asked for a secure sum, and none were agreed on.")
        if self.terms.rounds.private and question.kind == "census":
            raise Refused("question", "tells nothing of its rows in a private run.")
        self._open(question)
        if self.vault is None:
            from .vault import Vault

            assert self.store is not None
            self.vault = Vault(self.terms, question, self.rules.name, self.identity, self.rules.minimum_sites, self.store.folder)
        answer: np.ndarray = self.vault.reply(message, question, digest(data), self._answer, self._sizes)
        return answer

    def _sizes(self, question: Question) -> tuple[int, ...]:
        """Of the parts of an answer that have a scale of their own."""
        if question.kind == "census":
            return (1,) * CENSUS
        assert self.protocol is not None
        return self.protocol.questions[question.numbers[0]].up.sizes

    def _answer(self, question: Question, asked: str) -> np.ndarray:
        if question.kind == "census":
            if self.terms.rounds.private:
                return NO_NOISE if self.private is None else self.private.declaration
            return np.array([self.fleet.total_weight, self.fleet.row_norm**2])
        self._open(question)
        if self.memory is not None and asked == self.memory.question:
            return self.memory.answer
        if question.kind == "start":
            return self._start(question, asked)
        if self.memory is None:
            raise Refused("lost", "has no state of this run: ask its past questions again.")
        since = question.since[question.sites.index(self.rules.name)]
        if question.kind == "again":
            return self._again(question, asked, since)
        if question.round <= self.memory.round:
            raise Refused("old", f"has answered round {self.memory.round} already, with another question.")
        if self.memory.round < since:  # an older copy, or a state that was given back in part
            raise Refused("lost", f"has a state of round {self.memory.round} only: ask its past questions again.")
        return self._ask(question, asked)

    def _admit(self, question: Question) -> None:
        if question.terms != self.agreed:
            raise Refused("terms", OTHER_TERMS)
        if not set(question.sites) <= set(self.terms.names) or self.rules.name not in question.sites:
            raise Refused("sites", "is asked for sites that it does not know, or without itself.")
        if len(question.sites) < self.rules.minimum_sites:
            raise Refused("sites", f"takes no part with {len(question.sites)} sites: its minimum_sites is {self.rules.minimum_sites}.")
        if self.terms.secure.sums and self.terms.rounds.absent != "drop" and len(question.sites) < self.terms.n:
            raise Refused("sites", "is asked for sums without some of the sites, and the terms do not say absent = 'drop'.")

    def _open(self, question: Question) -> None:
        """The state of this run and epoch, from the disk if need be."""
        if self.key == (question.run, question.epoch):
            return
        if not NAME.fullmatch(question.run):
            raise Refused("run", "is asked for a run whose name cannot be a folder's.")
        self.key, self.me, self.protocol, self.vault = (question.run, question.epoch), None, None, None
        identity = {"site": self.rules.name, "run": str(self.key), "terms": self.agreed, "rows": self.fleet.fingerprint}
        self.store = Store(self.rules.state, *self.key, identity)
        self.memory = None  # also where reading it fails
        self.memory = self.store.load(self._begin)

    def _begin(self, sites: tuple[str, ...], begun: np.ndarray) -> Any:
        """The state that a run begins with."""
        self.protocol = self.protocol or self._protocol(len(sites))
        fn, down = self.protocol.start
        if len(begun) != 1 + down.floats:
            raise Refused("question", "does not have the shape that its question has.")
        self.me = self._client(sites, float(begun[0]))
        return _start(fn, self.me, *down.unpack(begun[1:]))

    def _keep(self, memory: Memory) -> None:
        """State and answer, before the answer leaves. One that is not on the disk is not remembered, and is worked out anew."""
        assert self.store is not None
        self.store.save(memory)
        self.memory = memory

    def _start(self, question: Question, asked: str) -> np.ndarray:
        local = self._begin(question.sites, question.body)
        if self.private is not None:
            self.private.replayed = 0
        memory = Memory(secrets.token_hex(8), 0, asked, NOTHING, question.body, question.sites, local)
        assert self.store is not None
        self.store.forget_older_runs()
        self._keep(memory)
        return NOTHING

    def _ask(self, question: Question, asked: str) -> np.ndarray:
        memory, known = self.memory, self.protocol
        assert memory is not None
        assert known is not None
        (number,) = question.numbers if len(question.numbers) == 1 else (-1,)
        if not 0 <= number < len(known.questions):
            raise Refused("question", f"is asked for number {number}, which this method does not have.")
        _, down, up, _ = known.questions[number]
        if len(question.body) != down.floats or not down.whole_where_it_must_be(question.body):
            raise Refused("question", "does not have the shape that its question has.")
        local, sent = _round(known.questions[number].fn, self.me, memory.local, *down.unpack(question.body))
        answer = up.pack(sent)
        if self.private is not None:  # drawn once: the question that comes again gets what is kept
            answer = self.private.released(known.questions[number], question, asked, answer)
        elif not np.all(np.isfinite(answer)):
            raise Refused("range", f"has no finite answer to round {question.round}: the values that it was asked at are too large.")
        self._keep(Memory(memory.name, question.round, asked, answer, memory.begun, memory.sites, local))
        return answer

    def _again(self, question: Question, asked: str, since: int) -> np.ndarray:
        """Past questions, for the state that they lead to; their answers are known."""
        memory, known = self.memory, self.protocol
        assert memory is not None
        assert known is not None
        if memory.round != since:
            raise Refused("lost", f"has a state of round {memory.round}, and is to go on from round {since}.")
        if any(number >= len(known.questions) for number in question.numbers):
            raise Refused("question", "is asked for a number that this method does not have.")
        ends = np.cumsum([known.questions[number].down.floats for number in question.numbers], dtype=int)
        if not question.numbers or ends[-1] != len(question.body) or question.round <= since:
            raise Refused("question", "does not have the shape that its questions have.")
        if self.private is not None:
            self.private.recount(question)
        local = memory.local
        for number, body in zip(question.numbers, np.split(question.body, ends[:-1]), strict=True):
            fn, down, *_ = known.questions[number]
            local, _ = _round(fn, self.me, local, *down.unpack(body))
        self._keep(Memory(memory.name, question.round, asked, NOTHING, memory.begun, memory.sites, local))
        return NOTHING

    def _protocol(self, n: int) -> Protocol:
        return protocol_of(self.terms.algorithm(), self.terms.stand_in(), n, certified=not self.terms.rounds.private)

    def _client(self, sites: tuple[str, ...], total_weight: float) -> Client:
        if self.terms.rounds.private:  # it stands in for the rows' weight, which would tell how many there are, and is not used
            total_weight = 1.0
        elif not (np.isfinite(total_weight) and total_weight >= self.fleet.total_weight * (1.0 - 1e-9)):
            raise Refused("question", "is told a total weight that is less than its own.")
        part = self.fleet.as_part_of(len(sites), total_weight)
        me = part.client(0, padded(part.sites[0].A.shape[0]))
        return jax.device_put(me._replace(id=np.int32(sorted(sites).index(self.rules.name))))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process for a site's state."""
        with files.lock(self.rules.state):
            yield


_start = jax.jit(lambda fn, me, *down: fn(me, *down), static_argnums=0)


_round = jax.jit(lambda fn, me, local, *down: fn(me, local, *down), static_argnums=0)

__all__ = ["CENSUS", "Memory", "Rules", "Site", "read_rules"]
