"""scikit-learn's front: the pooled table's coefficients whatever the split, and everything that scikit-learn does with an estimator."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn
from reference.robust import huber_with_scale
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import d2_tweedie_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import fedhybrid as fh

ESTIMATORS = [
    fh.FederatedLinearRegression,
    fh.FederatedRidge,
    fh.FederatedLogisticRegression,
    fh.FederatedPoissonRegressor,
    fh.FederatedHuberRegressor,
]
every = pytest.mark.parametrize("Estimator", ESTIMATORS, ids=lambda Estimator: Estimator.__name__)

# ── what scikit-learn asks of an estimator ────────────────────────────────────────────────────────────────────────────────────

QUICK = (fh.FederatedLinearRegression, fh.FederatedRidge)
NOT_RUN = {"check_array_api_input": "arrays of other libraries than NumPy need SCIPY_ARRAY_API=1 when Python starts"}


@pytest.mark.parametrize("Estimator", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in ESTIMATORS])
def test_all_of_scikit_learns_own_checks_pass(Estimator):
    ran = 0
    for estimator, check in estimator_checks_generator(Estimator()):
        name = getattr(check, "func", check).__name__
        if name in NOT_RUN:
            continue
        check(estimator)
        ran += 1
    assert ran >= 55


# ── the pooled table's coefficients ───────────────────────────────────────────────────────────────────────────────────────────

UNITS, FAR = np.array([1.0, 10.0, 0.1, 3.0, 50.0]), np.array([0.0, 5.0, 1.0, 0.0, 200.0])


def table(seed=0, N=240, classes=3):
    """Rows of columns in different units, and responses of every kind."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(N, 5))
    eta = Z @ [0.5, -0.8, 0.3, 0.9, 0.2] + 0.3
    real = 3.0 * eta + rng.standard_t(2, size=N)
    responses = {
        "real": real,
        "count": rng.poisson(np.exp(0.5 * eta)),
        "two": np.where(eta + rng.logistic(size=N) > 0, "yes", "no"),
        "several": np.digitize(real, np.quantile(real, np.arange(1, classes) / classes)) + 5,
    }
    return Z * UNITS + FAR, responses, rng.uniform(0.5, 2.0, N)


def standard(X):
    """For oracles that lose digits to units: the same columns about 0 and of one size, and the way back."""
    return (X - X.mean(axis=0)) / X.std(axis=0), X.mean(axis=0), X.std(axis=0)


def by_normal_equations(X, y, w, alpha):
    """argmin Σ w(y − Xc − b)² + α‖c‖², by a QR factorisation of the standardised table with the penalty as further rows."""
    Z, mean, scale = standard(X)
    A = np.column_stack([Z, np.ones(len(Z))]) * np.sqrt(w)[:, None]
    penalty = np.column_stack([np.diag(np.sqrt(alpha) / scale), np.zeros(len(scale))])
    x = np.linalg.lstsq(np.vstack([A, penalty]), np.concatenate([np.sqrt(w) * y, np.zeros(len(scale))]), rcond=None)[0]
    coef = x[:-1] / scale
    return coef, x[-1] - coef @ mean


def pooled(Estimator, X, responses, w):
    """The estimator, its response, and (coef, intercept) of the pooled table by other means."""
    if Estimator is fh.FederatedLinearRegression:
        return Estimator(), responses["real"], by_normal_equations(X, responses["real"], w, 0.0)
    if Estimator is fh.FederatedRidge:
        return Estimator(alpha=30.0), responses["real"], by_normal_equations(X, responses["real"], w, 30.0)
    if Estimator is fh.FederatedHuberRegressor:
        coef, intercept, _ = huber_with_scale(X, responses["real"], w, epsilon=1.35, alpha=5.0)
        return Estimator(alpha=5.0), responses["real"], (coef, intercept)
    if Estimator is fh.FederatedPoissonRegressor:
        oracle = PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12, max_iter=1000)
        fitted = oracle.fit(X, responses["count"], sample_weight=w)
        return Estimator(alpha=0.1), responses["count"], (fitted.coef_, fitted.intercept_)
    raise AssertionError(Estimator)


def close(found, expected, tol=1e-8):
    assert np.abs(found - expected).max() <= tol * np.abs(expected).max()


