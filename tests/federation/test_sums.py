"""A whole run by secure sums: the same answer as in the open, bit for bit that of the sums without masks, whatever happens on the way."""

import functools

import numpy as np
import pytest

pytest.importorskip("cryptography")

from harness import Federation, pooled, rows_of, terms_of
from samples import same_bits

import fedhybrid as fh
from fedhybrid.secure import opening
from fedhybrid.secure.site import SecureSite

CASES = [("krylov", "logistic"), ("fedhybrid", "squared")]


@functools.cache
def expected(method, loss):
    return pooled(terms_of(method, loss), rows_of(loss))


@pytest.mark.parametrize(("method", "loss"), CASES)
def test_by_secure_sums_the_answer_is_that_of_the_pooled_rows(method, loss, tmp_path, monkeypatch):
    federation = Federation(tmp_path / "masked", terms_of(method, loss, secure=True))
    events = []
    result = federation.run(None, lambda what, details: events.append((what, details)))
    print([e for e in events if e[0] not in ("round",)])
    x = expected(method, loss).x
    print(result, result.notes, np.linalg.norm(result.x - x) / np.linalg.norm(x), result.rounds, expected(method, loss).rounds)
    assert result.status is fh.Status.SOLVED
    assert result.notes[0].startswith("Privacy: secagg(4, 3).")
    assert np.linalg.norm(result.x - x) <= 1e-10 * np.linalg.norm(x)
    monkeypatch.setattr(SecureSite, "_masked", lambda self, question, words: words)
    monkeypatch.setattr(opening, "masks_left", lambda agreement, question, survivors, shares: np.zeros(question.size, np.uint64))
    plain = Federation(tmp_path / "plain", terms_of(method, loss, secure=True)).run()
    assert same_bits(result.trace.x0, plain.trace.x0)
    assert same_bits(result.x, plain.x)
