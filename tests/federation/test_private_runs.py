"""Sites that add noise: what leaves them, what it costs, what is left for an attack, and that nothing of the spending is ever forgotten."""

import functools
import json
import os
import random
import shutil
import types
from dataclasses import replace

import numpy as np
import pytest
from harness import NAMES, Faulty, Federation, identity, rows_of, terms_of
from samples import same_bits
from typer.testing import CliRunner

from fedhybrid import checkpoint
from fedhybrid.cli import app
from fedhybrid.federation import exchange, kept
from fedhybrid.federation.envelope import ANSWER, Question, digest, read_question, seal_question, unseal
from fedhybrid.federation.folder import SITE, Plan, terms_text
from fedhybrid.federation.link import Loopback
from fedhybrid.federation.rules import PRIVACY, Privacy, read_rules
from fedhybrid.federation.site import Site
from fedhybrid.federation.terms import _check
from fedhybrid.secure import attack, privacy
from fedhybrid.status import CheckpointError, InvalidConfig, Status

MU, A, B, STEP = 0.5, 0.15, 0.1, 0.2
METHODS = {
    "fedhybrid": (("name", "fedhybrid"), ("a", A), ("b", B), ("mu", MU)),
    "gd": (("name", "gd"), ("step_size", STEP)),
    "admm": (("name", "admm"), ("rho", MU)),
}
ROUNDS, DELTA = 4, 1e-5
DP8 = Privacy(clip=4.0, epsilon=8.0, delta=DELTA)


def private_terms(method="fedhybrid", loss="squared", secure=False, most=ROUNDS, **rounds):
    terms = terms_of("krylov", loss, secure, private=True, most=most, **rounds)
    terms = replace(terms, method=METHODS[method], problem=replace(terms.problem, weighting="client"))
    _check(terms)
    return terms


class Private(Federation):
    """`own`: every site's section [privacy], or None."""

    def __init__(self, folder, terms, own):
        self.own = own if isinstance(own, dict) else dict.fromkeys(NAMES, own)
        super().__init__(folder, terms)

    def restart(self, name, *, without_state=False):
        super().restart(name, without_state=without_state)
        rules = replace(self.sites[name].rules, update="gradient", privacy=self.own[name])
        self.sites[name] = Site(self.terms, rules, self.data[name], identity(name) if self.terms.secure.sums else None)

    def spent(self, name):
        return json.loads((self.folder / name / "privacy").read_bytes()[:-32])


@pytest.fixture
def seeded(monkeypatch):
    """The noise as a test can repeat it."""

    def seed(number=0):
        monkeypatch.setattr(privacy, "release", functools.partial(RELEASE, below=random.Random(number).randrange))

    RELEASE = privacy.release
    seed()
    return seed


@pytest.fixture
def silent(monkeypatch):
    """Clipping alone."""
    monkeypatch.setattr(privacy, "discrete_gaussian", lambda *_: 0)


class Recorded(Loopback):
    """The numbers that a server without secure sums has seen: `answers[name]`, one row a round; and every x₀ that it asked at."""

    def __init__(self, federation):
        super().__init__({name: federation._answer(name) for name in federation.terms.names})
        self.answers, self.asked = {name: [] for name in NAMES}, []

    def push(self, messages):
        question = read_question(next(iter(messages.values()))) if messages else None
        if question is not None and question.kind == "ask":
            self.asked.append(question.body)
        super().push(messages)

    def pull(self, timeout):
        found = super().pull(timeout)
        for name, raw in found:
            header, body = unseal(raw, ANSWER)
            if header["round"] and not header["refused"] and len(body) >= 32:
                self.answers[name].append(np.frombuffer(body, "<f8"))
        return found


def quadratics(data):
    """(H, c) of every site: its mean loss and its share of the penalty, which spares the intercept."""
    for name in NAMES:
        rows, y = data[name]
        full = np.column_stack([rows, np.ones(len(rows))])
        yield full.T @ full / len(y) + np.diag([0.1, 0.1, 0.1, 0.0]) / len(NAMES), full.T @ y / len(y)


def clipped(v, radius):
    return v * min(1.0, radius / max(np.linalg.norm(v), 1e-300))


