"""Everything that a fit tells is what statsmodels tells of the pooled table."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from pooled_models import FAMILIES, FORMULA, VARIANTS, by_site, matrix, statsmodels_of, table

import fedhybrid as fh

CLOSE = {"rtol": 1e-8, "atol": 1e-10}
families = pytest.mark.parametrize("family", FAMILIES)
variants = pytest.mark.parametrize("variant", VARIANTS)


def fitted(frame, family, variant="plain", formula=FORMULA, **more):
    chosen = VARIANTS[variant]
    return fh.fit(by_site(frame), formula, family=family, weights=chosen.weights, counts=chosen.counts, offset=chosen.offset, **more)


def same(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours, float), np.asarray(theirs, float), **CLOSE)


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@families
@variants
def test_coefficients_errors_tests_and_intervals(family, variant):
    frame = table(family)
    fit, pooled = fitted(frame, family, variant), statsmodels_of(frame, family, VARIANTS[variant])
    assert fit.status is fh.Status.SOLVED
    assert fit.converged
    assert list(fit.params.index) == ["Intercept", "age", "C(sex)[T.m]", "bmi"]
    same(fit.params, pooled.params)
    same(fit.bse, pooled.bse)
    same(fit.cov, pooled.cov_params())
    same(fit.tvalues, pooled.tvalues)
    same(fit.pvalues, pooled.pvalues)
    same(fit.conf_int(), pooled.conf_int())
    same(fit.conf_int(0.8), pooled.conf_int(0.2))
    assert fit.tvalues.name == ("t" if family == "gaussian" else "z")


@families
@variants
def test_deviance_likelihood_and_what_follows_from_them(family, variant):
    frame, chosen = table(family), VARIANTS[variant]
    fit, pooled = fitted(frame, family, variant), statsmodels_of(frame, family, chosen)
    for name in ("deviance", "null_deviance", "df_model", "df_resid", "llf", "aic"):
        same(getattr(fit, name), getattr(pooled, name))
    same(fit.bic, pooled.bic_llf)
    same(fit.dispersion, pooled.scale)
    same(fit.pearson, pooled.pearson_chi2)
    same(fit.nobs, frame["k"].sum() if chosen.counts else len(frame))
    same(fit.df_null, fit.nobs - 1)
    alone = statsmodels_of(frame, family, chosen, columns=slice(1)).llf  # of a gaussian model at a dispersion of its own
    same(fit.llnull, alone)
    same(fit.pseudo_rsquared, 1.0 - fit.llf / alone)
    same(fit.rsquared, 1.0 - pooled.deviance / pooled.null_deviance)


@pytest.mark.parametrize("weights", [None, "w"])
def test_a_gaussian_model_is_least_squares(weights):
    frame = table("gaussian")
    w = np.ones(len(frame)) if weights is None else frame[weights].to_numpy()
    pooled = sm.WLS(frame["y"].to_numpy(), matrix(frame), weights=w).fit()
    fit = fitted(frame, "gaussian", "plain" if weights is None else "prior weights")
    for name in ("llf", "aic", "bic", "rsquared", "df_resid"):
        same(getattr(fit, name), getattr(pooled, name))
    same(fit.dispersion, pooled.mse_resid)


@pytest.mark.parametrize(("family", "model"), [("binomial", sm.Logit), ("poisson", sm.Poisson)])
def test_the_discrete_models_of_statsmodels_agree_too(family, model):
    frame = table(family)
    pooled = model(frame["y"].to_numpy(), matrix(frame)).fit(disp=0, method="newton", tol=1e-14, maxiter=100)
    fit = fitted(frame, family)
    for name in ("params", "bse", "llf", "llnull", "aic", "bic"):
        same(getattr(fit, name), getattr(pooled, name))
    same(fit.pseudo_rsquared, pooled.prsquared)


def test_a_model_without_an_intercept_and_one_of_nothing_else():
    frame = table("gaussian")
    X = matrix(frame)[:, [1, 3]]
    fit, pooled = fitted(frame, "gaussian", formula="y ~ age + bmi - 1"), sm.OLS(frame["y"].to_numpy(), X).fit()
    same(fit.params, pooled.params)
    same(fit.bse, pooled.bse)
    same(fit.rsquared, pooled.rsquared)  # of the sum of squares about 0
    same([fit.df_null, fit.df_model, fit.df_resid], [len(frame), 2, len(frame) - 2])
    alone = fitted(frame, "gaussian", formula="y ~ 1")
    same(alone.params, [frame["y"].mean()])
    same(alone.bse, [frame["y"].std() / np.sqrt(len(frame))])
    same(alone.deviance, alone.null_deviance)


def test_several_classes_are_statsmodels_multinomial_logit():
    frame = table("gaussian", rows=240)
    frame["y"] = pd.cut(frame["y"], 3, labels=["a", "b", "c"]).astype(str)
    codes = pd.Categorical(frame["y"]).codes
    pooled = sm.MNLogit(codes, matrix(frame)).fit(disp=0, method="newton", tol=1e-14, maxiter=200)
    fit = fh.fit(by_site(frame), FORMULA, family="multinomial")
    assert fit.classes == ("a", "b", "c")
    assert list(fit.params.index[:2]) == ["Intercept[b]", "Intercept[c]"]
    same(fit.params, np.asarray(pooled.params).reshape(-1))
    same(fit.bse, np.asarray(pooled.bse).reshape(-1))
    same(fit.pvalues, np.asarray(pooled.pvalues).reshape(-1))
    for name in ("llf", "llnull", "aic", "bic", "df_resid"):
        same(getattr(fit, name), getattr(pooled, name))
    same(fit.predict(frame), pooled.predict(matrix(frame)))


# ── other standard errors ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("variant", ["plain", "prior weights"])
@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_robust_errors_of_least_squares(kind, variant):
    frame = table("gaussian")
    w = frame["w"].to_numpy() if VARIANTS[variant].weights else np.ones(len(frame))
    pooled = sm.WLS(frame["y"].to_numpy(), matrix(frame), weights=w).fit(cov_type=kind, use_t=True)
    fit = fitted(frame, "gaussian", variant, covariance=kind)
    same(fit.cov, pooled.cov_params())
    same(fit.pvalues, pooled.pvalues)
    same(fit.conf_int(), pooled.conf_int())


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("variant", ["plain", "prior weights", "offset"])
def test_robust_errors_of_other_families(family, variant):
    """statsmodels has HC0 for them; HC1 to HC3 are that with their factors, here from the definition."""
    frame, chosen = table(family), VARIANTS[variant]
    pooled = statsmodels_of(frame, family, chosen, cov_type="HC0")
    same(fitted(frame, family, variant, covariance="HC0").cov, pooled.cov_params())

    X, mean = matrix(frame), np.asarray(pooled.fittedvalues)
    w = frame[chosen.weights].to_numpy() if chosen.weights else np.ones(len(frame))
    v = w * (mean * (1.0 - mean) if family == "binomial" else mean)
    inverse = np.linalg.inv(X.T @ (v[:, None] * X))
    h = v * np.sum((X @ inverse) * X, axis=1)
    scores = w * (frame["y"].to_numpy() - mean)
    n, q = X.shape
    for kind, squares in {"HC1": scores**2 * n / (n - q), "HC2": scores**2 / (1.0 - h), "HC3": scores**2 / (1.0 - h) ** 2}.items():
        same(fitted(frame, family, variant, covariance=kind).cov, inverse @ (X.T @ (squares[:, None] * X)) @ inverse)


@families
@pytest.mark.parametrize("variant", ["plain", "prior weights", "offset"])
@pytest.mark.filterwarnings("ignore:cov_type not fully supported with var_weights")  # it says so of every kind but HC; its sums are right
def test_errors_by_clusters_with_the_small_sample_correction(family, variant):
    frame = table(family)
    clusters = {"groups": pd.factorize(frame["site"])[0], "use_correction": True}
    pooled = statsmodels_of(frame, family, VARIANTS[variant], cov_type="cluster", cov_kwds=clusters)
    fit = fitted(frame, family, variant, covariance="site")
    same(fit.cov, pooled.cov_params())
    same(fit.pvalues, pooled.pvalues)
    same(fit.conf_int(), pooled.conf_int())  # of a gaussian model with t of as many degrees of freedom as sites, less one
    if family == "gaussian":
        assert fit.df_inference == frame["site"].nunique() - 1


@families
@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC3", "site"])
def test_counted_weights_are_rows_again_and_again(family, kind):
    frame = table(family)
    repeated = frame.loc[frame.index.repeat(frame["k"].astype(int))]
    counted, plain = fitted(frame, family, "counted weights", covariance=kind), fitted(repeated, family, covariance=kind)
    same(counted.params, plain.params)
    same(counted.cov, plain.cov)
    same(counted.pvalues, plain.pvalues)
    same([counted.llf, counted.bic, counted.null_deviance], [plain.llf, plain.bic, plain.null_deviance])


def test_a_penalised_fit_has_no_errors_and_says_why():
    fit = fitted(table("binomial"), "binomial", reg=0.1)
    assert fit.covariance is None
    assert fit.bse.isna().all()
    assert fit.pvalues.isna().all()
    assert "penalised" in fit.why_no_errors
    assert "No standard errors. The fit is penalised" in fit.summary()
    assert fit.heterogeneity is None
    with pytest.raises(fh.InvalidConfig, match=r"no standard errors.*penalised"):
        fit.wald("age")


# ── tests of several coefficients ─────────────────────────────────────────────────────────────────────────────────────────────


@families
@pytest.mark.parametrize("kind", ["model", "HC0"])
def test_wald_tests_of_names_terms_and_combinations(family, kind):
    frame = table(family)
    pooled = statsmodels_of(frame, family, VARIANTS["plain"], **({} if kind == "model" else {"cov_type": kind}))
    fit = fitted(frame, family, covariance=kind)
    combinations = np.array([[0.0, 1.0, 0.0, -1.0], [0.0, 0.0, 1.0, 0.0]])
    rows = np.eye(4)
    for asked, R, values in [
        ("bmi", rows[[3]], 0.0),
        ("C(sex)", rows[[2]], 0.1),
        (["age", "C(sex)"], rows[[1, 2]], 0.0),
        (combinations, combinations, [0.1, 0.2]),
    ]:
        ours = fit.wald(asked, values)
        theirs = pooled.wald_test((R, np.broadcast_to(values, len(R))), use_f=family == "gaussian", scalar=True)
        same(ours.statistic, theirs.statistic)
        same(ours.pvalue, theirs.pvalue)
        assert ours.df == len(R)


@families
@pytest.mark.parametrize("variant", ["plain", "prior weights and offset"])
def test_likelihood_ratio_tests_of_nested_models(family, variant):
    frame = table(family)
    large, small = fitted(frame, family, variant), fitted(frame, family, variant, formula="y ~ age")
    pooled = [statsmodels_of(frame, family, VARIANTS[variant], columns=columns) for columns in (slice(4), slice(2))]
    verdict = large.lr_test(small)
    same(verdict.statistic, 2.0 * (pooled[0].llf - pooled[1].llf))
    assert verdict.df == 2
    if family == "gaussian" and variant == "plain":
        same(verdict, [*(lambda r: (r[0], r[2], np.inf, r[1]))(_ols(frame, 4).compare_lr_test(_ols(frame, 2)))])


def _ols(frame, columns):
    return sm.OLS(frame["y"].to_numpy(), matrix(frame)[:, :columns]).fit()


def test_tests_that_make_no_sense_are_refused():
    frame = table("gaussian")
    large, small = fitted(frame, "gaussian"), fitted(frame, "gaussian", formula="y ~ age")
    for smaller, words in [
        (large, "some of this one's coefficients"),
        (fitted(frame.iloc[5:], "gaussian", formula="y ~ age"), "the same rows"),
        (fitted(frame, "gaussian", formula="y ~ age", reg=0.1), "penalised"),
        (3, "of one family"),
    ]:
        with pytest.raises(fh.InvalidConfig, match=words):
            large.lr_test(smaller)
    with pytest.raises(fh.InvalidConfig, match="no coefficient or term 'height'"):
        small.wald("height")
    with pytest.raises(fh.InvalidConfig, match="follow from the others"):
        small.wald(np.ones((2, 2)))
    with pytest.raises(fh.InvalidConfig, match="a matrix with 2 columns"):
        small.wald(np.ones((2, 3)))


# ── prediction ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@families
@pytest.mark.parametrize("variant", ["plain", "offset"])
def test_predictions_and_their_intervals(family, variant):
    frame, new = table(family), table(family, rows=20, seed=1)
    chosen = VARIANTS[variant]
    fit, pooled = fitted(frame, family, variant), statsmodels_of(frame, family, chosen)
    options = {"offset": new[chosen.offset].to_numpy()} if chosen.offset else {}
    theirs = pooled.get_prediction(matrix(new), **options).summary_frame(alpha=0.1)
    same(fit.predict(new), theirs["mean"])
    ours = fit.predict(new, interval="confidence", level=0.9)
    same(ours, theirs[["mean", "mean_se", "mean_ci_lower", "mean_ci_upper"]])


def test_an_interval_for_a_new_response_is_wider():
    frame, new = table("gaussian"), table("gaussian", rows=20, seed=1)
    theirs = sm.OLS(frame["y"].to_numpy(), matrix(frame)).fit().get_prediction(matrix(new)).summary_frame(alpha=0.05)
    ours = fitted(frame, "gaussian").predict(new, interval="prediction")
    same(ours, theirs[["mean", "mean_se", "obs_ci_lower", "obs_ci_upper"]])


def test_a_new_row_with_a_gap_has_no_prediction():
    frame, new = table("binomial"), table("binomial", rows=5, seed=1)
    new.loc[2, "bmi"] = np.nan
    found = fitted(frame, "binomial").predict(new, interval="confidence")
    assert found.isna().all(axis=1).tolist() == [False, False, True, False, False]


def test_predictions_that_make_no_sense_are_refused():
    frame = table("binomial")
    fit = fitted(frame, "binomial")
    for options, words in [
        ({"interval": "prediction"}, "for gaussian models"),
        ({"interval": "both"}, "'confidence' or 'prediction'"),
        ({"interval": "confidence", "level": 1.0}, "between 0 and 1"),
        ({"offset": [1.0]}, "one entry per row"),
    ]:
        with pytest.raises(fh.InvalidConfig, match=words):
            fit.predict(frame, **options)
    with pytest.raises(fh.InvalidData, match="there is no column age"):
        fit.predict(frame.drop(columns="age"))


def test_ratios_are_exponentials_and_only_where_they_mean_something():
    fit = fitted(table("poisson"), "poisson")
    same(fit.ratios, np.exp(np.column_stack([fit.params, fit.conf_int()])))
    assert fit.ratios.columns[0] == "rate ratio"
    with pytest.raises(fh.InvalidConfig, match="means nothing in a gaussian model"):
        _ = fitted(table("gaussian"), "gaussian").ratios
