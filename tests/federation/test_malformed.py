"""Hundreds of spoilt messages, both ways, in the open and behind masks: none is used, costs memory, or changes a bit of the answer."""

import hashlib
import tracemalloc
from collections import Counter
from pathlib import Path

import malformed
import numpy as np
import pytest
from harness import Federation, terms_of
from samples import same_bits

import fedhybrid as fh
from fedhybrid.federation.ending import read_ending
from fedhybrid.federation.envelope import ANSWER, CODES, read_masked, read_question, seal_masked, unseal
from fedhybrid.federation.link import Loopback

pytest.importorskip("cryptography")

from fedhybrid.secure.messages import Kind

CASES = {
    "open": ("krylov", "logistic", False, "wait"),
    "masked": ("krylov", "logistic", True, "wait"),
    "masked changes": ("fedhybrid", "squared", True, "bridge"),
}
OF_EACH = {"open": 10, "masked": 9, "masked changes": 2}  # messages; their number differs
TIERS = [pytest.param(1, id="some"), pytest.param(12, id="many", marks=pytest.mark.slow)]
MEGABYTES = 10 * 2**20
HEARD = ("unusable", "stale", "late", "duplicate")  # events, one for every answer that was not used


def terms(case):
    method, loss, secure, absent = CASES[case]
    return terms_of(method, loss, secure, absent=absent, strikes=10**9)