# ── what leaves a site ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("clip", [1.0, 100.0])
@pytest.mark.parametrize("method", ["fedhybrid", "gd"])
def test_what_is_clipped_is_the_implied_gradient_and_nothing_else_is_sent(method, clip, tmp_path, silent):
    """Against the papers' iterations in a few lines, with clipping where it belongs."""
    own = Privacy(clip, 8.0, DELTA)
    federation = Private(tmp_path, private_terms(method), own)
    link = Recorded(federation)
    result = federation.run(link)
    x0, expected = np.zeros(4), []
    x, lam = np.zeros((4, 4)), np.zeros((4, 4))
    for k in range(ROUNDS):
        answers = []
        for i, (H, c) in enumerate(quadratics(federation.data)):
            if method == "gd":
                answers.append(clipped(H @ x0 - c, clip))
                continue
            step = x[i] - A * (H @ x[i] - c - lam[i] + MU * (x[i] - x0))
            x[i], lam[i] = step, lam[i] + B * (x0 - x[i])
            answers.append(x0 + clipped(x[i] - lam[i] / MU - x0, clip / MU))
        seen = np.array([link.answers[name][k] for name in NAMES])
        assert np.allclose(seen[:, :4], answers, rtol=0, atol=1e-7 * clip)  # to the noise's grid
        assert np.all(seen[:, 4:] == 0.0)  # residuals
        gradients = seen[:, :4] if method == "gd" else MU * (x0 - seen[:, :4])
        assert np.max(np.linalg.norm(gradients, axis=1)) <= clip * (1 + 1e-7)
        x0 = x0 - STEP * np.sum(seen[:, :4], axis=0) if method == "gd" else np.mean(seen[:, :4], axis=0)
        expected.append(x0)
    assert np.allclose(result.trace.x0, expected, rtol=0, atol=1e-12)
    assert result.rounds == ROUNDS


@pytest.mark.parametrize("method", METHODS)
def test_the_noise_that_leaves_is_what_the_budget_was_counted_with(method, tmp_path, seeded):
    """Many draws at one site; σ by the formula, from the budget."""
    terms = private_terms(method, most=2000)
    site = Private(tmp_path, terms, DP8).sites["a"].private
    radius = DP8.clip / (1.0 if method == "gd" else MU)
    sigma = 2 * radius * np.sqrt(2000 / (2 * privacy.rho_for(8.0, DELTA)))
    assert (site.how.radius, site.how.around_x0) == (pytest.approx(radius), method != "gd")
    assert site.how.sigma == pytest.approx(sigma, rel=1e-5)
    assert site.how.sensitivity == pytest.approx(2 * radius, rel=1e-3)
    asked = types.SimpleNamespace(fn=next(iter(Private(tmp_path, terms, DP8).sites["b"]._protocol(4).questions)).fn)
    far = np.append(np.full(4, 1e6), [1.0, 2.0] if method == "fedhybrid" else [])
    question = Question("ask", "", "r", 0, 1, (0,), NAMES, np.full(4, 7.0))
    draws = np.array([site.released(asked, question, str(k), far)[:4] for k in range(120)])
    centre = (0.0 if method == "gd" else 7.0) + radius / 2  # clipped: radius/√4 in each of four entries
    assert np.std(draws) == pytest.approx(sigma, rel=0.08)
    assert abs(np.mean(draws) - centre) < 5 * sigma / np.sqrt(draws.size)


def ask_one(site, kind="ask", number=0, round=1, body=None, run="r"):
    body = np.zeros(4) if body is None else body
    since = (0,) * len(NAMES) if kind in ("ask", "again") else ()
    return site.answer(seal_question(Question(kind, site.terms.digest(), run, 0, round, (number,), NAMES, body, since)))


def refusal(answer):
    header, _ = unseal(answer, ANSWER)
    return header["refused"], header["message"]


def test_a_private_site_answers_nothing_that_noise_does_not_cover(tmp_path):
    site = Private(tmp_path, private_terms(), DP8).sites["a"]
    start = np.concatenate([[1e-9], np.zeros(4), [MU, A, B]])  # a weight below the rows' own says nothing about them
    assert refusal(ask_one(site, "start", round=0, body=start[: 1 + site._protocol(4).start[1].floats])) == ("", "")
    for number in range(1, 8):  # certificates, Hessians
        code, why = refusal(ask_one(site, number=number))
        assert (code, "this method does not have" in why) == ("question", True)
    _, body = unseal(ask_one(site, "census", round=0), ANSWER)
    assert np.allclose(np.frombuffer(body, "<f8"), [8.0, DELTA, 0.0])  # its rules, and no count of rows
    assert refusal(ask_one(site, body=np.full(4, np.nan)))[0] == "question"
    assert refusal(ask_one(site, body=np.full(4, 1e300), round=2))[0] == "range"
    assert not (tmp_path / "a" / "privacy").exists()  # nothing of that was an answer, or cost anything
    assert refusal(ask_one(site, round=3)) == ("", "")
    assert site.private.ledger.answers == 1