def splits(N):
    """One site; and four of unequal size."""
    yield None
    yield np.random.default_rng(1).choice(["north", "east", "south", "west"], N, p=[0.6, 0.25, 0.1, 0.05])


@pytest.mark.parametrize("Estimator", [each for each in ESTIMATORS if each is not fh.FederatedLogisticRegression])
def test_any_split_gives_the_coefficients_of_the_pooled_table(Estimator):
    X, responses, w = table()
    estimator, y, (coef, intercept) = pooled(Estimator, X, responses, w)
    for sites in splits(len(y)):
        found = clone(estimator).fit(X, y, sites=sites, sample_weight=w)
        assert found.result_.status in (fh.Status.SOLVED, fh.Status.SOLVED_INACCURATE)
        close(found.coef_, coef)
        assert found.intercept_ == pytest.approx(intercept, rel=1e-8)
        assert len(found.result_.names) == (1 if sites is None else len(set(sites)))


@pytest.mark.parametrize("kind", ["two", "several"])
@pytest.mark.parametrize("C", [0.3, np.inf])
def test_logistic_regression_of_any_split_is_the_pooled_one(kind, C):
    X, responses, w = table()
    X, y = (X - FAR) / UNITS, responses[kind]  # scikit-learn's own solver needs columns of one size for its last digits
    oracle = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(X, y, sample_weight=w)
    coef, intercept = oracle.coef_ - oracle.coef_.mean(axis=0) * (kind == "several"), oracle.intercept_
    for sites in (*splits(len(y)), y):  # the last: every site has seen one class
        found = fh.FederatedLogisticRegression(C=C).fit(X, y, sites=sites, sample_weight=w)
        close(found.coef_, coef)
        close(found.intercept_, intercept - intercept.mean() * (kind == "several"))
        np.testing.assert_array_equal(found.classes_, oracle.classes_)
        np.testing.assert_array_equal(found.predict(X), oracle.predict(X))
        np.testing.assert_allclose(found.predict_proba(X), oracle.predict_proba(X), rtol=1e-7)
        np.testing.assert_allclose(found.predict_log_proba(X), oracle.predict_log_proba(X), rtol=1e-7)
        scores = oracle.decision_function(X)
        close(found.decision_function(X), scores - scores.mean(axis=1, keepdims=True) if kind == "several" else scores)


def test_the_robust_scale_and_its_outliers_are_those_of_the_joint_problem():
    X, responses, w = table(seed=3)
    y = responses["real"]
    for epsilon, alpha, sites in ((1.35, 1e-4, None), (1.1, 20.0, np.arange(len(y)) % 4), (1.1, 0.0, np.arange(len(y)) % 4)):
        coef, intercept, scale = huber_with_scale(X, y, w, epsilon=epsilon, alpha=alpha)
        found = fh.FederatedHuberRegressor(epsilon=epsilon, alpha=alpha).fit(X, y, sites=sites, sample_weight=w)
        close(found.coef_, coef)
        assert found.scale_ == pytest.approx(scale, rel=1e-8)
        np.testing.assert_array_equal(found.outliers_, np.abs(y - X @ coef - intercept) > epsilon * scale)
        assert 0 < found.outliers_.sum() < len(y)
        assert found.result_.rounds == found.n_iter_
        assert "No bound is known" in found.result_.message


def test_rows_that_are_fitted_exactly_leave_no_scale_and_say_so():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 5))
    y = X @ [1.0, -2.0, 0.5, 3.0, 0.1] + 4.0
    y[:5] += 100.0
    found = fh.FederatedHuberRegressor(alpha=0.0).fit(X, y, sites=np.arange(60) % 4)
    np.testing.assert_allclose(found.coef_, [1.0, -2.0, 0.5, 3.0, 0.1], rtol=1e-6)
    assert found.scale_ < 1e-6 * y.std()
    assert np.flatnonzero(found.outliers_).tolist() == [0, 1, 2, 3, 4]
    assert any("fitted exactly" in note for note in found.result_.notes)