class Memory:
    """The most that was taken beyond what was held before: as Python counts it, and in pages."""

    def __init__(self):
        self.python = self.pages = 0

    def __enter__(self):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        self.before = self._pages("VmRSS")
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        self.python = max(self.python, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        self.pages = max(self.pages, self._pages("VmHWM") - self.before)

    @staticmethod
    def _pages(name):
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
        return 1024 * int(line.split()[1])


def some(cases, most, rng):
    """So many of them, whatever there are."""
    cases = list(cases)
    return [cases[k] for k in sorted(rng.permutation(len(cases))[:most].tolist())]


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wrong_answers(name, answer, earlier, rng):
    yield from malformed.damaged(answer, rng)
    yield from malformed.mistyped(answer)
    header, body = unseal(answer, ANSWER)
    for twin in malformed.TWINS:
        if twin != name:
            yield f"site {twin[:9]!r}", malformed.changed(answer, site=twin)
    for run in ("", "ffff", header["run"].upper() + "x", "../" + header["run"], "\u200b" + header["run"]):
        yield f"run {run!r}", malformed.changed(answer, run=run)
    for field in ("round", "epoch"):
        for step in (1, 5, 200, 2**40):
            yield f"{field} {step} later", malformed.changed(answer, **{field: header[field] + step})
    if header["round"]:
        yield "a round before", malformed.changed(answer, round=header["round"] - 1)
    for asked in ("", "0" * 64, header["question"].upper() + " ", header["question"][:-1]):
        yield f"an answer to {asked[:9]!r}", malformed.changed(answer, question=asked)
    for code in ("yes", "Terms", "lost ", "__init__"):
        yield f"refused because {code!r}", malformed.changed(answer, refused=code)
    yield "refused, and a body", malformed.put_together(malformed.written(header | {"refused": "failed"}), body + bytes(8))
    for k, old in enumerate(earlier[:-6:7]):
        yield f"an earlier answer, {k}", old


def wrong_rows(answer):
    header, body = unseal(answer, ANSWER)
    text = malformed.written(header)
    yield from ((f"a body: {what}", malformed.put_together(text, other)) for what, other in malformed.bodies(body))


def wrong_masked_rows(answer, rng):
    """What is wrong only within the message of the masks."""
    header, body = unseal(answer, ANSWER)
    text = malformed.written(header)
    yield from ((f"within: {what}", malformed.put_together(text, other)) for what, other in spoilt(body, rng))


def spoilt(message, rng, most=None):
    """A message of the masks' protocol. `most`: bits behind are not signed."""
    for at in {0, 3, 4, 5, 36, 37, len(message) // 2, len(message) - 64, len(message) - 1} | set(
        rng.integers(len(message), size=8).tolist()
    ):
        if 0 <= at < len(message):
            yield f"cut at {at}", message[:at]
    for size in (1, 8, 65):
        yield f"{size} bytes more", message + rng.bytes(size)
        yield f"{size} bytes before", rng.bytes(size) + message
    for kind in (0, Kind.HELLO, Kind.CARDS, Kind.REFUSED, 10, 255):
        if kind != message[4]:
            yield f"of kind {kind}", message[:4] + bytes([kind]) + message[5:]
    for at in rng.integers(8 * (most or len(message)), size=40).tolist():
        yield f"bit {at} flipped", message[: at // 8] + bytes([message[at // 8] ^ 1 << at % 8]) + message[at // 8 + 1 :]
    for at in rng.integers(4, (most or len(message)) - 4, size=8).tolist():
        yield f"gigabytes at {at}", message[:at] + b"\xff\xff\xff\xff" + message[at + 4 :]
    yield "noise", rng.bytes(len(message))


class Lying(Loopback):
    """Every true answer arrives after so many that are none."""

    def __init__(self, federation, each):
        super().__init__({name: federation._answer(name) for name in federation.terms.names})
        self.ended, self.secure, self.each, self.rng = False, federation.terms.secure.sums, each, np.random.default_rng(0)
        self.waiting_here, self.earlier, self.memory, self.last = [], {name: [] for name in self.sites}, Memory(), None
        self.sent, self.heard = Counter(), Counter()

    def push(self, messages):
        self.ended = any(read_ending(message) is not None for message in messages.values())
        super().push(messages)

    def hear(self, what, details):
        self.heard[what] += what in HEARD

    def pull(self, timeout):
        if self.last is not None:
            self.memory.__exit__()
            what, before = self.last
            assert sum(self.heard.values()) == before + 1, f"{what}: {self.heard - Counter()}"
            self.last = None
        if not self.waiting_here:
            for name, answer in super().pull(timeout):
                self.waiting_here = [*self._wrong(name, answer), (name, "", answer)]
                self.earlier[name].append(answer)
        if not self.waiting_here:
            return []
        name, what, answer = self.waiting_here.pop(0)
        if what:
            self.sent[what] += 1
            self.last = what, sum(self.heard.values())
            self.memory.__enter__()
        return [(name, answer)]

    def _wrong(self, name, answer):
        header, body = unseal(answer, ANSWER)
        if header["refused"] or (self.secure and body and body[4] == Kind.REFUSED):  # nobody signs a refusal
            return []
        if self.ended:  # nothing is used of what sites say to that (test_ending.py)
            return []
        rows = wrong_masked_rows(answer, self.rng) if self.secure and body else wrong_rows(answer)
        cases = [*wrong_answers(name, answer, self.earlier[name], self.rng), *rows]
        return [(name, what, data) for what, data in some(cases, self.each, self.rng)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs."""
    return {case: Federation(tmp_path_factory.mktemp("whole"), terms(case)).run() for case in CASES}


@pytest.mark.parametrize("times", TIERS)
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if "changes" in case else []) for case in CASES])
def test_no_malformed_answer_is_used_by_the_server(case, times, tmp_path, whole):
    federation = Federation(tmp_path, terms(case))
    link = Lying(federation, times * OF_EACH[case])
    result = federation.run(link, link.hear)
    number = sum(link.sent.values())
    print(
        f"{case}: {number} malformed answers of {len(link.sent)} kinds, 0 used; at most {link.memory.python / 2**20:.2f} MB of Python's "
        f"memory and {link.memory.pages / 2**20:.2f} MB of pages"
    )
    assert number >= 450 * times
    assert max(link.memory.python, link.memory.pages) <= MEGABYTES
    assert result.status is fh.Status.SOLVED
    assert same_bits(result.trace.x0, whole[case].trace.x0)
    assert same_bits(result.x, whole[case].x)


# ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wrong_questions(data, question, rng):
    """In the open."""
    yield from malformed.damaged(data, rng)
    yield from malformed.mistyped(data)
    for kind in ("", "ASK", "ask ", "eval", "../ask"):
        yield f"kind {kind!r}", malformed.changed(data, kind=kind)
    for terms in ("", "0" * 64, question.terms.upper() + "0"):
        yield f"terms {terms[:9]!r}", malformed.changed(data, terms=terms)
    for sites in ([], ["a"], ["a", "b"], [*question.sites, "e"], [*question.sites, "a"], [*question.sites[:-1], "../d"]):
        yield f"sites {sites}", malformed.changed(data, sites=sites)
    for twin in malformed.TWINS:
        yield f"a site {twin[:9]!r}", malformed.changed(data, sites=[twin, *question.sites[1:]])
    for numbers in ([True], [-1], [2**31], ["0"], [0.0], [[0]], [None]):
        yield f"numbers {numbers}", malformed.changed(data, numbers=numbers)
    if question.kind == "ask":
        for numbers in ([], [0, 0], [99], [2**30]):
            yield f"numbers {numbers}", malformed.changed(data, numbers=numbers)
        yield "a round that is over", malformed.changed(data, round=question.round - 1)
        for since in ([], [0], [10**6] * 4, [0] * 5, [True] * 4, [-1] * 4):
            yield f"since {since}", malformed.changed(data, since=since)
        _, text, body = malformed.taken_apart(data)
        yield from ((f"a body: {what}", malformed.put_together(text, other)) for what, other in malformed.bodies(body))
    if question.kind in ("start", "ask"):
        for run in ("", "../x", "/tmp/x", "a/b", "a\0b", "~", "x" * 300, "é", "\ud800", "a b", ".", ".."):
            yield f"run {run[:9]!r}", malformed.changed(data, run=run)


def wrong_masked_questions(data, rng, earlier, answered):
    _, _, body = malformed.taken_apart(data)
    inner, message = read_masked(data)
    yield from malformed.damaged(data, rng)
    yield from malformed.mistyped(data)
    for length in (0, 1, len(inner) - 1, len(inner) + 1, len(body), len(body) + 1, 2**52):
        yield f"a question of {length} bytes", malformed.put_together(malformed.written({"question": length}), body)
    for what, other in wrong_questions(inner, read_question(inner), rng):
        if message[4] == Kind.ROUND or not what.startswith(("numbers [", "since [", "a round", "a body")):  # else they are not looked at
            yield f"inner: {what}", seal_masked(other, message)
    end = {Kind.HELLO: len(message), Kind.CARDS: len(message) - 1}.get(message[4], 37)
    for what, other in spoilt(message, rng, end):
        yield f"within: {what}", seal_masked(inner, other)
    rounds = [both for both in map(read_masked, earlier) if both[1][4] == Kind.ROUND]
    for asked, past in rounds[-5:] if message[4] == Kind.ROUND else ():
        if asked != inner and past != answered:  # that one is answered again, with the same bytes
            yield "another question's masks", seal_masked(inner, past)


class Asked:
    """A site that is asked much that is no question before every true one."""

    def __init__(self, federation, each):
        self.federation, self.each, self.rng = federation, each, np.random.default_rng(1)
        self.memory, self.sent, self.real = Memory(), Counter(), federation.answer
        self.earlier = {name: [] for name in federation.terms.names}
        federation.answer = self.answer

    def answer(self, name, message):
        masked = read_masked(message)
        if masked is not None:
            vault = self.federation.sites[name].vault
            answered = b"" if vault is None else vault.site.asked
            cases = list(wrong_masked_questions(message, self.rng, self.earlier[name], answered))
            self.earlier[name].append(message)
        else:
            if read_ending(message) is not None:  # which has tests of its own
                return self.real(name, message)
            cases = wrong_questions(message, read_question(message), self.rng)
        chosen, before = some(cases, self.each, self.rng), self._held(name)
        with self.memory:
            replies = [(what, self.real(name, data)) for what, data in chosen]
        for what, reply in replies:
            self.sent[what] += 1
            header, body = unseal(reply, ANSWER)
            refused_within = len(body) > 4 and body[4] == Kind.REFUSED
            assert header["refused"] in CODES if header["refused"] else refused_within, what
            assert header["refused"] != "failed", f"{what}: {header['message']}"
        after = self._held(name)  # its keys it makes when it is first spoken to
        assert {path: content for path, content in after.items() if path in before or not path.endswith("/sums")} == before
        return self.real(name, message)

    def _held(self, name):
        """What is on the site's disk, whatever else it knows."""
        files = sorted(path for path in (self.federation.folder / name).rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).digest() for path in files}


@pytest.mark.parametrize("times", TIERS)
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if "changes" in case else []) for case in CASES])
def test_no_malformed_question_is_answered_by_a_site(case, times, tmp_path, whole):
    federation = Federation(tmp_path, terms(case))
    asked = Asked(federation, times * OF_EACH[case])
    result = federation.run()
    number = sum(asked.sent.values())
    print(
        f"{case}: {number} malformed questions of {len(asked.sent)} kinds, 0 answered; at most {asked.memory.python / 2**20:.2f} MB of "
        f"Python's memory and {asked.memory.pages / 2**20:.2f} MB of pages"
    )
    assert number >= 450 * times
    assert max(asked.memory.python, asked.memory.pages) <= MEGABYTES
    assert result.status is fh.Status.SOLVED
    assert same_bits(result.trace.x0, whole[case].trace.x0)
    assert same_bits(result.x, whole[case].x)
