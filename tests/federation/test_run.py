"""A whole run by messages: the same bits as in one process, whoever is killed, late, gone or lying."""

import functools
import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from harness import METHODS, NAMES, Faulty, Federation, IdleClock, changed, pooled, rows_of, terms_of
from samples import same_bits

import fedhybrid as fh
from fedhybrid.federation.envelope import ANSWER as ANSWER_KEYS
from fedhybrid.federation.envelope import Answer, read_answer, read_question, seal_answer, unseal


@functools.cache
def expected(method, loss):
    terms = terms_of(method, loss)
    return pooled(terms, rows_of(loss))


CASES = [("krylov", "logistic"), ("fedhybrid", "logistic"), ("krylov", "squared"), ("fedhybrid", "squared")]


@pytest.mark.parametrize(("method", "loss"), CASES)
def test_a_federation_gives_the_bits_of_one_process(method, loss, tmp_path):
    result, whole = Federation(tmp_path, terms_of(method, loss)).run(), expected(method, loss)
    assert result.status is fh.Status.SOLVED
    assert result.rounds == whole.rounds
    assert np.linalg.norm(result.x - whole.x) <= 1e-12 * np.linalg.norm(whole.x)


class Killed(BaseException):
    """As kill −9 at this place: nothing of this process is heard of again."""


