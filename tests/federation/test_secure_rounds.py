"""A whole run by secure sums: the same answer as in the open, the bits of the sums without masks, whatever happens on the way."""

import functools
import os
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from harness import NAMES, Faulty, Federation, IdleClock, identity, pooled, rows_of, terms_of
from samples import same_bits

import fedhybrid as fh
from fedhybrid.algorithms.base import residual_of
from fedhybrid.federation import exchange, journal, kept
from fedhybrid.federation.envelope import ANSWER, Question, digest, read_answer, read_masked, read_question, seal_question, unseal
from fedhybrid.federation.simulate import simulate
from fedhybrid.federation.site import Rules, Site
from fedhybrid.numerics import scope
from fedhybrid.secure import attack, opening
from fedhybrid.secure.messages import Kind
from fedhybrid.secure.server import SecureServer
from fedhybrid.secure.site import SecureSite

CASES = [("krylov", "logistic"), ("fedhybrid", "squared")]


@functools.cache
def expected(method, loss):
    return pooled(terms_of(method, loss), rows_of(loss))


@functools.cache
def undisturbed(method, loss, absent="wait"):
    """Result and events of a run in which nothing went wrong."""
    events = []
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder), terms_of(method, loss, secure=True, absent=absent))
        return federation.run(None, lambda what, details: events.append((what, details))), events


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(exchange, "RESEND", 0.05)
    monkeypatch.setattr("fedhybrid.federation.sums.RESEND", 0.05)


@pytest.mark.parametrize(("method", "loss"), CASES)
def test_by_secure_sums_the_answer_is_that_of_the_pooled_rows(method, loss):
    result, x = undisturbed(method, loss)[0], expected(method, loss).x
    assert result.status is fh.Status.SOLVED
    assert result.rounds == expected(method, loss).rounds
    assert result.notes[0].startswith("Privacy: secagg(4, 3). ")
    print(f"{method}: {np.linalg.norm(result.x - x) / np.linalg.norm(x):.1e} from the pooled fit")
    assert np.linalg.norm(result.x - x) <= 1e-10 * np.linalg.norm(x)


@pytest.mark.parametrize(("method", "loss", "absent"), [(*CASES[0], "wait"), (*CASES[1], "bridge")])
def test_masks_change_no_bit_of_any_sum(method, loss, absent, tmp_path, monkeypatch):
    sent, sums = {}, []
    masked, finish = SecureSite._masked, SecureServer.finish

    def unmasked(self, question, words):
        sent[question.round, self.name] = words.view(np.int64).copy()
        return words

    def noted(self):
        sums.append(finish(self))
        return sums[-1]

    assert masked is not unmasked
    monkeypatch.setattr(SecureSite, "_masked", unmasked)
    monkeypatch.setattr(opening, "masks_left", lambda agreement, question, survivors, shares: np.zeros(question.size, np.uint64))
    monkeypatch.setattr(SecureServer, "finish", noted)
    plain = Federation(tmp_path, terms_of(method, loss, secure=True, absent=absent)).run()
    whole = undisturbed(method, loss, absent)[0]
    assert same_bits(plain.trace.x0, whole.trace.x0)
    assert same_bits(plain.x, whole.x)
    for found in sums:
        assert np.array_equal(found.whole, np.sum([sent[found.round, name] for name in found.sites], axis=0))


def test_a_simulation_gives_the_bits_of_the_real_run(tmp_path):
    data = rows_of()
    terms = terms_of(secure=True)
    for name, (A, y) in data.items():
        np.savetxt(tmp_path / f"{name}.csv", np.column_stack([A, y]), "%.17g", ",", header="u,v,w,y", comments="")
    updates = {"a": "newton", "b": "gradient", "c": "newton", "d": "gradient"}
    rules = {name: Rules(name, tmp_path / f"{name}.csv", updates[name]) for name in data}
    assert same_bits(simulate(terms, rules).x, undisturbed("krylov", "logistic")[0].x)


class Killed(BaseException):
    """As kill −9 at this place."""


@pytest.mark.parametrize(("method", "loss", "absent"), [(*CASES[0], "wait"), (*CASES[1], "bridge")])
def test_a_server_killed_at_any_write_goes_on_with_the_same_bits(method, loss, absent, tmp_path, monkeypatch, impatient):
    whole = undisturbed(method, loss, absent)[0]
    federation = Federation(tmp_path, terms_of(method, loss, secure=True, absent=absent))
    chance, calls = random.Random(0), {"left": 1}

    def cut(real):
        def call(*args):
            calls["left"] -= serving["now"]
            if serving["now"] and calls["left"] <= 0:
                if real is os.write and chance.random() < 0.5:  # a torn write
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Killed
            return real(*args)

        return call

    serving = {"now": True}

    def answer(name, message, real=federation.answer):
        serving["now"] = False  # the sites live on
        try:
            return real(name, message)
        finally:
            serving["now"] = True

    federation.answer = answer
    fake = type("os", (), {name: staticmethod(value) if callable(value) else value for name, value in vars(os).items() if name[0] != "_"})
    for name in ("write", "fsync", "replace"):
        setattr(fake, name, staticmethod(cut(getattr(os, name))))
    monkeypatch.setattr(journal, "os", fake)
    monkeypatch.setattr(kept, "os", fake)
    kills = 0
    while True:
        calls["left"] = chance.randrange(3, 25 if absent == "wait" else 120)
        try:
            result = federation.run()
            break
        except Killed:
            kills += 1
    print(f"{method}: killed {kills} times")
    assert kills >= 3
    assert same_bits(result.trace.x0, whole.trace.x0)
    assert same_bits(result.x, whole.x)


