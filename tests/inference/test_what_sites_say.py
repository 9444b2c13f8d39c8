"""Heterogeneity, calibration, small sites, and the file: each against literal NumPy or what was written."""

import json
import math
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from pooled_models import FAMILIES, FORMULA, by_site, matrix, table
from scipy import stats

import fedhybrid as fh
from fedhybrid.inference.fit import Fit

families = pytest.mark.parametrize("family", FAMILIES)


def literally(frame, fit, family):
    """Of every site: score and information at the pooled fit."""
    found = []
    for part in by_site(frame).values():
        X, y = matrix(part), part["y"].to_numpy()
        eta = X @ fit.x
        mean = {"gaussian": eta, "binomial": 1.0 / (1.0 + np.exp(-eta)), "poisson": np.exp(eta)}[family]
        v = {"gaussian": np.ones_like(eta), "binomial": mean * (1.0 - mean), "poisson": mean}[family]
        found.append((X.T @ (mean - y), X.T @ (v[:, None] * X), len(y)))
    return found


@families
def test_raos_test_and_cochrans_are_their_definitions(family):
    frame = table(family, rows=240)
    fit = fh.fit(by_site(frame), FORMULA, family=family)
    sites = literally(frame, fit, family)
    told = fit.heterogeneity
    rao = sum(s @ np.linalg.solve(H, s) for s, H, _ in sites) / fit.dispersion
    np.testing.assert_allclose(told.statistic, rao, rtol=1e-8)
    assert told.df == 4 * (len(sites) - 1)
    np.testing.assert_allclose(told.pvalue, stats.chi2.sf(rao, told.df), rtol=1e-7)
    assert told.sites == len(sites)
    steps = np.array([-np.linalg.solve(H, s) for s, H, _ in sites])
    variances = np.array([fit.dispersion * np.diag(np.linalg.inv(H)) for _, H, _ in sites])
    mean = np.sum(steps / variances, axis=0) / np.sum(1.0 / variances, axis=0)
    Q = np.sum((steps - mean) ** 2 / variances, axis=0)
    np.testing.assert_allclose(told.Q, Q, rtol=1e-7)
    np.testing.assert_allclose(told.pvalues, stats.chi2.sf(Q, len(sites) - 1), rtol=1e-6)
    np.testing.assert_allclose(told.I2, np.maximum(0.0, 1.0 - (len(sites) - 1) / Q), atol=1e-8)


def test_sites_that_differ_are_found_and_sites_that_do_not_are_not():
    frame = table("gaussian", rows=400)
    alike = fh.fit(by_site(frame), FORMULA).heterogeneity
    frame.loc[frame["site"] == "east", "y"] += 0.5 * frame["bmi"]
    differ = fh.fit(by_site(frame), FORMULA).heterogeneity
    assert alike.pvalue > 0.01
    assert differ.pvalue < 1e-10


def test_a_site_that_lacks_a_level_counts_in_raos_test_with_what_it_can_tell():
    frame = table("poisson", rows=240)
    frame = frame[(frame["site"] != "west") | (frame["sex"] == "f")]
    told = fh.fit(by_site(frame), FORMULA, family="poisson").heterogeneity
    assert told.df == 4 + 4 + 4 + 3 - 4
    assert told.sites == 3


def test_shares_of_information_add_up_and_so_do_rows_and_events():
    frame = table("binomial")
    fit = fh.fit(by_site(frame), FORMULA, family="binomial")
    sites = literally(frame, fit, "binomial")
    inverse = np.linalg.inv(sum(H for _, H, _ in sites))
    np.testing.assert_allclose([site.share for site in fit.sites], [np.trace(inverse @ H) / 4.0 for _, H, _ in sites], rtol=1e-8)
    assert [site.rows for site in fit.sites] == [n for *_, n in sites]
    assert [site.events for site in fit.sites] == [part["y"].sum() for part in by_site(frame).values()]


def test_calibration_is_means_by_tenths():
    frame = table("binomial")
    fit = fh.fit(by_site(frame), FORMULA, family="binomial")
    p = fit.predict(frame)
    tenth = np.minimum((10.0 * p).astype(int), 9)
    for k in range(10):
        assert fit.calibration.rows[k] == np.count_nonzero(tenth == k)
        if fit.calibration.rows[k]:
            np.testing.assert_allclose(fit.calibration.predicted[k], p[tenth == k].mean(), rtol=1e-10)
            np.testing.assert_allclose(fit.calibration.observed[k], frame["y"][tenth == k].mean(), rtol=1e-10)


