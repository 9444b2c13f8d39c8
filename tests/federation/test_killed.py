"""Killed at any instant, a server or everyone at once: the same command goes on, no round is lost, and not a bit of the answer changes."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from harness import Faulty, Federation, digest_of, terms_of
from samples import same_bits

from fedhybrid import checkpoint
from fedhybrid.federation import journal, kept

pytest.importorskip("cryptography")

CASES = {
    "krylov, open": ("krylov", "logistic", False, "wait"),
    "fedhybrid, open": ("fedhybrid", "squared", False, "wait"),
    "krylov, masked": ("krylov", "logistic", True, "wait"),
    "fedhybrid, masked changes": ("fedhybrid", "squared", True, "bridge"),
}
CALLS = ("write", "fsync", "replace", "rename")


class Killed(BaseException):
    """As kill −9 at this place: nothing of this process is heard of again."""


class Fate:
    """Death at one of the next calls to the disk, or of the next answers that arrive. A write may have got halfway."""

    def __init__(self, monkeypatch, modules):
        self.chance, self.left, self.deaths, self.asleep = random.Random(0), 0, Counter(), False
        fake = type(
            "os", (), {name: staticmethod(value) if callable(value) else value for name, value in vars(os).items() if name[0] != "_"}
        )
        for name in CALLS:
            setattr(fake, name, staticmethod(self._mortal(name, getattr(os, name))))
        for module in modules:
            monkeypatch.setattr(module, "os", fake)

    def _mortal(self, name, real):
        def call(*args):
            if not self.asleep:
                self.left -= 1
                if self.left <= 0:
                    late = self.chance.random() < 0.5
                    if late:  # what was to be done is done, in part for a write; nobody knows
                        real(*((args[0], bytes(args[1])[: len(args[1]) // 2]) if name == "write" else args))
                    self.die(f"{name}{', torn' * (late and name == 'write') or ', done' * late}")
            return real(*args)

        return call

    def die(self, where):
        self.deaths[where] += 1
        raise Killed


def run_to_the_end(federation, fate, everyone):
    """Again and again, each time with a little more life; the last result. No round that was told of is ever taken from the sites again."""
    told = 0

    def hear(what, details):
        nonlocal told
        if what == "epoch":
            assert max(0, details["rounds_on_record"] - 2) >= told, "a round is lost"
        if what == "round":
            told = max(told, details["round"])

    def meddle(name, answer, count):
        if fate.chance.random() < 0.02 and fate.left < 100:
            fate.die("an answer arrives")
        return [answer]

    real, most = federation.answer, 6

    def answer(name, message):
        fate.asleep = not everyone
        try:
            return real(name, message)
        finally:
            fate.asleep = False

    federation.answer = answer
    while True:
        fate.left = fate.chance.randrange(1, most)
        most += 1
        try:
            return federation.run(Faulty(federation, meddle), hear)
        except Killed:
            if everyone:
                for name in federation.terms.names:
                    federation.restart(name)


def tiers():
    """Ten deaths of each method always; many, of the server alone and of everyone, and sums of changes, in the long tier."""
    for case in CASES:
        for everyone, who in ((False, "the server"), (True, "everyone")):
            if everyone == (CASES[case][0] == "fedhybrid") and "changes" not in case:
                yield pytest.param(case, 10, everyone, id=f"{case}-{who}-some")
            yield pytest.param(case, 110, everyone, marks=pytest.mark.slow, id=f"{case}-{who}-many")


@pytest.mark.parametrize(("case", "least", "everyone"), list(tiers()))
def test_death_at_any_call_to_the_disk_changes_no_bit(case, least, everyone, tmp_path, monkeypatch):
    method, loss, secure, absent = CASES[case]
    terms = terms_of(method, loss, secure, absent=absent)
    whole = Federation(tmp_path / "whole", terms).run()
    for name in ("exchange", "sums"):
        monkeypatch.setattr(f"fedhybrid.federation.{name}.RESEND", 0.05)
    fate, runs = Fate(monkeypatch, (journal, kept, *([checkpoint] if everyone else []))), 0
    while sum(fate.deaths.values()) < least:
        runs += 1
        result = run_to_the_end(Federation(tmp_path / f"run {runs}", terms), fate, everyone)
        assert same_bits(result.x, whole.x)
        assert same_bits(result.trace.x0, whole.trace.x0)
        assert result.rounds == whole.rounds
    number, who = sum(fate.deaths.values()), "everyone" if everyone else "the server"
    print(f"{case}, {who}: {number} deaths in {runs} runs, 0 rounds lost: {dict(fate.deaths)}")


@pytest.mark.parametrize(
    ("case", "least"),
    [("krylov, masked", 2), *(pytest.param(case, 6, marks=pytest.mark.slow) for case in CASES if "changes" not in case)],
)
def test_processes_that_are_killed_at_random_instants_end_with_the_same_bits(case, least, tmp_path):
    method, loss, secure, _ = CASES[case]
    federation = Federation(tmp_path / "whole", terms_of(method, loss, secure))
    expected = digest_of(federation.run(), federation.folder)
    here, chance, deaths = Path(__file__).parent, random.Random(0), 0
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    # a child that is killed must not leave half an entry in the compilation cache: it only reads there
    environment = os.environ | {"PYTHONPATH": path, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
    command = [sys.executable, str(here / "run_child.py"), str(tmp_path / "killed"), method, loss, "secure" if secure else "open"]
    while True:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
            said = ""
            if deaths < least:
                for _ in range(chance.randrange(1, 4) + deaths):
                    said = child.stdout.readline()
                time.sleep(chance.uniform(0.0, 0.05))
                child.kill()
            said += child.stdout.read()
        if child.returncode == 0:
            break
        deaths += 1
    print(f"{case}: {deaths} kills of the whole process")
    assert deaths >= least - 1  # the last one may come too late
    assert f"digest {expected}" in said