@pytest.mark.parametrize("without_state", [False, True])
@pytest.mark.parametrize(("method", "loss", "absent"), [(*CASES[0], "wait"), (*CASES[1], "bridge")])
def test_a_site_that_dies_and_comes_back_changes_no_bit(method, loss, absent, without_state, tmp_path, impatient):
    federation = Federation(tmp_path, terms_of(method, loss, secure=True, absent=absent))

    def meddle(name, answer, count):
        if name == "b" and count in (6, 11):
            federation.restart("b", without_state=without_state)
            return []  # it had computed, but its answer never left
        return [answer]

    events = []
    result = federation.run(Faulty(federation, meddle), lambda what, details: events.append(what))
    whole = undisturbed(method, loss, absent)[0]
    if absent == "wait":
        assert same_bits(result.trace.x0, whole.trace.x0)
        assert same_bits(result.x, whole.x)
    assert np.linalg.norm(result.x - whole.x) <= 1e-10 * np.linalg.norm(whole.x)
    assert ("new keys" in events) == without_state
    assert any("lost their state" in note for note in result.notes) == without_state


@pytest.mark.parametrize("rate", [0.3])
def test_with_bridging_random_absence_leaves_the_answer_exact(rate, tmp_path, monkeypatch):
    IdleClock(monkeypatch)
    monkeypatch.setattr("fedhybrid.federation.sums.RESEND", 0.05)  # after the deadline: for rounds that need everyone
    federation = Federation(tmp_path, terms_of("fedhybrid", "squared", secure=True, absent="bridge", deadline=0.04))
    chance, x = random.Random(2), expected("fedhybrid", "squared").x
    result = federation.run(Faulty(federation, away=lambda name, count: count > 8 and chance.random() < rate))
    print(result, result.notes)
    assert result.status is fh.Status.SOLVED
    assert np.linalg.norm(result.x - x) <= 1e-9 * np.linalg.norm(x)
    assert any("stood in" in note for note in result.notes)


def test_repeated_late_and_reordered_answers_change_no_bit(tmp_path):
    federation, old, order = Federation(tmp_path, terms_of(secure=True)), [], random.Random(1)

    def meddle(name, answer, count):
        old.append(answer)
        return [answer, answer, old[max(0, len(old) - 6)]]  # twice, and another's from before

    class Reordered(Faulty):
        def push(self, messages):
            super().push(dict(order.sample(list(messages.items()), len(messages))))

    result = federation.run(Reordered(federation, meddle))
    assert result.status is fh.Status.SOLVED
    assert same_bits(result.trace.x0, undisturbed("krylov", "logistic")[0].trace.x0)


def test_a_scale_at_which_values_do_not_fit_is_made_coarser(tmp_path):
    terms = terms_of(secure=True)
    events = []
    federation = Federation(tmp_path, replace(terms, secure=replace(terms.secure, bits=60)))
    result = federation.run(None, lambda what, details: events.append((what, details.get("why"), details.get("round"))))
    x = expected("krylov", "logistic").x
    assert ("asked again", "overflow", 0) in events  # the census: there are more rows than fit
    assert np.linalg.norm(result.x - x) <= 1e-10 * np.linalg.norm(x)


def test_a_site_that_is_gone_for_good_is_left_out_if_the_terms_say_so(tmp_path, monkeypatch):
    IdleClock(monkeypatch)
    federation = Federation(tmp_path, terms_of("krylov", "squared", secure=True, absent="drop", patience=5.0, deadline=5.0))
    result = federation.run(Faulty(federation, away=lambda name, count: name == "c" and count > 8))
    rest = pooled(federation.terms, federation.data, without=("c",))
    assert result.status is fh.Status.SOLVED
    assert result.names == ("a", "b", "d")
    assert result.notes[0].startswith("Privacy: secagg(3, 3). ")
    assert np.linalg.norm(result.x - rest.x) <= 1e-9 * np.linalg.norm(rest.x)


