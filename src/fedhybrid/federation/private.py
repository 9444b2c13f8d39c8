"""A private site: what it tells in a run, with how much noise, and what it has spent.

Where the terms say `private` a run is a fixed number of rounds of a method whose only question has an answer near a point that everyone
knows: x₀, at a distance that implies a gradient (FedHybrid's z, ADMM's), or 0, where the answer is a gradient. A private site clips it
there, adds noise, and leaves out whatever else the method would have sent (residuals, for stopping). Nobody counts rows before the first
round, and nobody asks for a certificate: sums of gradients and Hessians without noise would tell what the noise has covered.

Whether a site is private, and how much so, its own file says; what it says is no secret, and the label of the result follows from it.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..algorithms.admm import update as admm_update
from ..algorithms.fedhybrid import update as fedhybrid_update
from ..algorithms.oracle import gradient
from ..secure import privacy
from ..secure.errors import SecureError
from ..status import CheckpointError, InvalidConfig
from .envelope import Question, Refused
from .kept import Kept
from .protocol import Question as Asked
from .protocol import protocol_of
from .rules import Privacy
from .terms import Terms

# Answers that may be released, and the parameter that makes their distance from x₀ a gradient; "" where they are gradients themselves
RELEASED: Mapping[Callable[..., Any], str] = {fedhybrid_update: "mu", admm_update: "rho", gradient: ""}
METHODS = "fedhybrid with mu, a and b; admm with rho; gd with step_size"
LEDGER, SUM = "privacy", 32
GRID = 32  # bits of the grid within σ: rounding then adds next to nothing to the sensitivity
HAIR = 1e-6  # σ from a budget is larger by this, so that rounding takes no round away
NO_NOISE = np.zeros(3)


def refuse_what_no_noise_can_cover(terms: Terms) -> None:
    algorithm = terms.algorithm()
    asked = protocol_of(algorithm, terms.stand_in(), terms.n, certified=False).questions
    if len(asked) != 1 or asked[0].fn not in RELEASED:
        raise InvalidConfig(
            f"[rounds] private = true: {algorithm.spec} asks for more than an answer with noise can give. Methods that work: {METHODS}."
        )
    if terms.problem.weighting != "client":
        raise InvalidConfig(
            "[rounds] private = true needs [problem] weighting = 'client': the pooled fit takes a count of all rows, which is not released."
        )
    if terms.rounds.largest_gradient is not None:
        raise InvalidConfig("[rounds] largest_gradient would judge sites by their noise: with private = true leave it out; sites clip.")


def penalty_of(terms: Terms, fn: Callable[..., Any]) -> float | None:
    """What makes an answer's distance from x₀ a gradient; None where it is one itself."""
    name = RELEASED[fn]
    return float(terms.algorithm().spec.parameters[name]) if name else None


class Release(NamedTuple):
    """How one answer is made private."""

    around_x0: bool
    radius: float
    sigma: float
    scale: int
    sensitivity: float


