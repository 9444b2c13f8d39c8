"""Standardisation is a change of variables: nothing but the coordinates is another, and the answer comes back to the data's units."""

import numpy as np
import pytest
import scipy.sparse
from reference.pooled import least_squares_exact
from samples import sample

import fedhybrid as fh
from fedhybrid.scaling import moments

UNITS = np.array([1e6, 1e-5, 3.0, 1e-2])  # of the columns
FAR = np.array([5e6, -3e-5, 0.0, 0.4])  # where they lie


def in_units(it):
    """The sample with columns of very different units, and far from 0."""

    def changed(site):
        A = site[0]
        moved = scipy.sparse.csr_array(A.multiply(UNITS)) if scipy.sparse.issparse(A) else A * UNITS + FAR
        return (moved, *site[1:])

    def plain(site):
        A, *rest = changed(site)
        A = A.toarray() if scipy.sparse.issparse(A) else A
        return (np.column_stack([A, np.ones(len(A))]) if it.intercept else A, *rest)

    return it._replace(sites=[changed(site) for site in it.sites], plain_sites=[plain(site) for site in it.sites])


def dense_tables(fleet):
    """Every site's rows in full, the intercept's ones included."""
    tables = [site.A.toarray() if scipy.sparse.issparse(site.A) else site.A for site in fleet.sites]
    return [np.hstack([A, np.ones((len(A), 1))]) if fleet.intercept else A for A in tables]


def predictions(fleet, x):
    if not fleet.K:
        return np.concatenate([A @ x for A in dense_tables(fleet)])
    full = np.zeros(fleet.p * fleet.K)
    free = np.ones((fleet.p, fleet.K), bool)
    free[list(fleet.pinned), 0] = False
    full[free.reshape(-1)] = x
    z = np.concatenate([A @ full.reshape(fleet.p, fleet.K) for A in dense_tables(fleet)])
    return z - z[:, :1]  # all that softmax sees


VARIANTS = {
    "dense": {},
    "intercept": {"intercept": True},
    "sparse": {"sparse": True},
    "sparse, intercept": {"sparse": True, "intercept": True},
    "no penalty": {"intercept": True, "reg": 0.0},
    "penalty by column": {"intercept": True, "reg": np.array([0.3, 0.0, 2.0, 0.1])},
}
cases = pytest.mark.parametrize("variant", VARIANTS)
losses = pytest.mark.parametrize("loss", ["squared", "softmax"])


def both(loss, variant, weighting="row"):
    fleet = in_units(sample(loss, **VARIANTS[variant])).fleet(weighting)
    return fleet, *fh.standardised(fleet)


@cases
@losses
def test_predictions_and_penalty_are_what_they_were(loss, variant):
    fleet, other, scaling = both(loss, variant)
    rng = np.random.default_rng(1)
    for _ in range(3):
        z = rng.normal(size=fleet.d)
        x = scaling.original(z)
        expected = predictions(fleet, x)
        size = 50.0 * np.abs(x).sum() + np.abs(expected).max()  # what rounding is relative to: x_c is of the size 1/UNITS[c]
        assert np.abs(predictions(other, z) - expected).max() <= 1e-13 * size
        assert 0.5 * other.reg @ z**2 == pytest.approx(0.5 * fleet.reg @ x**2, rel=1e-14)
        np.testing.assert_array_equal(other.reg == 0, fleet.reg == 0)


