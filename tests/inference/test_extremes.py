"""Tables at the edge of what statistics mean: units far apart, rows that nothing contradicts, fits without a residual."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

import fedhybrid as fh


def table(rows=90):
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"x": rng.normal(size=rows), "z": rng.normal(size=rows), "g": rng.choice(list("abc"), rows)})
    return frame.assign(y=frame.x + rng.normal(size=rows))


def at_three(frame):
    return {f"site {k}": frame[k::3] for k in range(3)}


def test_a_wald_test_does_not_depend_on_units():
    frame = table()
    plain = fh.fit(at_three(frame), "y ~ x + z * g").wald(["x", "z", "g"])
    far = fh.fit(at_three(frame.assign(x=1e10 * frame.x, z=1e-6 * frame.z)), "y ~ x + z * g").wald(["x", "z", "g"])
    assert far.df == plain.df == 4
    assert far.statistic == pytest.approx(plain.statistic, rel=1e-9)
    assert far.pvalue == pytest.approx(
        smf.ols("y ~ x + z * g", frame).fit().f_test("x = 0, z = 0, g[T.b] = 0, g[T.c] = 0").pvalue, rel=1e-9
    )


@pytest.mark.parametrize("values", ["a", [1.0, 2.0, 3.0], np.nan, None])
def test_values_that_no_hypothesis_can_have_are_refused(values):
    fit = fh.fit(at_three(table()), "y ~ x + g")
    with pytest.raises(fh.InvalidConfig, match="one finite number, or one for each of 2 hypotheses"):
        fit.wald("g", values)
    with pytest.raises(fh.InvalidConfig, match="names, or a matrix with 4 columns"):
        fit.wald(object())


@pytest.mark.parametrize("kind", ["HC2", "HC3"])
def test_a_row_with_a_coefficient_of_its_own_has_no_corrected_residual(kind):
    frame = table()
    frame.loc[0, "g"] = "alone"
    fit = fh.fit(at_three(frame), "y ~ x + g", covariance=kind)
    assert fit.covariance is None
    assert "its leverage is 1" in fit.why_no_errors
    assert fh.fit(at_three(frame), "y ~ x + g", covariance="HC1").covariance is not None


@pytest.mark.parametrize("response", [lambda frame: 1.0 + 2.0 * frame.x, lambda frame: 3.0 + 0.0 * frame.x])
def test_of_rounding_alone_no_difference_between_sites_is_told(response):
    fit = fh.fit(at_three(table().assign(y=response)), "y ~ x")
    assert fit.heterogeneity is None
    assert any("fits every row exactly" in note for note in fit.notes)


def test_a_small_residual_is_one():
    frame = table()
    fit = fh.fit(at_three(frame.assign(y=1e6 + frame.x + 1e-6 * frame.z)), "y ~ x")
    assert fit.heterogeneity is not None
    assert not any("exactly" in note for note in fit.notes)


@pytest.mark.parametrize("kind", ["HC1", "site"])
def test_as_many_rows_as_coefficients_have_no_spread(kind):
    fit = fh.fit(
        {"a": pd.DataFrame({"x": [0.0], "y": [1]}), "b": pd.DataFrame({"x": [1.0], "y": [2]})}, "y ~ x", family="poisson", covariance=kind
    )
    np.testing.assert_allclose(fit.x, [0.0, np.log(2.0)], atol=1e-9)
    assert "no more rows than coefficients" in fit.why_no_errors


def test_a_site_whose_rows_all_weigh_nothing_is_no_cluster():
    sites = at_three(table().assign(w=1.0))
    sites = {name: frame.assign(w=float(name == "site 0")) for name, frame in sites.items()}
    fit = fh.fit(sites, "y ~ x", weights="w", covariance="site")
    assert "one site alone" in fit.why_no_errors


@pytest.mark.parametrize("options", [{"weights": 3}, {"offset": ["x"]}, {"reference": ["g"]}], ids=str)
def test_what_should_name_a_column_and_does_not_is_refused(options):
    with pytest.raises(fh.InvalidConfig, match=f"fit: {next(iter(options))} must be"):
        fh.fit(at_three(table()), "y ~ x + g", **options)


def test_an_offset_of_texts_predicts_nothing():
    frame = table()
    with pytest.raises(fh.InvalidConfig, match="predict: offset must be numbers"):
        fh.fit(at_three(frame), "y ~ x").predict(frame, offset="q")


def test_a_test_of_a_term_leaves_its_interactions_out():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"g": rng.choice(["a", "b", "c"], 90), "z": rng.normal(size=90), "y": rng.normal(size=90)})
    fit = fh.fit({"one": frame[:40], "two": frame[40:]}, "y ~ g * z")
    assert str(fit.wald("g")) == str(fit.wald(["g[T.b]", "g[T.c]"]))
    assert str(fit.wald("g:z")) == str(fit.wald(["g[T.b]:z", "g[T.c]:z"]))