class Private:
    """One site's releases."""

    def __init__(self, name: str, rules: Privacy, terms: Terms, state: Path) -> None:
        if not terms.rounds.private:
            raise InvalidConfig(
                f"{name}: its own file has a section [privacy], and this federation asks for sums that carry no noise. Agree on [rounds] "
                f"private = true in federation.toml, and on a method that noise can cover: {METHODS}."
            )
        self.rules, self.size, self.answers = rules, terms.stand_in().d, rules.rounds or terms.rounds.most
        (question,) = protocol_of(terms.algorithm(), terms.stand_in(), terms.n, certified=False).questions
        self.how = self._release(penalty_of(terms, question.fn))
        self.ledger = Ledger(state / LEDGER, rules)
        self.replayed = 0  # past questions since the last start

    def _release(self, penalty: float | None) -> Release:
        unit = 1.0 if penalty is None else 1.0 / penalty
        radius = self.rules.clip * unit
        if self.rules.sigma is None:
            multiplier = (1.0 + HAIR) * math.sqrt(self.answers / (2.0 * privacy.rho_for(self.rules.epsilon, self.rules.delta)))
            scale = GRID - math.ceil(math.log2(2.0 * radius * multiplier))
            far = privacy.sensitivity(radius, self.size, scale)
            return Release(penalty is not None, radius, far * multiplier, scale, far)
        sigma = self.rules.sigma * unit
        scale = GRID - math.ceil(math.log2(sigma))
        return Release(penalty is not None, radius, sigma, scale, privacy.sensitivity(radius, self.size, scale))

    @property
    def declaration(self) -> np.ndarray:
        """What others are told: the budget, and what of it is spent. It follows from the site's file and from how often it was asked."""
        return np.array([self.rules.epsilon, self.rules.delta, self.ledger.accountant.epsilon])

    @property
    def sentence(self) -> str:
        spent, how = self.ledger.accountant.epsilon, self.how
        budget = privacy.label(self.rules.epsilon, self.rules.delta)
        noise = f"noise {how.sigma / how.radius * self.rules.clip:.3g} on gradients of norm {self.rules.clip:g}"
        return f"Private: {budget}, of which {spent:.3g} is spent; {noise}."

    def released(self, asked: Asked, question: Question, name: str, row: np.ndarray) -> np.ndarray:
        """What is sent instead. It is counted, and itself on the disk, when this returns; a question that comes again gets it again.

        `name`: the question's SHA-256.
        """
        if (kept := self.ledger.answer_to(name)) is not None:
            return np.concatenate([kept, np.zeros(len(row) - self.size)])
        if asked.fn not in RELEASED:  # the terms allow none such
            raise Refused("question", "is private, and does not answer that.")
        how, here = self.how, question.body
        if not np.all(np.isfinite(here)):
            raise Refused("question", "is asked at a point that is not finite.")
        centre = here if how.around_x0 else np.zeros(self.size)
        values = row[: self.size]
        if not np.all(np.isfinite(values)):  # that a site's arithmetic failed is no less its own than its numbers
            logging.getLogger("fedhybrid").warning("Round %s: the answer was not finite; noise alone was sent.", question.round)
            values = centre
        try:
            sent = privacy.release(values, centre, radius=how.radius, sigma=how.sigma, scale=how.scale)
        except SecureError as error:
            raise Refused("range", str(error)) from None
        self.ledger.spend(how, _run(question), 1, name, sent)
        return np.concatenate([sent, np.zeros(len(row) - self.size)])

    def recount(self, question: Question) -> None:
        """Past questions come again. A ledger that does not know of them was lost; their answers had left, and perhaps one more."""
        known = self.ledger.answers_in(_run(question))
        self.replayed += len(question.numbers)
        if known < self.replayed:
            self.ledger.spend(self.how, _run(question), self.replayed + 1 - known)


def _run(question: Question) -> str:
    return f"{question.run}-{question.epoch}"


class Ledger:
    """What a site has spent in all its runs, and its last answer. A file that is damaged is no new budget: then the site does not start."""

    def __init__(self, path: Path, rules: Privacy) -> None:
        self.kept = Kept(path)
        self.accountant = privacy.Accountant(rules.delta, rules.epsilon)
        self.run, self.answers = "", 0
        self.last: tuple[str, np.ndarray] = "", np.zeros(0)
        if data := self.kept.load():
            text, sum_of_it = data[:-SUM], data[-SUM:]
            if hashlib.sha256(text).digest() != sum_of_it:
                raise CheckpointError(f"{path} is damaged: what this site has spent is not known, and it tells nothing more.")
            found = json.loads(text)
            self.accountant.rho, self.run, self.answers = found["rho"], found["run"], found["answers"]
            self.last = found["question"], np.array(found["answer"], np.float64)

    def answers_in(self, run: str) -> int:
        return self.answers if run == self.run else 0

    def answer_to(self, name: str) -> np.ndarray | None:
        return self.last[1] if name == self.last[0] else None

    def spend(self, how: Release, run: str, releases: int, name: str = "", answer: np.ndarray | None = None) -> None:
        """On the disk when this returns."""
        try:
            self.accountant.spend(how.sensitivity, how.sigma, releases)
        except SecureError:
            budget = privacy.label(self.accountant.limit, self.accountant.delta)
            raise Refused("budget", f"has used up its privacy budget, {budget}, and sends nothing more.") from None
        self.run, self.answers = run, self.answers_in(run) + releases
        self.last = (name, np.zeros(0) if answer is None else answer)
        told = {"rho": self.accountant.rho, "run": run, "answers": self.answers, "question": name, "answer": self.last[1].tolist()}
        text = json.dumps(told).encode()
        self.kept.save(text + hashlib.sha256(text).digest())
