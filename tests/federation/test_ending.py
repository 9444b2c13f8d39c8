"""A site is told how a run ended: once or twice, in the open or behind masks, and only what fits what it has agreed to."""

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
from harness import Faulty, Federation, terms_of
from samples import same_bits

import fedhybrid as fh
from fedhybrid.federation.ending import HEADER, RESULT, Ending, read_ending, seal_ending, sentence_of
from fedhybrid.federation.envelope import ANSWER, digest, read_answer, seal, unseal


def copies(federation):
    return {name: json.loads((federation.folder / name / RESULT).read_text()) for name in federation.terms.names}


@pytest.mark.parametrize("secure", [False, True])
def test_every_site_has_a_copy_of_the_answer_when_a_run_has_ended(secure, tmp_path):
    if secure:
        pytest.importorskip("cryptography")
    federation, heard = Federation(tmp_path, terms_of("krylov", "squared", secure=secure)), []
    result = federation.run(None, lambda what, details: heard.append((what, details)))
    for name, told in copies(federation).items():
        assert same_bits(np.array(told["x"]), result.x)
        assert list(told["coefficients"].items()) == list(zip(["u", "v", "w", "(intercept)"], told["x"], strict=True))
        assert (told["status"], told["rounds"], told["error_bound"]) == ("SOLVED", result.rounds, result.error_bound)
        assert told["privacy"] == ("secagg(4, 3)" if secure else "plain")
        assert told["sites"] == ["a", "b", "c", "d"]
        assert stat.S_IMODE((tmp_path / name / RESULT).stat().st_mode) == 0o600
        said = sentence_of(told, name, tmp_path / name)
        assert said.startswith(f"The run has ended: SOLVED after {result.rounds} rounds, at most ")
        assert said.endswith(f"The coefficients: {tmp_path / name / RESULT}")
    assert heard[-1] == ("told", {"sites": ["a", "b", "c", "d"], "away": []})
    assert sum(what == "round" for what, _ in heard) == result.rounds  # it is no round


def test_a_server_that_is_started_again_tells_it_again_and_the_copies_stay_as_they_are(tmp_path):
    federation = Federation(tmp_path, terms_of("krylov", "squared"))
    result, before = federation.run(), copies(federation)
    (tmp_path / "b" / RESULT).unlink()
    federation.restart("c")
    again = federation.run()  # from its record
    assert same_bits(again.x, result.x)
    assert copies(federation) == before


def test_a_site_that_is_away_at_the_end_or_answers_rubbish_changes_nothing(tmp_path):
    whole = Federation(tmp_path / "whole", terms_of("krylov", "squared")).run()
    federation = Federation(tmp_path / "away", terms_of("krylov", "squared", deadline=0.3))

    class Away(Faulty):
        def push(self, messages):
            ended = all(read_ending(message) is not None for message in messages.values())
            super().push({name: message for name, message in messages.items() if not ended or name != "b"})

    def meddle(name, answer, count):
        return [b"rubbish", answer[:-1], answer, answer] if count > 3 else [answer]

    heard = []
    federation.terms = replace(federation.terms, rounds=replace(federation.terms.rounds, strikes=1000))
    for name in federation.terms.names:
        federation.restart(name)
    result = federation.run(Away(federation, meddle), lambda what, details: heard.append((what, details)))
    assert same_bits(result.x, whole.x)
    assert heard[-1] == ("told", {"sites": ["a", "c", "d"], "away": ["b"]})
    assert not (tmp_path / "away" / "b" / RESULT).exists()


def test_a_link_that_fails_at_the_end_changes_nothing(tmp_path):
    class Broken(Faulty):
        def push(self, messages):
            if any(read_ending(message) is not None for message in messages.values()):
                raise ConnectionError("the SuperLink did not answer")
            super().push(messages)

    federation, heard = Federation(tmp_path, terms_of("krylov", "squared")), []
    assert federation.run(Broken(federation), lambda what, details: heard.append(what)).status is fh.Status.SOLVED
    assert heard[-2:] == ["not told", "told"]


def test_a_run_that_is_to_go_on_has_not_ended(tmp_path):
    federation = Federation(tmp_path, terms_of("krylov", "squared", absent="abort", patience=0.2, deadline=0.2))
    federation.run(Faulty(federation, away=lambda name, count: name == "c" and count > 5))
    assert not list(tmp_path.glob(f"*/{RESULT}"))