def test_an_answer_that_is_not_finite_is_noise_alone(tmp_path, caplog):
    site = Private(tmp_path, private_terms(), DP8).sites["a"].private
    asked = types.SimpleNamespace(fn=next(iter(Private(tmp_path, private_terms(), DP8).sites["b"]._protocol(4).questions)).fn)
    question = Question("ask", "", "r", 0, 1, (0,), NAMES, np.full(4, 7.0))
    sent = site.released(asked, question, "q", np.array([np.inf, np.nan, 0.0, 1.0, np.nan, np.inf]))
    assert np.all(np.isfinite(sent))
    assert np.all(np.abs(sent[:4] - 7.0) < 8 * site.how.sigma)
    assert "not finite" in caplog.text


# ── a run and its label ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_of_private_sites_ends_after_its_rounds_with_its_label_and_without_a_proof(secure, tmp_path, seeded):
    if secure:
        pytest.importorskip("cryptography")
    events = []
    federation = Private(tmp_path, private_terms(secure=secure), DP8)
    result = federation.run(None, lambda what, details: events.append((what, details)))
    assert result.status is Status.MAX_ROUNDS
    assert result.rounds == ROUNDS
    assert result.error_bound == np.inf
    assert result.privacy == "dp(8, 1e-05)"
    assert all(f"{name} dp(8, 1e-05)" in result.notes[1] for name in NAMES)
    assert ("secagg(4, 3)" in result.notes[1]) == secure
    assert [details["label"] for what, details in events if what == "privacy"] == ["dp(8, 1e-05)"]
    for name in NAMES:
        assert federation.spent(name)["answers"] == ROUNDS  # all that was planned, and not one more
        rho = ROUNDS * federation.sites[name].private.how.sensitivity ** 2 / (2 * federation.sites[name].private.how.sigma ** 2)
        assert federation.spent(name)["rho"] == pytest.approx(rho)
        assert json.loads((tmp_path / name / "result.json").read_text())["privacy"] == "dp(8, 1e-05)"
    again = federation.run()  # from the record: nothing is asked that costs
    assert same_bits(again.x, result.x)
    assert (again.privacy, again.notes) == (result.privacy, result.notes)


def test_secure_sums_change_nothing_but_the_grid(tmp_path, seeded):
    pytest.importorskip("cryptography")
    found = []
    for secure in (False, True):
        seeded(3)
        found.append(Private(tmp_path / str(secure), private_terms(secure=secure), DP8).run().x)
    assert np.linalg.norm(found[0]) > 1.0  # noise
    assert np.linalg.norm(found[0] - found[1]) <= 1e-9 * np.linalg.norm(found[0])


def test_where_some_sites_are_private_the_label_is_the_others_and_says_so(tmp_path):
    own = {"a": DP8, "b": None, "c": replace(DP8, epsilon=2.0), "d": None}
    result = Private(tmp_path, private_terms(), own).run()
    assert result.privacy == "plain"
    assert "a dp(8, 1e-05); c dp(2, 1e-05). None at b, d: the label is theirs." in result.notes[1]
    everyone = Private(tmp_path / "all", private_terms(), own | {"b": replace(DP8, delta=1e-4), "d": DP8}).run()
    assert everyone.privacy == "dp(8, 0.0001)"  # the worst of both


def test_with_less_noise_the_answer_is_nearer(tmp_path, seeded):
    """Three levels, by the budget; the same draws in each, so that the curve is the noise's alone."""
    terms = private_terms("gd", most=8)
    own, errors = replace(DP8, clip=8.0), []
    H, c = (np.sum(parts, axis=0) for parts in zip(*quadratics(rows_of("squared")), strict=True))
    x = np.linalg.solve(H, c)
    for level in (10.0, 300.0, 10_000.0):
        seeded(1)
        result = Private(tmp_path / f"{level}", terms, replace(own, epsilon=level)).run()
        errors.append(np.linalg.norm(result.x - x) / np.linalg.norm(x))
        print(f"{result.privacy}: error {errors[-1]:.2g}")
        assert float(result.privacy[3:].partition(",")[0]) == pytest.approx(level, rel=1e-5)
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


