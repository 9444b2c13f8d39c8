"""What cannot be used or not be told: a sentence that names site and column and what to do, and no entry of any table."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import fedhybrid as fh

FORMULA = "death ~ age + C(sex) + bmi"
SECRET = 31.4159  # an entry of the table at north


def tables():
    rng = np.random.default_rng(3)

    def one(rows):
        frame = pd.DataFrame({"age": rng.normal(60, 10, rows), "sex": rng.choice(["f", "m"], rows), "bmi": rng.normal(26, 4, rows)})
        return frame.assign(death=(rng.uniform(size=rows) < 0.5).astype(float), cost=frame["age"] + rng.normal(size=rows))

    found = {"north": one(60), "south": one(30)}
    found["north"].loc[5, "bmi"] = SECRET
    return found


def changed(site="south", **columns):
    found = tables()
    for name in found if site == "both" else [site]:
        found[name] = found[name].assign(**columns)
    return found


def fitted(sites, formula=FORMULA, family="binomial", **more):
    return fh.fit(sites, formula, family=family, **more)


# ── refused ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSED = {
    "a column of another type": (
        lambda: changed(bmi="26,5"),
        {},
        "the column bmi is number at north but text at south.*write it in the same",
    ),
    "a missing column": (
        lambda: tables() | {"south": tables()["south"].drop(columns="bmi")},
        {},
        "south: there is no column bmi.*Its columns",
    ),
    "a formula that names no column": (tables, {"formula": "death ~ agee"}, "north: there is no column agee. Did you mean age"),
    "an empty site": (
        lambda: tables() | {"south": tables()["south"][:0]},
        {},
        "south: there is no row to use.*leave the column or the site out",
    ),
    "a column that is missing throughout": (
        lambda: changed(bmi=np.nan),
        {},
        "south: there is no row to use: .*missing in all 30, bmi in 30",
    ),
    "an infinite entry": (lambda: changed(bmi=[np.inf] * 2 + [1.0] * 28), {}, "south: bmi is not a finite number in 2 of 30 rows"),
    "three labels": (lambda: changed(death=2.0), {}, "the response death has 3 different values over all sites"),
    "a text for a number": (
        lambda: changed("both", cost="much"),
        {"formula": "cost ~ age", "family": "gaussian"},
        "north: the response cost is text",
    ),
    "a negative count": (lambda: changed(death=-1.0), {"family": "poisson"}, "south: the response death is negative in 30 of 30 rows"),
    "a negative weight": (lambda: changed("both", w=-1.0), {"weights": "w"}, "north: the weight w is negative in 60 of 60 rows"),
    "no such weight": (tables, {"weights": "w"}, "north: there is no column w"),
    "no such offset": (tables, {"offset": "o"}, "north: there is no column o"),
    "no such level": (tables, {"reference": {"sex": "x"}}, "reference of sex: 'x' is a level at no site. Its levels are f, m"),
    "one name twice": (lambda: {1: tables()["north"], "1": tables()["south"]}, {}, "two sites are called 1"),
    "no site": (dict, {}, "no site: a table is needed"),
    "no names": (lambda: list(tables().values()), {}, "a dict of data frames by name"),
    "no formula": (tables, {"formula": None}, "data frames need a formula"),
    "another family": (tables, {"family": "gamma"}, "family must be one of gaussian, binomial"),
    "another family, of text": (lambda: changed("both", death="yes"), {"family": "logistic"}, "family must be one of gaussian, binomial"),
    "another covariance": (tables, {"covariance": "HC9"}, "covariance must be one of model, HC0"),
    "one cluster": (lambda: {"north": tables()["north"]}, {"covariance": "site"}, "needs two sites at least"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_refused_in_a_sentence(what):
    sites, options, words = REFUSED[what]
    with pytest.raises((fh.InvalidData, fh.InvalidConfig), match=words) as caught:
        fitted(sites(), **options)
    assert str(SECRET) not in str(caught.value)


# ── fitted all the same, and said ─────────────────────────────────────────────────────────────────────────────────────────────

SAID = {
    "a site of one class": (lambda: changed(death=1.0), r"death is the same in all rows at south; no harm is done"),
    "a site without a level": (lambda: changed(sex="f"), r"C\(sex\): not all levels occur at south"),
    "a site of few rows": (lambda: tables() | {"south": tables()["south"][:2]}, r"fewer rows than coefficients \(4\) at south"),
    "a constant column at a site": (lambda: changed(bmi=7.0), r"bmi is the same in all rows at south; no harm is done"),
    "a gap": (lambda: changed(bmi=[np.nan] + [25.0, 26.0] * 14 + [27.0]), r"south: 1 of 30 rows were dropped.*bmi in 1"),
}


@pytest.mark.parametrize("what", SAID)
def test_what_one_site_alone_could_not_fit_is_fitted_and_said(what):
    sites, words = SAID[what]
    fit = fitted(sites())
    assert fit.status is fh.Status.SOLVED
    assert any(re.search(words, note) for note in fit.notes), fit.notes
    everyone = fitted({"everyone": pd.concat(sites().values())})
    np.testing.assert_allclose(fit.params, everyone.params, rtol=1e-9)
    np.testing.assert_allclose(fit.bse, everyone.bse, rtol=1e-9)


# ── no answer, and why ────────────────────────────────────────────────────────────────────────────────────────────────────────


def by_age(found):
    return {name: frame.assign(death=(frame["age"] > 60.0).astype(float)) for name, frame in found.items()}


def by_sex(found):
    return {name: frame.assign(death=np.where(frame["sex"] == "m", 1.0, frame["death"])) for name, frame in found.items()}


def twice(found):
    return {name: frame.assign(years=0.1 * frame["age"]) for name, frame in found.items()}


def thrice(found):
    return {name: frame.assign(sum=frame["age"] + 2.0 * frame["bmi"]) for name, frame in found.items()}


ENDLESS, SINGULAR = fh.Status.NO_MINIMISER, fh.Status.ILL_CONDITIONED
CERTAIN = "death is told for certain, in some rows or all, by"
UNDETERMINED = {
    "separable data": (lambda: by_age(tables()), FORMULA, ENDLESS, f"{CERTAIN} age:"),
    "a level that tells": (lambda: by_sex(tables()), FORMULA, ENDLESS, f"{CERTAIN} C(sex)[T.m]:"),
    "one value everywhere": (lambda: changed("both", death=1.0), FORMULA, ENDLESS, "death has one value only, at all sites"),
    "a constant column": (lambda: changed("both", bmi=7.0), FORMULA, SINGULAR, "bmi: has the same value in all rows of all sites."),
    "a column twice": (lambda: twice(tables()), "death ~ age + years + bmi", SINGULAR, "age, years: these columns are tied"),
    "a sum of columns": (lambda: thrice(tables()), "death ~ age + C(sex) + bmi + sum", SINGULAR, "age, bmi, sum: these columns are tied"),
}


@pytest.mark.parametrize("what", UNDETERMINED)
def test_what_data_do_not_determine_is_named_with_its_columns(what):
    sites, formula, status, words = UNDETERMINED[what]
    fit = fitted(sites(), formula)
    assert fit.status is status
    assert fit.notes[0].startswith(words)
    assert "eave" in fit.notes[0] or "nothing to explain" in fit.notes[0]  # what to do
    assert fit.covariance is None
    assert "did not come to its end" in fit.why_no_errors
    assert words[:30] in fit.summary()
    assert np.all(np.isfinite(fit.x))
    if what != "one value everywhere":  # there the intercept grows, which is never penalised
        assert fitted(sites(), formula, reg=0.1).status is fh.Status.SOLVED


def test_as_many_coefficients_as_rows_leave_nothing_to_estimate_errors_from():
    few = {name: frame[:2] for name, frame in tables().items()}
    fit = fitted(few, "cost ~ age + bmi + death", family="gaussian")
    assert fit.covariance is None
    assert "no more rows than coefficients" in fit.why_no_errors
    assert fit.bse.isna().all()


def test_sites_come_in_any_order():
    sites = tables()
    one, other = fitted(sites), fitted(dict(reversed(sites.items())))
    np.testing.assert_allclose(one.x, other.x, rtol=1e-13)


# ── arrays ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": ["age"]}, "columns must be 2 different names"),
        ({"columns": ["age", "age"]}, "columns must be 2 different names"),
        ({"columns": ["Intercept", "age"]}, "none of them Intercept"),
        ({"weights": "w"}, "weights, offset and reference name columns"),
        ({"family": "multinomial", "reg": 0.1}, "fitted without a penalty here"),
        ({"min_rows": 0.5}, "min_rows"),
        ({"folmula": "y ~ x"}, "Did you mean formula"),
    ],
)
def test_options_that_do_not_go_with_arrays_are_refused_before_the_fit(options, words):
    sites = {name: (frame[["age", "bmi"]].to_numpy(), frame["death"].to_numpy()) for name, frame in tables().items()}
    with pytest.raises(fh.InvalidConfig, match=words):
        fh.fit(sites, **options, callbacks=[Never()])


class Never(fh.Callback):
    def begin(self, about):
        pytest.fail("the fit has begun")


@pytest.mark.parametrize("transport", [fh.Serial, fh.absent(rate=0.2, seed=3)], ids=["one at a time", "some are away"])
def test_wherever_sites_are_the_fit_is_the_same(transport):
    np.testing.assert_allclose(fitted(tables(), transport=transport).x, fitted(tables()).x, rtol=1e-10)


def test_sparse_tables_are_fitted_as_they_are():
    dense = {name: (frame[["age", "bmi"]].to_numpy(), frame["cost"].to_numpy()) for name, frame in tables().items()}
    sparse = {name: (scipy.sparse.csr_array(A), y) for name, (A, y) in dense.items()}
    for kind in ("model", "HC0", "HC3"):
        one, other = fh.fit(dense, covariance=kind), fh.fit(sparse, covariance=kind)
        np.testing.assert_allclose(one.x, other.x, rtol=1e-9)
        np.testing.assert_allclose(one.bse, other.bse, rtol=1e-9)