@pytest.mark.parametrize("intercept", [True, False])
def test_coefficients_that_columns_do_not_determine_are_those_of_least_norm(intercept):
    rng = np.random.default_rng(5)
    for N, p in ((12, 20), (40, 6)):
        X, y = rng.normal(size=(N, p)) * 10.0 ** rng.integers(-1, 2, p), rng.normal(size=N)
        if p < N:
            X[:, 3], X[:, 5] = 2.0 * X[:, 1] - X[:, 0], 7.0  # a combination, and a constant
        found = fh.FederatedLinearRegression(fit_intercept=intercept).fit(X, y, sites=np.arange(N) % 3)
        A, b = (X - X.mean(axis=0), y - y.mean()) if intercept else (X, y)
        close(found.coef_, np.linalg.pinv(A, rcond=1e-12) @ b)
        assert found.result_.status is fh.Status.ILL_CONDITIONED
        assert "least norm" in found.result_.message


@every
def test_standardisation_changes_no_answer(Estimator):
    X, responses, _ = table()
    y = responses[{fh.FederatedPoissonRegressor: "count", fh.FederatedLogisticRegression: "two"}.get(Estimator, "real")]
    X = (X - FAR) / UNITS
    with_it, without = (Estimator(standardise=standardise, fit_intercept=False).fit(X, y) for standardise in (True, False))
    close(with_it.coef_, without.coef_)
    assert np.all(with_it.intercept_ == 0.0)


@every
def test_sparse_rows_and_frames_give_what_arrays_give(Estimator):
    X, responses, _ = table()
    y = responses[{fh.FederatedPoissonRegressor: "count", fh.FederatedLogisticRegression: "two"}.get(Estimator, "real")]
    X = np.where(np.abs((X - FAR) / UNITS) > 1.0, (X - FAR) / UNITS, 0.0)
    sites = np.array(["a", "b", "c", "d"])[np.arange(len(y)) % 4]
    dense = Estimator().fit(X, y, sites=sites)
    sparse = Estimator().fit(scipy.sparse.csr_array(X), y, sites=sites)
    close(sparse.coef_, dense.coef_)
    predicted = [found.predict(rows) for found, rows in ((sparse, scipy.sparse.csr_array(X[:9])), (dense, X[:9]))]
    if y.dtype.kind == "U":
        np.testing.assert_array_equal(*predicted)
    else:
        np.testing.assert_allclose(*predicted, rtol=1e-8)
    frame = pd.DataFrame(X, columns=[f"column {c}" for c in range(5)])
    framed = Estimator().fit(frame, pd.Series(y), sites=pd.Series(sites))
    np.testing.assert_array_equal(framed.coef_, dense.coef_)
    assert framed.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        framed.predict(frame[frame.columns[::-1]])


# ── ways to say whose rows they are ───────────────────────────────────────────────────────────────────────────────────────────


def test_tables_by_site_are_the_same_as_a_column_of_names():
    X, responses, w = table()
    y, sites = responses["real"], np.array(["b", "a", "c", "d"])[np.arange(len(w)) % 4]
    one = fh.FederatedHuberRegressor().fit(X, y, sites=sites, sample_weight=w)
    parts = {name: (X[sites == name], y[sites == name], w[sites == name]) for name in ("b", "a", "c", "d")}
    for given in (parts, list(parts.values())):
        found = fh.FederatedHuberRegressor().fit(given, sites=list(parts) if isinstance(given, list) else None)
        np.testing.assert_array_equal(found.coef_, one.coef_)
        assert found.result_.names == ("b", "a", "c", "d")
        np.testing.assert_array_equal(found.outliers_, np.concatenate([one.outliers_[sites == name] for name in parts]))


def test_each_site_works_in_its_own_way():
    X, responses, _ = table()
    y, sites = responses["count"], np.array(["a", "b"])[np.arange(240) % 2]
    plain = fh.FederatedPoissonRegressor().fit(X, y, sites=sites)
    for update in ("gradient", ["gradient", "newton"], {"a": "diagonal", "b": "newton", "of another fold": "newton"}):
        close(fh.FederatedPoissonRegressor(update=update).fit(X, y, sites=sites).coef_, plain.coef_)
    with pytest.raises(fh.InvalidConfig, match="no entry for b"):
        fh.FederatedPoissonRegressor(update={"a": "newton"}).fit(X, y, sites=sites)