@cases
@losses
def test_there_and_back_again(loss, variant):
    fleet, _, scaling = both(loss, variant)
    rng = np.random.default_rng(2)
    z = rng.normal(size=(5, fleet.d))
    np.testing.assert_allclose(scaling.scaled(scaling.original(z)), z, rtol=1e-9, atol=1e-9)
    T, C = scaling.matrix, np.cov(rng.normal(size=(fleet.d, 40)))
    np.testing.assert_allclose(T @ z[0], scaling.original(z[0]), rtol=1e-12)
    np.testing.assert_allclose(scaling.covariance(C), T @ C @ T.T, rtol=1e-9, atol=1e-9 * np.abs(T @ C @ T.T).max())
    np.testing.assert_allclose(scaling.sizes, np.linalg.norm(T, axis=1), rtol=1e-13)
    assert np.linalg.norm(T, 2) <= scaling.bound(1.0) <= np.sqrt(2 * (fleet.K or 1)) * np.linalg.norm(T, 2)
    g = rng.normal(size=fleet.d)
    np.testing.assert_allclose(T.T @ scaling._transposed_inverse(g), g, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weighting", ["row", "client"])
@cases
def test_columns_end_up_alike(variant, weighting):
    """The Hessian of squared loss has a diagonal between 1/2 and 2, and columns that may be moved lie about 0."""
    fleet, other, scaling = both("squared", variant, weighting)
    v = np.concatenate([other.row_weights(i) for i in range(other.n)])
    A = np.concatenate(dense_tables(other))[:, :4]
    diagonal = v @ A**2 + other.reg[:4]
    assert (diagonal >= 0.5).all()
    assert (diagonal <= 2.0).all()
    assert scaling.centred == (fleet.intercept and "sparse" not in variant)
    if scaling.centred:
        assert np.abs(v @ A).max() <= 1e-12
    else:
        assert all(scipy.sparse.issparse(site.A) for site in other.sites) == ("sparse" in variant)
    np.testing.assert_array_equal(np.log2(scaling.scale), np.rint(np.log2(scaling.scale)))


def test_a_penalised_intercept_is_not_moved():
    it = in_units(sample("logistic", intercept=True))
    fleet = fh.Fleet(it.sites, loss=fh.logistic, reg=[0.1] * 5, intercept=True)
    other, scaling = fh.standardised(fleet)
    assert not scaling.centred
    np.testing.assert_array_equal(other.reg, [*(0.1 / scaling.scale[:4] ** 2), 0.1])


def test_a_site_sends_sums_and_the_way_rows_are_dealt_does_not_matter():
    rng = np.random.default_rng(3)
    A, y = rng.normal(size=(60, 3)) * [1, 50, 1e-3] + [0, 1e4, 1], rng.normal(size=60)
    sent = moments(fh.Fleet([(A, y)], loss=fh.squared).sites[0], np.full(60, 1 / 60), np.zeros(3))
    assert (np.ndim(sent.weight), sent.first.shape, sent.second.shape) == (0, (3,), (3,))
    scalings = []
    for cuts in ([], [1], [10, 20, 59]):
        sites = [(A[part], y[part]) for part in np.split(np.arange(60), cuts)]
        scalings += [fh.standardised(fh.Fleet(given, loss=fh.squared, intercept=True))[1] for given in (sites, sites[::-1])]
    for scaling in scalings:
        np.testing.assert_array_equal(scaling.scale, scalings[0].scale)
        np.testing.assert_allclose(scaling.centre, scalings[0].centre, rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(scalings[-1].centre, scalings[-2].centre)


def test_columns_of_any_units_give_the_same_answer():
    """Raw, the same data are told to be ill-conditioned, or at least not proved; never called solved."""
    it = sample("squared", sizes=(9, 14, 30), d=4, reg=0.0, intercept=True)
    truth = least_squares_exact(it.plain_sites, 0.0)
    for exponents in ([8, -8, 0, 3], [-8, -8, 8, 8], [0, 4, -6, 7]):
        units = 2.0 ** np.round(np.log2(10.0) * np.array(exponents))
        fleet = fh.Fleet([(A * units, *rest) for A, *rest in it.sites], loss=fh.squared, intercept=True)
        other, scaling = fh.standardised(fleet)
        found = scaling.result(fh.solve(other, tol=1e-12))
        assert found.status is fh.Status.SOLVED
        np.testing.assert_allclose(found.x[:4] * units, truth[:4], rtol=1e-10)
        assert found.x[4] == pytest.approx(truth[4], rel=1e-10)
        raw = fh.solve(fleet, max_rounds=200)
        assert raw.status is not fh.Status.SOLVED or np.abs(raw.x * [*units, 1] - truth).max() <= 1e-6


@pytest.mark.parametrize("tol", [1e-3, 1e-10])
def test_bounds_are_told_in_the_units_of_the_data_and_hold(tol):
    it = in_units(sample("squared", sizes=(9, 14, 30), d=4, reg=0.0, intercept=True))
    truth = least_squares_exact(it.plain_sites)
    other, scaling = fh.standardised(it.fleet(update="newton"))
    found = scaling.result(fh.solve(other, tol=tol))
    off = np.abs(found.x - truth)
    assert (off <= found.error_bounds + 1e-15 * np.abs(truth)).all()
    assert np.linalg.norm(off) <= found.error_bound
    assert (found.error_bounds <= tol * 1e3 * np.maximum(np.abs(truth), 1.0)).all()
    assert any("in the units of the data" in note for note in found.notes)
    np.testing.assert_allclose(found.trace.x0[-1], found.x, atol=1e-6 * np.abs(found.x).max())


def test_a_result_of_softmax_comes_back_with_the_intercept_of_class_0_at_0():
    it = in_units(sample("softmax", sizes=(9, 14, 30), d=4, reg=UNITS**2 * [0.3, 0.0, 2.0, 0.1], intercept=True))
    fleet = it.fleet(update="newton")
    other, scaling = fh.standardised(fleet)
    found = scaling.result(fh.solve(other, tol=1e-10))
    assert found.status is fh.Status.SOLVED
    gradient = sum(client.grad(found.x) for client in it.oracle())
    assert np.abs(scaling.matrix.T @ gradient).max() <= 1e-8


def test_a_constant_column_is_named_and_left_to_the_intercept():
    rng = np.random.default_rng(4)
    A, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    A[:, 1] = 0.1 + 0.2
    other, scaling = fh.standardised(fh.Fleet([(A[:7], y[:7]), (A[7:], y[7:])], loss=fh.squared, intercept=True))
    assert scaling.constant == (1,)
    assert any("constant at all sites" in note and "column 1" in note for note in other.notes)
    found = scaling.result(fh.solve(other))
    assert found.status is fh.Status.ILL_CONDITIONED
    assert found.x[1] == 0.0
    plain = least_squares_exact([(np.column_stack([A[:, [0, 2]], np.ones(40)]), y)])
    np.testing.assert_allclose(found.x[[0, 2, 3]], plain, atol=1e-8)


def test_data_that_no_scale_can_hold_stay_finite():
    rng = np.random.default_rng(5)
    A = rng.normal(size=(12, 3)) * [1e149, 1e-140, 1.0]
    fleet = fh.Fleet([(A[:5], A[:5, 2]), (A[5:], A[5:, 2])], loss=fh.squared, reg=[0.0, 0.0, 1e-3], intercept=True)
    other, scaling = fh.standardised(fleet)
    assert all(np.isfinite(site.A).all() and np.abs(site.A).max() < 10 for site in other.sites)
    assert np.isfinite(scaling.matrix).all()


def test_a_loss_of_the_whole_x_is_refused():
    whole = fh.custom(lambda x, a, y: (x @ a - y) ** 2, d=2)
    with pytest.raises(fh.InvalidConfig, match="no linear prediction"):
        fh.standardised(fh.Fleet([(np.ones((3, 2)), np.ones(3))], loss=whole))
    with pytest.raises(fh.InvalidConfig, match="must be a fedhybrid"):
        fh.standardised([(np.ones((3, 2)), np.ones(3))])
