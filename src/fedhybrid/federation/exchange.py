"""One question to all sites, and their answers: sent again where that may help, checked, and waited for no longer than was agreed."""

import time
from collections.abc import Callable, Iterable
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
NOTHING = np.zeros(0)
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
        self.sent: dict[str, bytes] = {}  # what every site is asked now
        self.recovering: dict[str, list[Question]] = {}  # past questions that a site is asked before that, one after the other
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
        late = {key: self.open[key] for key in also if key in self.open}
        self.open = late | {asked: Open(question._replace(body=NOTHING), floats, usable)}
        self.sent = dict.fromkeys(self.names, data)
        waiting, found = set(self.names), dict[str, tuple[int, np.ndarray]]()
        began = pushed = time.monotonic()
        self._push(waiting)
        while waiting:
            spent = time.monotonic() - began
            if spent >= self._limit(waiting, bridged):
                break
            if time.monotonic() - pushed >= RESEND:
                pushed = time.monotonic()
                self._push(waiting)
                self.events.tell("waiting", round=question.round, sites=sorted(waiting), seconds=round(spent, 1))
            for name, raw in self.link.pull(min(PULL, max(0.0, self._limit(waiting, bridged) - spent))):
                answer = self._read(name, raw)
                if answer is None:
                    continue
                if answer.refused:
                    self._on_refusal(answer, recover)
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

    def _push(self, names: Iterable[str]) -> None:
        """Ask these what they are to answer next."""
        past = {name: seal_question(questions[0]) for name, questions in self.recovering.items()}
        messages = {name: past.get(name) or self.sent[name] for name in names}
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
            past = self.recovering.get(name, [])[:1]
            known = self.open | {digest(seal_question(each)): Open(each, 0, lambda row: "") for each in past}
            answer = read_answer(raw, {key: each.floats for key, each in known.items()})
            if answer is None:
                self.events.tell("stale", site=name)
                return None
            each = known[answer.question]
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
        if answer.question not in self.open and not answer.refused:
            self._go_on(name)
            return None
        return answer

    def _go_on(self, name: str) -> None:
        """A site has answered a past question: the next one, or what it is asked now."""
        self.recovering[name].pop(0)
        if not self.recovering[name]:
            del self.recovering[name]
        if name in self.recovering or name in self.sent:
            self._push([name])

    def _strike(self, name: str, why: str) -> None:
        self.strikes[name] += 1
        self.events.tell("unusable", site=name, why=why, strikes=self.strikes[name])
        if self.strikes[name] >= self.rounds.strikes:
            raise Gone({name}, f"{name} was put out after {self.strikes[name]} replies that could not be used; the last one {why}")

    def _on_refusal(self, answer: Answer, recover: Callable[[str], list[Question]] | None) -> None:
        name, code = answer.site, answer.refused
        if code in ("lost", "old") and name in self.recovering and answer.question in self.open:
            return  # a copy of what it could not answer, and will be asked again
        self.events.tell("refused", site=name, why=answer.message, code=code)
        if code == "budget":
            raise BudgetSpent(f"{name} {answer.message}")
        if code in FINAL:
            raise QuorumLost(f"{name} {answer.message}")
        if code in ("lost", "old") and recover is not None:
            self.events.tell("state lost", site=name, round=answer.round)
            self.recovering[name] = recover(name)
            self._push([name])
            return
        self._strike(name, answer.message)