@pytest.mark.parametrize(("method", "loss"), CASES[:2])
def test_a_server_killed_at_any_write_goes_on_with_the_same_bits(method, loss, tmp_path, monkeypatch):
    whole = Federation(tmp_path / "whole", terms_of(method, loss)).run()
    federation = Federation(tmp_path / "killed", terms_of(method, loss))
    chance, calls = random.Random(0), {"left": 1}

    def cut(real):
        def call(*args):
            calls["left"] -= 1
            if calls["left"] <= 0:
                if real is os.write and chance.random() < 0.5:  # a torn write
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Killed
            return real(*args)

        return call

    kills = 0
    import fedhybrid.federation.journal as journal

    fake = type("os", (), {name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    fake.write, fake.fsync = staticmethod(cut(os.write)), staticmethod(cut(os.fsync))
    monkeypatch.setattr(journal, "os", fake)
    while True:
        calls["left"] = chance.randrange(2, 14)
        try:
            result = federation.run()
            break
        except Killed:
            kills += 1
    assert kills >= 2
    assert same_bits(result.x, whole.x)
    assert same_bits(result.trace.x0, whole.trace.x0)
    assert result.rounds == whole.rounds


@pytest.mark.parametrize("without_state", [False, True])
@pytest.mark.parametrize(("method", "loss"), [("krylov", "logistic"), ("fedhybrid", "squared")])
def test_a_site_that_dies_and_comes_back_changes_no_bit(method, loss, without_state, tmp_path):
    whole = Federation(tmp_path / "whole", terms_of(method, loss)).run()
    federation = Federation(tmp_path / "killed", terms_of(method, loss))

    def meddle(name, answer, count):
        if name == "b" and count in (4, 7):
            federation.restart("b", without_state=without_state)
            return []  # it had computed, but its answer never left
        return [answer]

    import fedhybrid.federation.exchange as exchange

    before, exchange.RESEND = exchange.RESEND, 0.05
    try:
        result = federation.run(Faulty(federation, meddle))
    finally:
        exchange.RESEND = before
    assert same_bits(result.trace.x0, whole.trace.x0)
    assert same_bits(result.x, whole.x)
    assert any("lost their state" in note for note in result.notes) == without_state


def test_repeated_and_reordered_answers_change_no_bit(tmp_path):
    whole = Federation(tmp_path / "whole", terms_of()).run()
    federation, kept = Federation(tmp_path / "noisy", terms_of()), []

    def meddle(name, answer, count):
        kept.append(answer)
        return [answer, answer, kept[max(0, len(kept) - 6)]]  # twice, and another's from before

    order = random.Random(1)

    class Reordered(Faulty):
        def push(self, messages):
            super().push(dict(order.sample(list(messages.items()), len(messages))))

    result = federation.run(Reordered(federation, meddle))
    assert same_bits(result.trace.x0, whole.trace.x0)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_with_bridging_random_absence_leaves_the_answer_exact(rate, tmp_path, monkeypatch):
    monkeypatch.setattr("fedhybrid.federation.exchange.RESEND", 0.05)  # who was away is asked again where everyone is needed
    IdleClock(monkeypatch)
    chance, x = random.Random(2), expected("fedhybrid", "squared").x
    federation = Federation(tmp_path, terms_of("fedhybrid", "squared", absent="bridge", deadline=0.05))
    result = federation.run(Faulty(federation, away=lambda name, count: count > 4 and chance.random() < rate))
    undisturbed, off = expected("fedhybrid", "squared").rounds, np.linalg.norm(result.x - x)
    print(f"{rate:.0%} away: {result.rounds} rounds, {undisturbed} without, {off:.1e} off")
    assert result.status is fh.Status.SOLVED
    assert np.linalg.norm(result.x - x) <= 1e-9 * np.linalg.norm(x)
    assert any("stood in" in note for note in result.notes)


@pytest.mark.parametrize("method", METHODS)
def test_a_site_that_is_gone_for_good_is_left_out_if_the_policy_says_so(method, tmp_path, monkeypatch):
    IdleClock(monkeypatch)
    terms = terms_of(method, "squared", absent="drop", patience=5.0, deadline=5.0)
    federation = Federation(tmp_path / "gone", terms)
    result = federation.run(Faulty(federation, away=lambda name, count: name == "c" and count > 5))
    rest = pooled(terms, federation.data, without=("c",))
    assert result.status is fh.Status.SOLVED
    assert result.names == ("a", "b", "d")
    assert np.linalg.norm(result.x - rest.x) <= 1e-9 * np.linalg.norm(rest.x)
    assert any(note.startswith("c took no part to the end") for note in result.notes)
    again = federation.run()  # from the record
    assert same_bits(again.x, result.x)


@pytest.mark.parametrize("absent", ["wait", "abort"])
def test_otherwise_the_run_ends_and_says_who_did_not_answer(absent, tmp_path, monkeypatch):
    IdleClock(monkeypatch)
    terms = terms_of("krylov", "squared", absent=absent, patience=5.0, deadline=5.0)
    federation = Federation(tmp_path / "gone", terms)
    result = federation.run(Faulty(federation, away=lambda name, count: name == "c" and count > 5))
    assert result.status is fh.Status.QUORUM_LOST
    assert "c did not answer" in result.message
    assert np.all(np.isfinite(result.x))
    assert federation.run().status is fh.Status.SOLVED  # c is back, and the run goes on


LIES = {
    "NaN": lambda row: row * np.nan,
    "infinite": lambda row: row + np.inf,
    "huge": lambda row: np.full_like(row, 1e300),
    "1e6": lambda row: np.full_like(row, 1e6),
    "too short": lambda row: row[:-1],
    "too long": lambda row: np.append(row, 0.0),
    "empty": lambda row: row[:0],
}


def altered(answer, change, **fields):
    header, body = unseal(answer, ANSWER_KEYS)
    return seal_answer(Answer(**(header | fields), body=change(np.frombuffer(body, "<f8"))))


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("method", "since"), [("krylov", 5), ("fedhybrid", 4)])
def test_a_site_that_lies_is_put_out_and_the_answer_is_that_of_the_others(method, since, lie, tmp_path):
    terms = terms_of(method, "squared", largest_gradient=1e3)
    federation = Federation(tmp_path, terms)

    def meddle(name, answer, count):
        return [altered(answer, LIES[lie])] if name == "b" and count >= since else [answer]

    import fedhybrid.federation.exchange as exchange

    before, exchange.RESEND = exchange.RESEND, 0.02
    try:
        result = federation.run(Faulty(federation, meddle))
    finally:
        exchange.RESEND = before
    rest = pooled(terms, federation.data, without=("b",))
    assert result.status is fh.Status.SOLVED
    assert np.linalg.norm(result.x - rest.x) <= 1e-10 * max(1.0, np.linalg.norm(rest.x))
    assert any("b took no part to the end: b was put out after 3 replies" in note for note in result.notes)
    assert any("moves the others' answer by at most" in note for note in result.notes)


@pytest.mark.parametrize("direction", ["where it hurts most", "along x", "at random"])
def test_a_lie_within_the_bound_moves_the_answer_by_no_more_than_is_said_and_is_no_solution(direction, tmp_path, monkeypatch):
    """Site b answers as if its gradient were v, ‖v‖ = G, wherever it is asked: the others' answer then moves by H⁻¹v, H theirs."""
    IdleClock(monkeypatch)
    G, mu = 3.0, 0.3
    given = terms_of("fedhybrid", "squared", largest_gradient=G, most=150)
    terms = replace(given, method=(("name", "fedhybrid"), ("mu", mu), ("a", (1.0, 1.0)), ("b", (0.2, 0.9))))
    data = {name: (np.column_stack([A, np.ones(len(A))]), y) for name, (A, y) in rows_of("squared").items()}
    N = sum(len(y) for _, y in data.values())
    penalty = np.diag([0.1, 0.1, 0.1, 0.0]) * 3 / 4  # the sites share it
    H = sum(A.T @ A for name, (A, _) in data.items() if name != "b") / N + penalty
    target = sum(A.T @ y for name, (A, y) in data.items() if name != "b") / N
    x = np.linalg.solve(H, target)
    values, vectors = np.linalg.eigh(H)
    v = {"where it hurts most": vectors[:, 0], "along x": x, "at random": np.random.default_rng(0).normal(size=4)}[direction]
    v *= 0.9999 * G / np.linalg.norm(v)
    federation = Federation(tmp_path, terms)

    class Lying(Faulty):
        def push(self, messages):
            self.question = read_question(next(iter(messages.values())))
            super().push(messages)

        def pull(self, timeout):
            found = super().pull(timeout)
            lies = self.question.kind == "ask" and self.question.numbers == (0,) and found and found[0][0] == "b"
            if not lies:
                return found
            x0 = self.question.body[:4]
            return [("b", altered(found[0][1], lambda row: np.append(x0 - v / mu, row[4:])))]

    result = federation.run(Lying(federation))
    moved = np.linalg.norm(result.x - x)
    note = next(note for note in result.notes if "moves the others' answer" in note)
    print(f"{direction}: moved by {moved:.4g}, {moved * values[0] / G:.4f} of the bound. {result.status}. {note}")
    assert np.linalg.norm(result.x - np.linalg.solve(H, target - v)) <= 1e-6
    assert moved <= G / values[0]
    assert f"at most {G / values[0]:.3g}" in note
    assert result.status is not fh.Status.SOLVED  # by the certificate, which b answered as it is


def test_nothing_that_a_site_sends_in_anothers_name_or_of_another_run_counts(tmp_path):
    whole = Federation(tmp_path / "whole", terms_of()).run()
    federation = Federation(tmp_path / "noisy", terms_of("krylov", strikes=1000))

    def meddle(name, answer, count):
        fakes = [{"site": "c"}, {"run": "ffff"}, {"epoch": 1}, {"round": 99}, {"question": "0" * 64}]
        wrong = [altered(answer, lambda row: row, **fake) for fake in fakes if fake.get("site") != name]
        return [*wrong, answer[:-1], answer[:-1] + bytes([answer[-1] ^ 1]), answer] if name == "b" else [answer]

    result = federation.run(Faulty(federation, meddle))
    assert same_bits(result.trace.x0, whole.trace.x0)


def test_what_happened_stands_in_a_file_of_events(tmp_path):
    federation = Federation(tmp_path, terms_of())
    heard = []
    result = federation.run(None, lambda what, details: heard.append(what))
    lines = [json.loads(line) for line in (tmp_path / "server" / "events.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == heard
    assert sum(line["what"] == "round" for line in lines) == result.rounds


def test_a_site_with_other_terms_ends_the_run_with_a_sentence(tmp_path):
    federation = Federation(tmp_path, terms_of())
    rows = federation.data["b"]
    from fedhybrid.federation.site import Rules, Site

    other = replace(federation.terms, problem=replace(federation.terms.problem, reg=0.2))
    federation.sites["b"] = Site(other, Rules("b", tmp_path / "none", "gradient", state=tmp_path / "b"), rows)
    result = federation.run()
    assert result.status is fh.Status.QUORUM_LOST
    assert "b has agreed to other terms" in result.message


__all__ = ["NAMES", "changed", "read_answer"]