# ── scikit-learn's tools ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_search_over_a_pipeline_hands_on_the_sites():
    X, responses, _ = table()
    y, sites = responses["real"], np.arange(240) % 3
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(make_pipeline(StandardScaler(), fh.FederatedRidge()), {"federatedridge__alpha": [0.1, 100.0]}, cv=3)
        search.fit(X, y, sites=sites)
        weighted = make_pipeline(StandardScaler(), fh.FederatedRidge().set_fit_request(sample_weight=True))
        weighted.fit(X, y, sites=sites)
    assert search.best_estimator_[-1].result_.names == ("0", "1", "2")
    central = GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1, 100.0]}, cv=3).fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], central.cv_results_["mean_test_score"], rtol=1e-9)
    assert search.best_params_["federatedridge__alpha"] == central.best_params_["ridge__alpha"]


def test_without_routing_a_search_hands_on_the_sites_too():
    X, y = load_iris(return_X_y=True)
    asked = fh.FederatedLogisticRegression().set_fit_request(sites=True)
    search = GridSearchCV(asked, {"C": [0.1, 1.0]}, cv=3).fit(X, y, sites=np.arange(150) % 4)
    assert len(search.best_estimator_.result_.names) == 4
    assert not sklearn.get_config()["enable_metadata_routing"]
    assert cross_val_score(fh.FederatedLogisticRegression(), X, y, cv=3).mean() > 0.9


@every
def test_an_estimator_can_be_cloned_pickled_and_told_other_parameters(Estimator):
    X, responses, _ = table()
    y = responses[{fh.FederatedPoissonRegressor: "count", fh.FederatedLogisticRegression: "two"}.get(Estimator, "real")]
    estimator = Estimator(tol=1e-9).set_params(max_iter=5000, update="gradient")
    assert clone(estimator).get_params() == estimator.get_params()
    estimator.fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).predict(X), estimator.predict(X))  # our own bytes
    assert estimator.n_iter_ == estimator.result_.rounds > 0


def test_scores_are_scikit_learns():
    X, responses, w = table()
    y = responses["count"]
    found = fh.FederatedPoissonRegressor(alpha=0.1).fit(X, y)
    oracle = PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12).fit(X, y)
    assert found.score(X, y, sample_weight=w) == pytest.approx(oracle.score(X, y, sample_weight=w), rel=1e-9)
    assert found.score(X, y) == d2_tweedie_score(y, found.predict(X), power=1)
    linear = fh.FederatedLinearRegression().fit(X, responses["real"])
    assert linear.score(X, responses["real"]) == pytest.approx(LinearRegression().fit(X, responses["real"]).score(X, responses["real"]))


# ── what cannot be used ───────────────────────────────────────────────────────────────────────────────────────────────────────


def broken(entry):
    X, responses, _ = table(N=30)
    y, sites = responses["real"].copy(), np.array(["a", "b", "c"])[np.arange(30) % 3]
    if entry == "X":
        X[4, 2] = np.nan
    elif entry == "y":
        y[4] = np.inf
    return X, y, sites


@pytest.mark.parametrize(
    ("entry", "message"), [("X", "^b: NaN or infinite entries in A: 1, in column 2"), ("y", "^b: y has 1 of 10 entries that are NaN")]
)
def test_the_site_of_a_missing_entry_is_named(entry, message):
    X, y, sites = broken(entry)
    with pytest.raises(fh.InvalidData, match=message):
        fh.FederatedLinearRegression().fit(X, y, sites=sites)
    if entry == "y":
        with pytest.raises(fh.InvalidData, match=r"^b: y has 1 of 10 labels"):
            fh.FederatedLogisticRegression().fit(X, np.where(np.isfinite(y), y > 0, y), sites=sites)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sites": ["a"] * 29}, "29 entries for 30 rows"),
        ({"sites": ["a"] * 29 + [None]}, "1 entries that are missing"),
        ({"sites": [1] * 15 + ["1"] * 15}, "read the same"),
        ({"sites": ["a", "b"] * 15, "sample_weight": [-1.0] + [1.0] * 29}, "^a: sample_weight has 1 of 15"),
        ({"sample_weight": np.ones((30, 2))}, "one entry for each of 30 rows"),
        ({"sample_weight": np.zeros(30)}, "weights of all rows are zero"),
    ],
)
def test_sites_and_weights_that_cannot_be_used_are_refused(given, message):
    X, y, _ = broken("nothing")
    with pytest.raises(fh.InvalidData, match=message):
        fh.FederatedRidge().fit(X, y, **given)