def test_a_site_that_was_left_out_is_told_so(tmp_path):
    federation = Federation(tmp_path, terms_of("krylov", "squared", strikes=1))
    lost = {"b": 5}

    def meddle(name, answer, count):
        return [b"rubbish"] if count == lost.get(name) else [answer]

    result = federation.run(Faulty(federation, meddle))
    assert result.names == ("a", "c", "d")
    told = copies(federation)["b"]
    assert same_bits(np.array(told["x"]), result.x)
    assert "This site is not in the answer: it is that of a, c, d." in sentence_of(told, "b", tmp_path)


# ── what a site does not believe ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A federation after its run, and what its sites were told."""
    federation = Federation(tmp_path_factory.mktemp("ended"), terms_of("krylov", "squared"))
    messages = []
    federation.answer = lambda name, message, real=federation.answer: (messages.append(message), real(name, message))[1]
    federation.run()
    return federation, next(read_ending(message) for message in messages if read_ending(message) is not None), messages


def refusal(site, data):
    return read_answer(site.answer(data), {digest(data): 0}).message


WRONG = {
    "other terms": ({"terms": "0" * 64}, "other terms"),
    "another run": ({"run": "0" * 16}, "not the last one in which it took part"),
    "a run that is a path": ({"run": "../../a"}, "not the last one in which it took part"),
    "strange sites": ({"sites": ("a", "mallory")}, "sites that it does not know"),
    "no sites": ({"sites": ()}, "sites that it does not know"),
    "too long": ({"x": np.zeros(5)}, "5 coefficients, and there are 4"),
    "too short": ({"x": np.zeros(3)}, "3 coefficients, and there are 4"),
    "NaN": ({"x": np.array([0.0, np.nan, 0.0, 0.0])}, "numbers cannot be used"),
    "infinite": ({"x": np.array([0.0, np.inf, 0.0, 0.0])}, "numbers cannot be used"),
    "a bound that is none": ({"error_bound": np.nan}, "numbers cannot be used"),
    "a negative bound": ({"error_bound": -1.0}, "numbers cannot be used"),
    "a status that is none": ({"status": "SPLENDID"}, "an end that is none"),
    "not at its end": ({"status": "QUORUM_LOST"}, "an end that is none"),
    "a label with commands for a terminal": ({"privacy": "plain\x1b[2J"}, "a label that is none"),
    "an endless label": ({"privacy": "p" * 201}, "a label that is none"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_site_refuses_an_ending_that_does_not_fit(what, ended):
    federation, ending, _ = ended
    change, said = WRONG[what]
    before = copies(federation)
    assert said in refusal(federation.sites["a"], seal_ending(ending._replace(**change)))
    assert copies(federation) == before


def test_strange_headers_and_damaged_bytes_are_answered_with_a_refusal(ended):
    federation, ending, _ = ended
    header, body = unseal(seal_ending(ending), HEADER)
    for wrong in ({"sites": [["a"]]}, {"sites": [1]}, {"rounds": -1}, {"rounds": True}, {"ended": 3}, {"x": 1}):
        assert refusal(federation.sites["a"], seal(header | wrong, body))
    for wrong in (body[:-1], b"", body + b"\0"):
        assert refusal(federation.sites["a"], seal(header, wrong))
    data = seal_ending(ending)
    for k in range(0, len(data), 7):
        flipped = data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :]
        answer, _ = unseal(federation.sites["a"].answer(flipped), ANSWER)
        assert answer["refused"] == "question"


def test_the_ending_of_an_earlier_run_is_not_taken_for_that_of_the_last(tmp_path):
    federation, endings = Federation(tmp_path, terms_of("krylov", "squared")), []

    def noted(name, message, real=federation.answer):
        endings.append(read_ending(message))
        return real(name, message)

    federation.answer = noted
    for k in range(2):
        federation.run()
        (tmp_path / "server").rename(tmp_path / f"server-{k}")
    first, last = (found for k, found in enumerate(endings) if found is not None and (k == 0 or endings[k - 1] is None))
    assert isinstance(first, Ending)
    assert first.run != last.run
    assert "not the last one" in refusal(federation.sites["a"], seal_ending(first))
    assert copies(federation)["a"]["run"] == last.run


def test_an_answer_that_cannot_be_kept_is_said_and_the_site_lives_on(ended, monkeypatch):
    federation, ending, _ = ended

    def full(self, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fedhybrid.federation.kept.Kept.save", full)
        assert "could not keep its state" in refusal(federation.sites["a"], seal_ending(ending))
    data = seal_ending(ending)
    assert not read_answer(federation.sites["a"].answer(data), {digest(data): 0}).refused