def test_otherwise_nobody_is_left_out_and_the_run_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhybrid.federation.sums.RESEND", 0.02)
    federation = Federation(tmp_path, terms_of("krylov", "squared", secure=True))
    result = federation.run(Faulty(federation, lambda name, answer, count: [b"rubbish"] if name == "b" and count > 8 else [answer]))
    assert result.status is fh.Status.QUORUM_LOST
    assert "absent = 'drop'" in result.message


# ── what the server can see ───────────────────────────────────────────────────────────────────────────────────────────────────

MU, A, B = 0.5, 0.3, 0.2


@pytest.mark.parametrize("secure", [False, True])
def test_our_attack_finds_every_gram_matrix_in_plain_messages_and_none_in_masked_ones(secure, tmp_path):
    terms = terms_of("fedhybrid", "squared", secure=secure)
    terms = replace(terms, method=(("name", "fedhybrid"), ("a", A), ("b", B), ("mu", MU)), rounds=replace(terms.rounds, most=24))
    federation = Federation(tmp_path, terms)
    for name in NAMES:
        rules = Rules(name, Path("none"), "gradient", state=tmp_path / name)
        federation.sites[name] = Site(terms, rules, federation.data[name], identity(name) if secure else None)
    x0, seen, raw = {}, {name: {} for name in NAMES}, []

    def recorded(name, message, real=federation.answer):
        answer = real(name, message)
        inner = read_masked(message)
        question = read_question(message if inner is None else inner[0])
        _, body = unseal(answer, ANSWER)
        raw.append((name, body))
        if question.kind == "ask" and question.numbers == (0,):
            x0[question.round] = question.body
            if not secure:
                seen[name][question.round] = np.frombuffer(body, "<f8")[:4]
            elif body[4] == Kind.VECTOR:
                (_, scale), *_ = federation.sites[name].vault.site._question().leaves
                seen[name][question.round] = np.ldexp(np.frombuffer(body[99 : 99 + 32], "<i8").astype(float), -scale)
        return answer

    federation.answer = recorded
    federation.run()
    rounds = sorted(x0)
    with scope():
        H = {name: np.asarray(federation.sites[name].me.f.hess(np.zeros(4))) for name in NAMES}
    points = np.array([x0[k] for k in rounds])
    found = {
        name: attack.relative_error(
            attack.gram(*attack.replay(points, np.array([seen[name][k] for k in rounds]), mu=MU, a=A, b=B))[0], H[name]
        )
        for name in NAMES
    }
    print("masked" if secure else "plain", found)
    assert all(error >= 0.5 for error in found.values()) if secure else all(error <= 1e-6 for error in found.values())
    if secure:
        own = {name: federation.sites[name].memory.answer.tobytes() for name in NAMES}
        assert not any(own[name][k : k + 8] in body for name, body in raw for k in range(0, len(own[name]), 8) if any(own[name][k : k + 8]))


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_method_whose_codes_have_no_sum_is_refused_at_the_start(tmp_path):
    terms = replace(terms_of(secure=True), method=(("name", "fednl"),))
    with pytest.raises(fh.InvalidConfig, match="sends codes that only the single message can be read from"):
        Federation(tmp_path, terms).run()
    with pytest.raises(fh.InvalidConfig, match="largest_gradient looks at single replies"):
        Federation(tmp_path, terms_of(secure=True, largest_gradient=1.0)).run()


def refusal(site, question, message=None):
    data = seal_question(question) if message is None else message
    return read_answer(site.answer(data), {digest(data): 0}).message


def test_a_site_answers_no_question_in_the_open_and_no_sum_over_fewer(tmp_path):
    federation = Federation(tmp_path, terms_of(secure=True))
    site, agreed = federation.sites["a"], federation.terms.digest()
    for kind in ("census", "ask", "keys"):
        since = (0, 0, 0, 0) if kind == "ask" else ()
        question = Question(kind, agreed, "run", 0, 0, (0,), NAMES, np.zeros(0), since)
        assert "secure sums only" in refusal(site, question)
    assert "without some of the sites" in refusal(site, Question("census", agreed, "run", 0, 0, (0,), NAMES[:3], np.zeros(0)))


def test_a_key_that_is_not_the_agreed_one_is_refused(tmp_path):
    terms = terms_of(secure=True)
    with pytest.raises(fh.InvalidConfig, match="not that of the public key"):
        Site(terms, Rules("a", tmp_path, state=tmp_path), rows_of()["a"], identity("b"))
    with pytest.raises(fh.InvalidConfig, match="need the site's private key"):
        Site(terms, Rules("a", tmp_path, state=tmp_path), rows_of()["a"])


def test_a_sum_of_squares_that_rounding_has_left_below_zero_is_a_residual_all_the_same():
    with scope():
        assert float(residual_of(4, 2.0, np.float64(-1e-12), np.float64(-1e-12))) == 0.0
        assert float(residual_of(4, 2.0, np.float64(9.0), np.float64(-1e-12))) == 24.0
        assert np.isnan(float(residual_of(4, 2.0, np.float64(np.nan), np.float64(1.0))))
