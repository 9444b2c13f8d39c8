"""The server's side of a federation: one run, from who is there to the answer, whatever happens on the way.

A run is one or more epochs, each with the sites that take part in it; when one leaves for good, or is put out, the next epoch begins
from where the last one was. The answer is then that of the sites that are left, and the result says so.
"""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import checkpoint as files
from ..clients.remote import Remote
from ..driver import Driver, Limits
from ..numerics import scope
from ..result import Result, TraceBuilder
from ..status import CheckpointError, QuorumLost, Status
from .ending import tell_all
from .events import Events, Listener
from .exchange import Exchange, Gone
from .fixed import FixedRounds, labelled, noise_of, unproved
from .journal import Journal, Record
from .kept import Kept
from .link import Link
from .protocol import Protocol, protocol_of
from .terms import Terms

FEWEST_SUMMED = 3
LABELS = {
    "plain": "The server saw what every site sent.",
    "secagg": "The server saw sums over the sites, and what no single one sent.",
    "dp": "What the server saw carries every site's own noise, which bounds what it tells of that site.",
}


@dataclass(frozen=True)
class Roster:
    """What the server knows of the objective: no row of it."""

    n: int
    d: int
    reg: np.ndarray
    loss: Any
    names: tuple[str, ...]
    row_norm: float
    fingerprint: str
    notes: tuple[str, ...] = ()


def serve(terms: Terms, link: Link, folder: Path, *listeners: Listener) -> Result:
    """Run to the end; where the folder holds the beginning of one, go on from there."""
    with scope(), files.lock(folder), contextlib.closing(Events(folder / "events.jsonl", *listeners)) as events:
        return Run(terms, link, folder, events).finish()


