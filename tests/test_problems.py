"""Every client's f: value, gradient, Hessian and Hessian–vector product against tests/reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import error, sample
from test_losses import all_derivatives

from fedhybrid import fleet as fleet_module
from fedhybrid.problem import GLM, Custom, Multinomial, Quadratic
from fedhybrid.rows import BLOCK, Dense, Sparse

SAMPLES = {
    "squared": lambda: sample("squared"),
    "squared, sparse, intercept": lambda: sample("squared", sparse=True, intercept=True, d=8),
    "logistic": lambda: sample("logistic"),
    "logistic, no weights, no offset": lambda: sample("logistic", weights=False, offset=False),
    "logistic, sparse": lambda: sample("logistic", sparse=True, d=8),
    "logistic, sparse, intercept, reg by column": lambda: sample("logistic", sparse=True, intercept=True, d=8, reg=np.arange(8) / 10),
    "poisson, intercept": lambda: sample("poisson", intercept=True),
    "huber": lambda: sample("huber"),
    "softmax": lambda: sample("softmax"),
    "softmax, reference class": lambda: sample("softmax", reg=0.0),
    "softmax, sparse, intercept, some reference": lambda: sample("softmax", sparse=True, intercept=True, d=8, reg=[0.2, 0.0] * 4),
}


def group(name):
    return pytest.param(name, marks=pytest.mark.xdist_group(f"problem {name}"))


def assert_derivatives(fleet, oracle):
    x, v = np.random.default_rng(1).normal(size=(2, fleet.d))
    value, grad, hess, hvp, hess_diag = all_derivatives(fleet, x, v)
    assert error(value, [f.value(x) for f in oracle]) <= 1e-14
    assert error(grad, [f.grad(x) for f in oracle]) <= 1e-14
    assert error(hess, [f.hess(x) for f in oracle]) <= 1e-14
    assert error(hvp, [f.hess(x) @ v for f in oracle]) <= 1e-14
    assert error(hess_diag, [np.diag(f.hess(x)) for f in oracle]) <= 1e-14
    assert np.array_equal(hess, np.swapaxes(hess, 1, 2)) or error(hess, np.swapaxes(hess, 1, 2)) <= 1e-15


@pytest.mark.parametrize("weighting", ["row", "client"])
@pytest.mark.parametrize("name", [group(name) for name in SAMPLES])
def test_all_derivatives_of_every_client_are_the_references(name, weighting):
    data = SAMPLES[name]()
    assert_derivatives(data.fleet(weighting), data.oracle(weighting))


@pytest.mark.parametrize("sparse", [False, True])
def test_squared_loss_is_the_same_on_rows_and_on_statistics(sparse, monkeypatch):
    data = sample("squared", sparse=sparse, intercept=True, d=8)
    on_statistics = data.fleet()
    assert on_statistics.on_statistics
    monkeypatch.setattr(fleet_module, "STATISTICS_BUDGET", 0)
    on_rows = data.fleet()
    assert isinstance(on_rows.client(0).f, GLM)
    assert_derivatives(on_rows, data.oracle())
    monkeypatch.undo()
    assert isinstance(on_statistics.client(0).f, Quadratic)
    x, v = np.random.default_rng(2).normal(size=(2, on_rows.d))
    monkeypatch.setattr(fleet_module, "STATISTICS_BUDGET", 0)
    rows = all_derivatives(on_rows, x, v)
    monkeypatch.undo()
    for got, expected in zip(all_derivatives(on_statistics, x, v), rows, strict=True):
        assert error(got, expected) <= 1e-14


def test_what_a_client_is_made_of_follows_from_its_rows_and_loss():
    assert isinstance(sample("squared").fleet().client(0).f, Quadratic)
    assert isinstance(sample("logistic").fleet().client(0).f.rows, Dense)
    assert isinstance(sample("logistic", sparse=True, d=8).fleet().client(0).f.rows, Sparse)
    assert isinstance(sample("softmax").fleet().client(0).f, Multinomial)
    import fedhybrid as fh

    assert isinstance(sample("squared").fleet(loss=fh.custom(lambda x, a, y: (a @ x - y) ** 2, 4)).client(0).f, Custom)


@pytest.mark.parametrize("N", [1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 500])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_gram_matrix_is_the_same_in_blocks_of_rows(N, sparse):
    rng = np.random.default_rng(N)
    w = rng.uniform(size=N)
    A = np.zeros((N, 9))
    column = np.argsort(rng.random((N, 9)), axis=1)[:, :3].astype(np.int32)
    value = rng.normal(size=(N, 3))
    np.put_along_axis(A, column, value, axis=1)
    with jax.enable_x64(True):
        rows = Sparse(jnp.asarray(column), jnp.asarray(value), 9) if sparse else Dense(jnp.asarray(A))
        assert error(rows.gram(jnp.asarray(w)), (A.T * w) @ A) <= 1e-14
        for x in (rng.normal(size=9), rng.normal(size=(9, 2))):
            assert error(rows.dot(jnp.asarray(x)), A @ x) <= 1e-14
        for r in (rng.normal(size=N), rng.normal(size=(N, 2))):
            assert error(rows.tdot(jnp.asarray(r)), A.T @ r) <= 1e-13


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_extreme_scales_of_the_data_leave_every_derivative_finite(scale):
    data = sample("squared", offset=False)
    sites = [(A, y * scale, w) for A, y, w in data.sites]
    data = data._replace(sites=sites, plain_sites=sites)
    x, v = np.random.default_rng(4).normal(size=(2, 4))
    for part in all_derivatives(data.fleet(), x * scale, v):
        assert np.isfinite(part).all()
    assert error(all_derivatives(data.fleet(), x * scale, v)[1], [f.grad(x * scale) for f in data.oracle()]) <= 1e-14
    for loss in ("logistic", "poisson"):
        data = sample(loss, offset=False)
        sites = [(A * 1e-150, y, w) for A, y, w in data.sites]
        data = data._replace(sites=sites, plain_sites=sites)
        got = all_derivatives(data.fleet(), x, v)
        assert error(got[1], [f.grad(x) for f in data.oracle()]) <= 1e-14