# ── the budget ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_whose_budget_is_used_up_ends_the_run_and_every_later_one(secure, tmp_path):
    if secure:
        pytest.importorskip("cryptography")
    own = dict.fromkeys(NAMES, replace(DP8, rounds=50)) | {"b": replace(DP8, epsilon=3.0, rounds=3)}
    events = []
    federation = Private(tmp_path, private_terms(secure=secure), own)
    result = federation.run(None, lambda what, details: events.append((what, details)))
    assert result.status is Status.MAX_ROUNDS
    assert result.rounds == 3
    assert "b has used up its privacy budget, dp(3, 1e-05), and sends nothing more." in result.message
    assert [details["code"] for what, details in events if what == "refused"] == ["budget"]
    assert federation.spent("b")["answers"] == 3
    assert "b dp(3, 1e-05)" in result.notes[1]
    federation.restart("b")  # from its disk
    (tmp_path / "server").rename(tmp_path / "server-1")
    later = federation.run()
    assert later.status is Status.QUORUM_LOST
    assert later.rounds == 0
    assert "b has used up its privacy budget" in later.message


def test_what_was_spent_in_earlier_runs_counts(tmp_path):
    federation = Private(tmp_path, private_terms(), replace(DP8, rounds=2 * ROUNDS))
    labels = []
    for k in range(2):
        labels.append(federation.run().privacy)
        (tmp_path / "server").rename(tmp_path / f"server-{k}")
        for name in NAMES:
            federation.restart(name)
    spent = [privacy.epsilon((k + 1) / 2 * privacy.rho_for(8.0, DELTA), DELTA) for k in range(2)]
    assert [float(label[3:].partition(",")[0]) for label in labels] == pytest.approx(spent, abs=1e-3)


class Killed(BaseException):
    """As kill −9 at this place."""


def test_a_site_killed_at_any_write_neither_draws_noise_twice_nor_forgets_what_it_spent(tmp_path, monkeypatch):
    federation = Private(tmp_path, private_terms(most=6), replace(DP8, rounds=200))
    chance, calls, left = random.Random(0), {"now": False, "left": 5}, {}

    def cut(real):
        def call(*args):
            calls["left"] -= calls["now"]
            if calls["now"] and calls["left"] <= 0:
                if real is os.write and chance.random() < 0.5:  # a torn write
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Killed
            return real(*args)

        return call

    fake = type("os", (), {name: staticmethod(value) if callable(value) else value for name, value in vars(os).items() if name[0] != "_"})
    for name in ("write", "fsync", "replace"):
        setattr(fake, name, staticmethod(cut(getattr(os, name))))
    monkeypatch.setattr(kept, "os", fake)
    monkeypatch.setattr(checkpoint, "os", fake)
    kills, real = [], federation.answer

    def answer(name, message):
        while True:
            calls["now"] = True
            try:
                found = real(name, message)
                header, body = unseal(found, ANSWER)
                if header["round"] and len(body) >= 32 and not header["refused"]:
                    left.setdefault((name, digest(message)), set()).add(body)
                return found
            except Killed:
                kills.append(name)
                calls["left"] = chance.randrange(3, 20)
            finally:
                calls["now"] = False
            federation.restart(name)

    federation.answer = answer
    told_twice = Faulty(federation, lambda name, found, count: [found])
    push, told_twice.push = told_twice.push, lambda messages: (push(messages), push(messages))
    result = federation.run(told_twice)
    print(f"killed {len(kills)} times")
    assert len(kills) >= 10
    assert result.rounds == 6
    assert len(left) == 6 * len(NAMES)
    assert all(len(bodies) == 1 for bodies in left.values())  # one draw for a question, however often it was asked
    for name in NAMES:
        assert federation.spent(name)["answers"] == 6
        how = federation.sites[name].private.how
        assert federation.spent(name)["rho"] >= 6 * how.sensitivity**2 / (2 * how.sigma**2) * (1 - 1e-9)


def test_a_site_that_lost_its_state_and_ledger_counts_what_it_had_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "RESEND", 0.05)
    federation = Private(tmp_path, private_terms(), replace(DP8, rounds=100))
    lost, drawn = [], []

    def meddle(name, answer, count):
        header, body = unseal(answer, ANSWER)
        if name == "b" and header["round"] and len(body) >= 32:
            drawn.append(body)
            if header["round"] == 3 and not lost:
                lost.append(count)
                federation.restart("b", without_state=True)
                return []
        return [answer]

    result = federation.run(Faulty(federation, meddle))
    assert lost
    assert result.rounds == ROUNDS
    assert len(set(drawn)) > ROUNDS  # the third answer was drawn anew
    assert federation.spent("b")["answers"] >= len(set(drawn))
    assert federation.spent("a")["answers"] == ROUNDS