def test_tables_by_site_that_cannot_be_used_name_the_site():
    X, y, _ = broken("nothing")
    fit = fh.FederatedRidge().fit
    for given, message in (
        ({"a": (X, y), "b": (X[:, :4], y)}, "^b: X has 4 features"),
        ({"a": (X, y), "b": (X, y[:-1])}, "^b: .*inconsistent numbers of samples"),
        ({"a": (X, y), "b": (X, y, -np.ones(30))}, "^b: sample_weight has 30 of 30"),
        ({"a": (X, y), "b": X}, "^b: a site is"),
    ):
        with pytest.raises(fh.InvalidData, match=message):
            fit(given)
    with pytest.raises(fh.InvalidConfig, match="carries the sites' names"):
        fit({"a": (X, y)}, sites=["b"])
    with pytest.raises(fh.InvalidConfig, match="weights are a third entry"):
        fit({"a": (X, y)}, sample_weight=np.ones(30))
    with pytest.raises(fh.InvalidConfig, match="2 tables need as many"):
        fit([(X, y), (X, y)], sites=["a", "a"])
    with pytest.raises(fh.InvalidData, match="requires y to be passed"):
        fit(X)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (fh.FederatedRidge(alpha=-1.0), "alpha must be a number"),
        (fh.FederatedLogisticRegression(C=0.0), "C must be a positive number"),
        (fh.FederatedHuberRegressor(epsilon=1.0), "epsilon must be more than 1"),
        (fh.FederatedRidge(fit_intercept="yes"), "fit_intercept must be True or False"),
        (fh.FederatedRidge(max_iter=0), "max_iter must be a positive whole number"),
        (fh.FederatedRidge(tol=0.0), "tol must be a positive number"),
        (fh.FederatedRidge(update="hessian"), "'hessian' is not known"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused_by_fit(estimator, message):
    X, y, _ = broken("nothing")
    with pytest.raises(fh.InvalidConfig, match=message):
        estimator.fit(X, y > 0)


def test_a_fit_that_does_not_come_to_its_end_warns_with_the_reason():
    X, responses, _ = table()
    with pytest.warns(ConvergenceWarning, match="FederatedPoissonRegressor: The limit on rounds was reached"):
        found = fh.FederatedPoissonRegressor(max_iter=2).fit(X, responses["count"])
    assert found.result_.status is fh.Status.MAX_ROUNDS
    with pytest.warns(ConvergenceWarning, match="there is no minimiser"):
        fh.FederatedLogisticRegression(C=np.inf).fit(X, X[:, 0] > 0)
    with pytest.warns(ConvergenceWarning, match="limit on rounds"):
        fh.FederatedHuberRegressor(max_iter=2).fit(X, responses["real"])
    with pytest.warns(DataConversionWarning):
        fh.FederatedRidge().fit(X, responses["real"][:, None])


def test_one_class_at_all_sites_together_is_nothing_to_tell_apart():
    X, _, _ = table(N=30)
    with pytest.raises(fh.InvalidData, match="all rows of all sites have one class"):
        fh.FederatedLogisticRegression().fit(X, np.ones(30), sites=np.arange(30) % 2)


def test_a_row_of_weight_zero_is_no_row():
    X, responses, w = table()
    X[0] *= 1e3  # its Poisson mean would overflow
    w[0] = 0.0
    y = responses["count"].astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fh.FederatedPoissonRegressor().fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(found.coef_, fh.FederatedPoissonRegressor().fit(X[1:], y[1:], sample_weight=w[1:]).coef_)


def test_what_was_given_stays_as_it_was():
    X, responses, w = table()
    y, sites = responses["real"], np.arange(240) % 4
    copies = [each.copy() for each in (X, y, w, sites)]
    fh.FederatedHuberRegressor().fit(X, y, sites=sites, sample_weight=w)
    for now, before in zip((X, y, w, sites), copies, strict=True):
        np.testing.assert_array_equal(now, before)
