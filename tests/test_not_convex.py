"""Smooth losses that are not convex: a stationary point of Σfᵢ, and no claim beyond it."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedhybrid as fh


def cauchy(z, y):
    """Bends down where |z − y| > 1."""
    return 0.5 * jnp.log1p((z - y) ** 2)


def sites(seed=0, n=4):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=3)
    tables = [rng.normal(size=(30, 3)) for _ in range(n)]
    return [(A, A @ truth + rng.standard_t(1.5, size=30)) for A in tables]


def gradient(x, reg):
    data = sites()
    A, y = np.vstack([A for A, _ in data]), np.concatenate([y for _, y in data])
    r = A @ x - y
    return A.T @ (r / (1 + r**2)) / len(y) + reg * x


FAR = 4.0 * np.array([1.0, -1.0, 1.0])


@pytest.mark.parametrize("update", ["gradient", "newton"])
@pytest.mark.parametrize("method", [fh.krylov, lambda: fh.fedhybrid(mu=0.3, a=(0.8, 0.7), b=(0.05, 0.1))], ids=["krylov", "fedhybrid"])
def test_it_ends_in_a_stationary_point_and_claims_no_more(method, update):
    fleet = fh.Fleet(sites(), loss=cauchy, reg=0.01, update=update)
    assert np.linalg.eigvalsh(np.asarray(fleet.client(0).f.hess(FAR)))[0] < 0  # a Newton client begins where its Hessian is indefinite
    result = fh.solve(fleet, method(), x0=FAR, max_rounds=4000)
    assert np.linalg.norm(gradient(result.x, 0.01)) <= 1e-8
    assert result.status in (fh.Status.SOLVED_INACCURATE, fh.Status.SOLVED)
    if result.status is fh.Status.SOLVED:
        assert "promise" in result.message


def test_the_value_never_rises_where_the_loss_is_not_convex():
    fleet = fh.Fleet(sites(), loss=cauchy, reg=0.01, update="newton")
    trace = fh.run(fh.krylov(), fh.Stacked(fleet), 30, FAR)[1]
    A, y = np.vstack([A for A, _ in sites()]), np.concatenate([y for _, y in sites()])
    values = [0.5 * np.mean(np.log1p((A @ x - y) ** 2)) + 0.005 * x @ x for x in [FAR, *trace.x0]]
    assert np.all(np.diff(values) <= 1e-14)