def test_a_site_that_lost_the_runs_state_alone_sends_the_same_noise_again(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "RESEND", 0.05)
    federation = Private(tmp_path, private_terms(), replace(DP8, rounds=100))
    lost, drawn = [], []

    def meddle(name, answer, count):
        header, body = unseal(answer, ANSWER)
        if name == "b" and header["round"] and len(body) >= 32:
            drawn.append(body)
            if header["round"] == 3 and not lost:
                lost.append(count)
                for folder in (tmp_path / "b").iterdir():
                    shutil.rmtree(folder) if folder.is_dir() else None
                federation.restart("b")
                return []
        return [answer]

    result = federation.run(Faulty(federation, meddle))
    assert lost
    assert result.rounds == ROUNDS
    assert len(drawn) > ROUNDS
    assert len(set(drawn)) == ROUNDS
    assert federation.spent("b")["answers"] == ROUNDS


def test_a_damaged_ledger_is_no_new_budget(tmp_path):
    federation = Private(tmp_path, private_terms(), DP8)
    federation.run()
    whole = (tmp_path / "a" / "privacy").read_bytes()
    bits = random.Random(0)
    changed = [bytearray(whole) for _ in range(50)]
    for each in changed:
        each[bits.randrange(len(whole))] ^= 1 << bits.randrange(8)
    for damage in (b"{", b"{}", whole[:-1], whole[:40], *map(bytes, changed)):
        (tmp_path / "a" / "privacy").write_bytes(damage)
        with pytest.raises(CheckpointError, match="damaged"):
            federation.restart("a")


# ── the attack ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_our_own_attack_on_a_site_fails_where_it_is_private(tmp_path):
    errors = {}
    for name, own in (("plain", None), ("dp", DP8)):
        federation = Private(tmp_path / name, private_terms(most=8), own)
        link = Recorded(federation)
        federation.run(link)
        x0 = np.array(link.asked)
        found = [attack.gram(*attack.replay(x0, np.array(link.answers[site])[:, :4], mu=MU, a=A, b=B))[0] for site in NAMES]
        errors[name] = [attack.relative_error(H, true) for H, (true, _) in zip(found, quadratics(federation.data), strict=True)]
        print(f"{name}: relative errors of the Gram matrices {errors[name]}")
    assert max(errors["plain"]) <= 1e-6
    assert min(errors["dp"]) >= 0.5


# ── what is refused before anybody connects ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": (("name", "krylov"),)}, "fedhybrid with mu, a and b; admm with rho; gd with step_size"),
        ({"method": (("name", "lbfgs"),)}, "Methods that work"),
        ({"method": (("name", "newton"),)}, "Methods that work"),
        ({"method": (("name", "fedhybrid"),)}, "Methods that work"),  # it would measure curvatures first
        ({"method": (("name", "anderson"), ("a", A), ("b", B), ("mu", MU))}, "Methods that work"),
        ({"weighting": "row"}, "weighting = 'client'"),
        ({"largest_gradient": 5.0}, "largest_gradient"),
    ],
)
def test_what_noise_cannot_cover_is_refused_with_what_to_do(change, says):
    terms = private_terms()
    if "method" in change:
        terms = replace(terms, method=change["method"])
    elif "weighting" in change:
        terms = replace(terms, problem=replace(terms.problem, **change))
    else:
        terms = replace(terms, rounds=replace(terms.rounds, **change))
    with pytest.raises(InvalidConfig, match=says):
        _check(terms)


def test_a_private_site_takes_no_part_in_a_federation_that_needs_sums_without_noise(tmp_path):
    with pytest.raises(InvalidConfig, match="noise can cover: fedhybrid with mu, a and b"):
        Private(tmp_path, terms_of(), {"a": DP8, "b": None, "c": None, "d": None})


SECTION = 'name = "a"\ndata = "a.csv"\n[privacy]\n'