@families
@pytest.mark.parametrize("options", [{}, {"covariance": "site"}, {"reg": 0.1}], ids=str)
def test_a_fit_comes_out_of_its_file_as_it_was(family, options, tmp_path):
    frame = table(family)
    fit = fh.fit(by_site(frame), FORMULA, family=family, weights="w", offset="o", **options)
    fit.to_json(tmp_path / "result.json")
    again = Fit.read(tmp_path / "result.json")
    for field in fields(Fit):
        if field.name not in ("result", "sites", "design"):
            np.testing.assert_equal(getattr(again, field.name), getattr(fit.told, field.name), err_msg=field.name)
    assert again.design == fit.design
    assert again.summary() == fit.summary()
    np.testing.assert_array_equal(again.predict(frame), fit.predict(frame))
    pd.testing.assert_frame_equal(again.table(), fit.table(), check_exact=True)
    written = json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    assert written["schema"] == "fedhybrid.fit/1"
    assert list(written["derived"]["params"].values()) == fit.x.tolist()  # to the last bit


def test_what_is_no_fit_is_not_read(tmp_path):
    fit = fh.fit(by_site(table("gaussian")), FORMULA)
    given = fit.to_dict()
    for name, change, words in [
        ("text", None, "is not a JSON file"),
        ("other", {"schema": "fedhybrid.fit/99"}, "its schema must be fedhybrid.fit/1"),
        ("short", {"x": [1.0]}, "does not hold what a fit holds"),
        ("family", {"family_name": "cauchy"}, "does not hold what a fit holds"),
        ("status", {"status": "FINE"}, "does not hold what a fit holds"),
        ("formula", {"design": given["design"] | {"formula": "y ~ __import__('os')"}}, "cannot be used"),
    ]:
        path = tmp_path / f"{name}.json"
        path.write_text("{" if change is None else json.dumps(given | change))
        with pytest.raises(fh.InvalidData if name != "formula" else ValueError, match=words):
            Fit.read(path)
    with pytest.raises(fh.InvalidData, match="could not be read: No such file"):
        Fit.read(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("kind", "HC9"),
        ("kind", []),
        ("rows", -1),
        ("rows", "many"),
        ("rounds", None),
        ("min_rows", [1]),
        ("floats_up", 10**400),
        ("intercept", 1),
        ("message", None),
        ("privacy", {}),
        ("about", "nothing"),
        ("llf", 10**400),
        ("counted", "yes"),
        ("x", 10**400),
        ("intercept", False),
    ],
    ids=str,
)
def test_a_field_of_another_kind_is_refused_when_the_file_is_read(name, change, tmp_path):
    given = fh.fit(by_site(table("gaussian")), FORMULA).to_dict() | {name: change}
    (tmp_path / "result.json").write_text(json.dumps(given))
    with pytest.raises(fh.InvalidData, match="does not hold what a fit holds"):
        Fit.read(tmp_path / "result.json")


def test_names_in_a_file_are_those_of_its_design(tmp_path):
    given = fh.fit(by_site(table("gaussian")), FORMULA).to_dict()
    (tmp_path / "result.json").write_text(json.dumps(given | {"names": given["names"][::-1]}))
    with pytest.raises(fh.InvalidData, match="names that are not those of its design"):
        Fit.read(tmp_path / "result.json")


def test_counts_of_a_small_site_are_told_nowhere(tmp_path):
    frame = table("binomial")
    north, south = frame[:150], frame[150:154].copy()
    south.loc[south.index[0], "bmi"] = math.nan
    fit = fh.fit({"north": north, "south": south}, FORMULA, family="binomial", min_rows=5)
    lines = {line.split()[0]: line.split()[1:-1] for line in fit.summary().splitlines() if line.startswith(("north ", "south "))}
    assert lines["south"] == lines["north"] == ["–"] * 3  # that of the other one would tell it, as the total is told
    assert not any("1 of 4" in note or "(3)" in note for note in fit.notes)
    fit.to_json(tmp_path / "result.json")
    again = Fit.read(tmp_path / "result.json")
    assert math.isnan(again.sites[1].rows)
    assert math.isnan(again.sites[1].events)
    assert again.summary() == fit.summary()
    everyone = fh.fit({"north": north, "south": south}, FORMULA, family="binomial", min_rows=1)
    assert "south: 1 of 4 rows were dropped, because something is missing in them: bmi in 1." in everyone.notes


@families
@pytest.mark.parametrize("covariance", ["model", "HC0"])
def test_a_summary_is_at_most_eighty_columns_wide(family, covariance):
    frame = table(family).rename(columns={"bmi": "a column with a name that is far too long for a table"})
    frame["age"] *= 1e-7
    fit = fh.fit(by_site(frame), "y ~ age + `a column with a name that is far too long for a table`", family=family, covariance=covariance)
    lines = fit.summary().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("a colu") and "…" in line for line in lines)
    assert str(fit) == fit.summary()
