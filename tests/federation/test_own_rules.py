"""How few rows or sites are too few is each site's own affair; and secure sums of fewer than three sites there are none."""

from dataclasses import replace

import numpy as np
import pytest
from harness import NAMES, Faulty, Federation, IdleClock, identity, terms_of

from fedhybrid.federation.envelope import ANSWER, Question, seal_question, unseal
from fedhybrid.federation.site import Site
from fedhybrid.status import InvalidConfig, InvalidData, Status


def other(federation, name, **rules):
    rows, secure = federation.data[name], federation.terms.secure.sums
    return Site(federation.terms, replace(federation.sites[name].rules, **rules), rows, identity(name) if secure else None)


def test_with_fewer_rows_than_its_file_says_a_site_does_not_begin(tmp_path):
    federation = Federation(tmp_path, terms_of())
    assert len(federation.data["a"][1]) == 24
    other(federation, "a", minimum_rows=24)
    with pytest.raises(InvalidData, match=r"fewer rows than minimum_rows = 25"):
        other(federation, "a", minimum_rows=25)


def test_nor_in_a_federation_of_fewer_sites(tmp_path):
    federation = Federation(tmp_path, terms_of())
    other(federation, "a", minimum_sites=4)
    with pytest.raises(InvalidConfig, match=r"has 4 sites, and minimum_sites is 5"):
        other(federation, "a", minimum_sites=5)


def test_a_question_with_fewer_sites_is_refused_whatever_the_terms_allow(tmp_path):
    federation = Federation(tmp_path, terms_of(absent="drop"))
    site = other(federation, "a", minimum_sites=4)
    for sites, refused in ((NAMES, ""), (NAMES[:3], "sites"), (("a",), "sites"), (NAMES[1:], "sites")):
        question = Question("census", federation.terms.digest(), "r", 0, 0, (0,), sites, np.zeros(0))
        assert unseal(site.answer(seal_question(question)), ANSWER)[0]["refused"] == refused


def test_a_run_that_goes_on_with_fewer_sites_than_one_of_them_wants_ends(tmp_path, monkeypatch):
    IdleClock(monkeypatch)
    terms = terms_of("krylov", "squared", absent="drop", patience=2.0, deadline=2.0)
    federation = Federation(tmp_path / "run", terms)
    federation.sites["a"] = other(federation, "a", minimum_sites=4)
    result = federation.run(Faulty(federation, away=lambda name, count: name == "c" and count > 5))
    assert result.status is Status.QUORUM_LOST
    assert "takes no part with 3 sites: its minimum_sites is 4" in result.message


def test_behind_masks_the_sites_own_number_is_the_fewest_of_a_sum(tmp_path):
    pytest.importorskip("cryptography")
    federation = Federation(tmp_path, terms_of("fedhybrid", "squared", secure=True, most=3))
    federation.sites["a"] = other(federation, "a", minimum_sites=4)
    federation.run()
    assert [federation.sites[name].vault.site.least for name in NAMES] == [4, 3, 3, 3]


def test_of_two_sites_that_are_left_no_sum_is_taken(tmp_path, monkeypatch):
    """Four sites, two of which go: with two in a sum each could work out the other's numbers."""
    pytest.importorskip("cryptography")
    IdleClock(monkeypatch)
    terms = terms_of("krylov", "squared", secure=True, absent="drop", patience=2.0, deadline=2.0)
    federation = Federation(tmp_path / "run", terms)
    for name in ("a", "b"):  # who would agree to it
        federation.sites[name] = other(federation, name, minimum_sites=1)
    result = federation.run(Faulty(federation, away=lambda name, count: name in "cd" and count > 8))
    assert result.status is Status.QUORUM_LOST
    assert "Only a and b are left, and secure sums need 3 sites" in result.message
    assert np.all(np.isfinite(result.x))
    assert result.privacy == "secagg(4, 3)"