def test_the_sites_own_file_says_how_private_it_is(tmp_path):
    (tmp_path / "site.toml").write_text(f"{SECTION}clip = 2\nepsilon = 8\ndelta = 1e-5\nrounds = 30\n")
    assert read_rules(tmp_path / "site.toml").privacy == Privacy(2.0, 8.0, 1e-5, rounds=30)
    assert set(PRIVACY) == set(Privacy.__dataclass_fields__)
    for wrong, says in (
        ("clip = 2\nepsilon = 8\n", "needs delta"),
        ("clip = 0\nepsilon = 8\ndelta = 1e-5\n", "clip"),
        ("clip = 2\nepsilon = 8\ndelta = 0.5\n", "delta"),
        ("clip = 2\nepsilon = 8\ndelta = 1e-5\nnoise = 1\n", "no key 'noise'"),
        ("clip = 2\nepsilon = 8\ndelta = 1e-5\nsigma = 1\nrounds = 3\n", "not both"),
    ):
        (tmp_path / "site.toml").write_text(SECTION + wrong)
        with pytest.raises(InvalidConfig, match=says):
            read_rules(tmp_path / "site.toml")


def test_a_sigma_of_its_own_is_taken_and_the_budget_still_holds(tmp_path):
    federation = Private(tmp_path, private_terms(), Privacy(4.0, 8.0, DELTA, sigma=30.0))
    how = federation.sites["a"].private.how
    assert how.sigma == pytest.approx(30.0 / MU)
    each = (8.0 / 30.0) ** 2 / 2
    result = federation.run()
    label = privacy.label(privacy.epsilon(ROUNDS * each, DELTA), DELTA)
    assert result.privacy == label
    less = Private(tmp_path / "less", private_terms(), Privacy(4.0, 2.0, DELTA, sigma=30.0)).run()
    assert 0 < less.rounds < ROUNDS
    assert privacy.epsilon((less.rounds + 1) * each, DELTA) > 2.0 >= privacy.epsilon(less.rounds * each, DELTA)


def test_a_simulation_reads_both_files_and_spends_nothing_of_the_sites(tmp_path):
    """As people type it; what is simulated was sent to nobody."""
    text = terms_text(Plan(NAMES, "y", "squared", ("u", "v", "w"), 0.1, "gd", secure=False), {name: f"key of {name}" for name in NAMES})
    for old, new in (
        ("[rounds]", "step_size = 0.2\n[rounds]"),
        ("# private = true ", "private = true "),
        ("most = 10000", "most = 3"),
        ('weighting = "row"', 'weighting = "client"'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "federation.toml").write_text(text)
    for name, (rows, y) in rows_of("squared").items():
        (tmp_path / name).mkdir()
        np.savetxt(tmp_path / name / "data.csv", np.column_stack([rows, y]), delimiter=",", header="u,v,w,y", comments="")
        own = SITE.format(name=f'"{name}"', key='"none.key"')
        for line in ("[privacy] ", "clip = ", "epsilon = ", "delta = "):
            assert own.count(f"# {line}") == 1
            own = own.replace(f"# {line}", line)
        (tmp_path / name / "site.toml").write_text(own)
    done = CliRunner().invoke(app, ["simulate", str(tmp_path)])
    assert done.exit_code == Status.MAX_ROUNDS.exit_status, done.output
    said = " ".join(done.output.split())
    assert "Privacy: dp(8, 1e-05): what the server saw carries every site's noise" in said
    assert "a dp(8, 1e-05); b dp(8, 1e-05); c dp(8, 1e-05); d dp(8, 1e-05)." in said
    assert not any((tmp_path / name / "state").exists() for name in NAMES)
    (tmp_path / "federation.toml").write_text(text.replace('name = "gd"', 'name = "krylov"').replace("step_size = 0.2", ""))
    done = CliRunner().invoke(app, ["simulate", str(tmp_path)])
    assert done.exit_code == 2
    assert "Methods that work: fedhybrid with mu, a and b" in " ".join(done.output.split())


def test_a_site_says_when_it_starts_how_private_it_is_and_what_is_spent(tmp_path):
    federation = Private(tmp_path, private_terms("gd"), replace(DP8, rounds=2 * ROUNDS))
    federation.run()
    federation.restart("a")
    sigma = federation.sites["a"].private.how.sigma
    assert (
        federation.sites["a"].private.sentence
        == f"Private: dp(8, 1e-05), of which {privacy.epsilon(privacy.rho_for(8.0, DELTA) / 2, DELTA):.3g} is spent; "
        f"noise {sigma:.3g} on gradients of norm 4."
    )