class Run:
    def __init__(self, terms: Terms, link: Link, folder: Path, events: Events) -> None:
        self.link, self.folder, self.events = link, folder, events
        self.terms, self.agreed = terms, terms.digest()  # of the first epoch: what the sites have in their files
        self.run = secrets.token_hex(8)
        self.label = "plain"
        self.noise: dict[str, Any] = {}  # how private each site is, in a private run
        self.left: dict[str, str] = {}  # who is gone, and why
        self.m_without_one = 0.0

    def finish(self) -> Result:
        standing, start = self.terms, jnp.zeros(self.terms.stand_in().d)
        for epoch in range(self.terms.n):
            with self._journal(epoch) as journal:
                self._belongs(journal, epoch)
                recorded = [record for record in journal.records if record.header["kind"] == "gone"]
                ended = recorded[0] if recorded else self._epoch(standing, journal, epoch, start)
                if isinstance(ended, Result):
                    result = self._with_notes(ended)
                    tell_all(self.link, self.terms, self.agreed, self.run, epoch, result, self.events)
                    return result
            standing, start = standing.without(frozenset(ended.header["names"])), jnp.asarray(ended.rows)
            self.left |= dict.fromkeys(ended.header["names"], ended.header["why"])
        raise AssertionError("every epoch has fewer sites than the one before")

    def _epoch(self, terms: Terms, journal: Journal, epoch: int, start: Any) -> Result | Record:
        stand_in, algorithm = terms.stand_in(), terms.algorithm()
        if terms.secure.sums and terms.n < FEWEST_SUMMED:
            left = f"Only {' and '.join(terms.names)} are left"
            why = f"{left}, and secure sums need {FEWEST_SUMMED} sites: of two, each could work out the other's numbers."
            self.events.tell("ended", status=str(Status.QUORUM_LOST), why=why)
            return nothing_done(QuorumLost(why), start, terms, str(algorithm.spec))
        protocol = protocol_of(algorithm, stand_in, terms.n, certified=not terms.rounds.private)
        remote = self._remote(terms, journal, epoch, protocol, str(algorithm.spec))
        driver: Driver | FixedRounds | None = None
        self.events.tell("epoch", run=self.run, epoch=epoch, sites=list(terms.names), rounds_on_record=len(journal.records))
        try:
            remote.enrol(epoch)
            if terms.rounds.private:
                driver = FixedRounds(terms, remote, algorithm, start, self.events)
                result = driver.finish()
                self.noise |= noise_of(remote, Kept(self.folder / f"epoch-{epoch:03}.noise"), result)
                return result
            objective = Roster(terms.n, stand_in.d, stand_in.reg, stand_in.loss, terms.names, remote.row_norm, self.agreed)
            limits = Limits(terms.rounds.tol, terms.rounds.most, float("inf"))
            driver = Driver(objective, remote, algorithm, start, limits, None, self.events, start_given=epoch > 0)
            result = driver.finish()
            self.m_without_one = remote.m_without_one
            return result
        except QuorumLost as error:  # before the first round
            self.events.tell("ended", status=str(error.status), why=str(error))
            return nothing_done(error, start, terms, str(algorithm.spec))
        except Gone as gone:
            self.events.tell("gone", sites=sorted(gone.names), why=gone.why)
            if len(gone.names) == terms.n:
                return nothing_done(QuorumLost(f"nobody is left: {gone.why}"), start, terms, str(algorithm.spec))
            x = np.asarray(start if driver is None else driver.state.x0)
            record = Record({"kind": "gone", "names": sorted(gone.names), "why": gone.why}, x)
            journal.add(*record)
            return record

    def _remote(self, terms: Terms, journal: Journal, epoch: int, protocol: Protocol, method: str) -> Remote:
        """The sites, in the open or behind masks."""
        rest = terms, self.agreed, protocol, journal, self.events, self.run
        if not terms.secure.sums:
            return Remote(Exchange(self.link, terms.rounds, terms.names, self.events), *rest)
        from ..clients.summed import SummedRemote
        from .agreed import agreement_of, refuse_what_no_sum_can_carry
        from .sums import SumExchange

        refuse_what_no_sum_can_carry(terms, protocol, method)
        agreement = agreement_of(self.terms, self.run, epoch, terms.names)
        self.label = f"secagg({agreement.n}, {agreement.threshold})"
        kept = Kept(self.folder / f"epoch-{epoch:03}.sums")
        if epoch == 0 and not journal.records:  # nothing was summed yet, and the run has a new name
            kept.path.unlink(missing_ok=True)
        return SummedRemote(SumExchange(self.link, terms.rounds, self.events, agreement, kept), *rest)

    @contextlib.contextmanager
    def _journal(self, epoch: int) -> Iterator[Journal]:
        journal = Journal(self.folder / f"epoch-{epoch:03}.log")
        try:
            yield journal
        finally:
            journal.close()

    def _belongs(self, journal: Journal, epoch: int) -> None:
        """A record under other terms, or of another epoch or run, must not be read as this one's."""
        if not journal.records:
            return
        first, expected = journal.records[0].header, {"kind": "census", "terms": self.agreed, "epoch": epoch}
        if expected.items() <= first.items() and (epoch == 0 or first["run"] == self.run):
            self.run = first["run"]
            return
        raise CheckpointError(
            f"{journal.path} is of other terms than these, or of another run. Put back what belongs here, or begin with another folder."
        )

    def _with_notes(self, result: Result) -> Result:
        label, who = labelled(self.noise, self.label, self.terms.names) if self.terms.rounds.private else (self.label, [])
        self.events.tell("privacy", label=label, notes=who)
        notes = [f"Privacy: {label}. {LABELS[label.partition('(')[0]]}", *who]
        notes += [f"{name} took no part to the end: {why} The answer is that of the others." for name, why in self.left.items()]
        told = self.events.counts
        if told["bridged"]:
            notes.append(f"In {told['bridged']} rounds last replies stood in for sites that were late.")
        for what, words in (("unusable", "replies could not be used"), ("stale", "late or repeated replies were not needed")):
            if told[what]:
                notes.append(f"{told[what]} {words}.")
        if told["state lost"]:
            notes.append(f"Sites lost their state {told['state lost']} times, and were given it back.")
        largest = self.terms.rounds.largest_gradient
        if largest is not None and self.m_without_one > 0:
            notes.append(
                f"One site that lies within the agreed largest gradient, {largest:g}, moves the others' answer by at most "
                f"{largest / self.m_without_one:.3g}: the curvature of all sites but one is at least {self.m_without_one:.3g}."
            )
        return replace(result, privacy=label, notes=(*notes[: 1 + len(who)], *result.notes, *notes[1 + len(who) :]))


def nothing_done(error: QuorumLost, start: Any, terms: Terms, algorithm: str) -> Result:
    """The result of a run that never began."""
    message = f"{error.status.sentence[0].upper()}{error.status.sentence[1:]}. {error}"
    return unproved(error.status, message, TraceBuilder(np.asarray(start)), np.asarray(start), algorithm, terms)
