"""One question to all sites, and their answers: sent again where that may help, checked, and waited for no longer than was agreed."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ..status import QuorumLost
from .envelope import Answer, Question, Refused, digest, read_answer, seal_question
from .events import Events
from .link import Link
from .terms import Rounds

RESEND = 60.0  # seconds after which a site is asked once more; a link itself repeats what a lost connection took with it
GRACE = 0.1  # a site that was late in the last round is given this part of the deadline in the next
PULL = 0.5
FINAL = ("terms", "sites", "rows", "run")  # reasons to refuse that asking again will not change


class Gone(Exception):
    """Sites that take no further part: the run begins again without them."""

    def __init__(self, names: Iterable[str], why: str) -> None:
        super().__init__(why)
        self.names, self.why = frozenset(names), why


class BudgetSpent(QuorumLost):
    """A site has told as much as its own file allows: it answers nothing more."""


class Open(NamedTuple):
    """A question that may still be answered."""

    question: Question
    floats: int
    usable: Callable[[np.ndarray], str]  # "" or what is wrong with an answer's numbers


class Exchange:
    def __init__(self, link: Link, rounds: Rounds, names: tuple[str, ...], events: Events) -> None:
        self.link, self.rounds, self.names, self.events = link, rounds, names, events
        self.open: dict[str, Open] = {}
        self.strikes = dict.fromkeys(names, 0)
        self.memories: dict[str, str] = {}
        self.late: frozenset[str] = frozenset()  # who missed the last round that did not wait
        self.latest = ""
        self.bytes_up = self.bytes_down = 0

    def ask(
        self,
        question: Question,
        floats: int,
        *,
        usable: Callable[[np.ndarray], str] = lambda row: "",
        bridged: frozenset[str] = frozenset(),
        recover: Callable[[str], list[Question]] | None = None,
        also: Iterable[str] = (),
    ) -> dict[str, tuple[int, np.ndarray]]:
        """Round and reply of every site that answered.

        bridged   sites without whose answer the round may close
        recover   the questions that give a site back the state that it lost
        also      digests of earlier questions whose late answers are still of use
        """
        data = seal_question(question)
        asked = digest(data)
        self.latest = asked
        self.open = {key: self.open[key] for key in also if key in self.open} | {asked: Open(question, floats, usable)}
        waiting, found = set(self.names), dict[str, tuple[int, np.ndarray]]()
        began = pushed = time.monotonic()
        self._push(dict.fromkeys(waiting, data))
        while waiting:
            spent = time.monotonic() - began
            if spent >= self._limit(waiting, bridged):
                break
            if time.monotonic() - pushed >= RESEND:
                pushed = time.monotonic()
                self._push(dict.fromkeys(waiting, data))
                self.events.tell("waiting", round=question.round, sites=sorted(waiting), seconds=round(spent, 1))
            for name, raw in self.link.pull(min(PULL, max(0.0, self._limit(waiting, bridged) - spent))):
                answer = self._read(name, raw)
                if answer is None:
                    continue
                if answer.refused:
                    self._on_refusal(answer, data, recover)
                    continue
                if name in found and found[name][0] >= answer.round:
                    self.events.tell("duplicate", site=name, round=answer.round)
                    continue
                found[name] = (answer.round, answer.body)
                if answer.question == asked:
                    waiting.discard(name)
        if waiting:
            self._on_absence(frozenset(waiting), question, bridged)
        self.late = frozenset(waiting)
        return found

    def _limit(self, waiting: set[str], bridged: frozenset[str]) -> float:
        """Seconds that this round waits."""
        if waiting <= bridged:
            return self.rounds.deadline * (GRACE if waiting <= self.late else 1.0)
        return self.rounds.deadline if self.rounds.absent == "abort" else max(self.rounds.patience, self.rounds.deadline)

    def _push(self, messages: Mapping[str, bytes]) -> None:
        self.bytes_down += sum(map(len, messages.values()))
        self.link.push(dict(sorted(messages.items())))

    def _on_absence(self, missing: frozenset[str], question: Question, bridged: frozenset[str]) -> None:
        names = ", ".join(sorted(missing))
        if missing <= bridged:
            self.events.tell("bridged" if question.kind == "ask" else "silent", round=question.round, sites=sorted(missing))
            return
        waited = self._limit(set(missing), bridged)
        self.events.tell("missing", round=question.round, sites=sorted(missing), seconds=waited)
        if self.rounds.absent == "drop":
            raise Gone(missing, f"{names} did not answer for {waited:g} seconds.")
        raise QuorumLost(f"{names} did not answer round {question.round} for {waited:g} seconds, and everyone is needed in it.")

    # ── an answer ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, name: str, raw: bytes) -> Answer | None:
        self.bytes_up += len(raw)
        if name not in self.names:
            self.events.tell("stranger", site=name)
            return None
        try:
            answer = read_answer(raw, {key: each.floats for key, each in self.open.items()})
            if answer is None:
                self.events.tell("stale", site=name)
                return None
            each = self.open[answer.question]
            if (answer.run, answer.epoch, answer.round) != each.question[2:5]:
                raise Refused("question", "does not belong to the round of its question.")
            if answer.site != name:
                raise Refused("question", "was sent in another site's name.")
            if not answer.refused and (wrong := each.usable(answer.body)):
                raise Refused("question", wrong)
        except Refused as error:
            self._strike(name, str(error))
            return None
        if answer.memory and self.memories.setdefault(name, answer.memory) != answer.memory:
            self.memories[name] = answer.memory
            self.events.tell("new state", site=name, round=answer.round)
        return answer

    def _strike(self, name: str, why: str) -> None:
        self.strikes[name] += 1
        self.events.tell("unusable", site=name, why=why, strikes=self.strikes[name])
        if self.strikes[name] >= self.rounds.strikes:
            raise Gone({name}, f"{name} was put out after {self.strikes[name]} replies that could not be used; the last one {why}")

    def _on_refusal(self, answer: Answer, data: bytes, recover: Callable[[str], list[Question]] | None) -> None:
        name, code = answer.site, answer.refused
        self.events.tell("refused", site=name, why=answer.message, code=code)
        if code == "budget":
            raise BudgetSpent(f"{name} {answer.message}")
        if code in FINAL:
            raise QuorumLost(f"{name} {answer.message}")
        if code in ("lost", "old") and recover is not None:
            self.events.tell("state lost", site=name, round=answer.round)
            for question in recover(name):
                self.link.push({name: seal_question(question)})
            self.link.push({name: data})
            return
        self._strike(name, answer.message)
