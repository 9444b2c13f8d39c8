"""Losses against the same formulas in extended precision, to the ends of the range (N-16)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import error, sample

import fedhybrid as fh

long = np.longdouble
TINY = 1e-307  # below: subnormal, which XLA may take for zero
GRID = np.array([0.0, 1e-300, 1e-16, 1e-8, 1e-3, 0.3, 1.0, 2.5, 10.0, 36.0, 40.0, 300.0, 700.0, 1e4])
Z = np.concatenate([-GRID[:0:-1], GRID])
DELTA = 1.35


def squared(z, y):
    return (z - y) ** 2 / 2, z - y, np.ones_like(z)


def logistic(z, y):
    s = np.where(y == 1, -z, z)  # the loss is log(1 + eˢ)
    e = np.exp(-np.abs(z))
    value = np.maximum(s, 0) + np.log1p(np.exp(-np.abs(s)))
    p = np.where(s >= 0, 1, np.exp(-np.abs(s))) / (1 + np.exp(-np.abs(s)))
    return value, np.where(y == 1, -p, p), e / (1 + e) ** 2


def poisson(z, y):
    e = np.exp(z)
    return e - y * z, e - y, e


def huber(z, y):
    r = z - y
    inside = np.abs(r) <= long(DELTA)
    value = np.where(inside, r**2 / 2, long(DELTA) * (np.abs(r) - long(DELTA) / 2))
    return value, np.where(inside, r, np.sign(r) * long(DELTA)), np.where(inside, 1.0, 0.0)


CASES = {
    "squared": (fh.squared, squared, [0.0, -3.0, 1e150]),
    "logistic": (fh.logistic, logistic, [0.0, 1.0]),
    "poisson": (fh.poisson, poisson, [0.0, 1.0, 7.0]),
    "huber": (fh.huber(delta=DELTA), huber, [0.0, -3.0, 1e150]),
}


def evaluate(loss, z, y):
    with jax.enable_x64(True):
        z, y = jnp.asarray(z, jnp.float64), jnp.asarray(y, jnp.float64)
        return [np.asarray(part(z, y)) for part in (loss.value, loss.d1, loss.d2)]


@pytest.mark.parametrize("name", CASES)
def test_value_and_derivatives_are_the_formulas_in_extended_precision(name):
    loss, formulas, responses = CASES[name]
    z, y = (grid.ravel() for grid in np.meshgrid(Z, responses))
    with np.errstate(over="ignore", under="ignore"):
        expected = [part.astype(float) for part in formulas(z.astype(long), y.astype(long))]
    for got, want in zip(evaluate(loss, z, y), expected, strict=True):
        assert not np.isnan(got).any()
        # relative to the terms that cancel: eᶻ − y·z has no more digits than its larger term
        scale = np.abs(y * z) + np.abs(y) if name == "poisson" else 0.0
        np.testing.assert_allclose(got, want, rtol=4e-15, atol=np.max(scale) * 4e-16 + TINY)


def test_poisson_overflows_to_infinity_where_its_true_value_is_beyond_any_float():
    value, d1, d2 = evaluate(fh.poisson, [1e4], [3.0])
    assert value == d1 == d2 == np.inf
    value, d1, d2 = evaluate(fh.poisson, [-1e4], [3.0])
    assert (value, d1, d2) == (3e4, -3.0, 0.0)


def test_a_well_classified_row_keeps_its_small_loss():
    for y, z in ((1.0, 40.0), (0.0, -40.0)):
        value, d1, _ = evaluate(fh.logistic, [z], [y])
        np.testing.assert_allclose(value, np.exp(-40.0), rtol=1e-15)
        np.testing.assert_allclose(np.abs(d1), np.exp(-40.0), rtol=1e-15)
    value, d1, _ = evaluate(fh.softmax, [[0.0, 40.0, -1.0]], [1.0])
    np.testing.assert_allclose(value, np.exp(-40.0) + np.exp(-41.0), rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 30.0, 700.0, 1e4])
def test_softmax_is_its_formula_in_extended_precision(scale):
    z = np.random.default_rng(0).normal(size=(40, 3)) * scale
    y = np.arange(40) % 3
    Z = z.astype(long) - z.max(axis=1, keepdims=True)
    with np.errstate(under="ignore"):
        e = np.exp(Z)
        p = (e / e.sum(axis=1, keepdims=True)).astype(float)
    value, d1, d2 = evaluate(fh.softmax, z, y)
    own = Z[np.arange(40), y]
    with np.errstate(under="ignore"):
        np.testing.assert_allclose(value, (np.log(e.sum(axis=1)) - own).astype(float), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(d1, p - np.eye(3)[y], atol=1e-15 * max(1.0, scale))
        np.testing.assert_allclose(d2, p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :], atol=1e-15 * max(1.0, scale))


@pytest.mark.parametrize("name", [*CASES, "softmax"])
def test_each_derivative_is_the_slope_of_the_one_before(name):
    rng = np.random.default_rng(1)
    loss = fh.softmax if name == "softmax" else CASES[name][0]
    z = rng.normal(size=(50, 3) if name == "softmax" else 50)
    y = rng.integers(0, 2, size=50).astype(float)
    h = 1e-5
    if name == "huber":
        y = np.where(np.abs(np.abs(z - y) - DELTA) < 1e-3, y + 0.1, y)  # d2 jumps at δ
    _, d1, d2 = evaluate(loss, z, y)
    for c in range(3) if name == "softmax" else [...]:
        e = h * (np.eye(3)[c] if name == "softmax" else 1.0)
        up, down = evaluate(loss, z + e, y), evaluate(loss, z - e, y)
        np.testing.assert_allclose((up[0] - down[0]) / (2 * h), d1[..., c] if name == "softmax" else d1, atol=1e-9)
        np.testing.assert_allclose((up[1] - down[1]) / (2 * h), d2[..., c] if name == "softmax" else d2, atol=1e-9)


def test_bounds_on_curvature_hold_and_are_reached():
    z = np.linspace(-8, 8, 1601)
    for loss in (fh.squared, fh.logistic, fh.huber):
        d2 = evaluate(loss, z, np.zeros_like(z))[2]
        assert d2.max() == pytest.approx(loss.ell, abs=1e-15)
    eigenvalues = np.linalg.eigvalsh(evaluate(fh.softmax, [[0.0, 0.0, -60.0], [0.0, 0.0, 0.0]], [0.0, 0.0])[2])
    assert eigenvalues.max() == pytest.approx(fh.softmax.ell, abs=1e-12)
    for loss in (fh.logistic, fh.poisson):  # |φ‴| ≤ bend·φ″
        d2 = evaluate(loss, z, np.zeros_like(z))[2]
        d3 = (d2[2:] - d2[:-2]) / (z[2:] - z[:-2])
        assert np.all(np.abs(d3) <= loss.bend * d2[1:-1] * (1 + 1e-4))


def test_huber_with_delta_is_one_loss_however_often_it_is_asked_for():
    assert fh.huber(delta=0.5) is fh.huber(delta=0.5)
    assert fh.huber(delta=1) is fh.huber
    for delta in (0.0, -1.0, np.nan, np.inf, "1"):
        with pytest.raises(fh.InvalidConfig, match="delta"):
            fh.huber(delta=delta)


# Losses of the caller's own


def own_squared(z, y):
    return 0.5 * (z - y) ** 2


def own_logistic(z, y):
    return jnp.logaddexp(0.0, z) - y * z


def own_poisson(z, y):
    return jnp.exp(z) - y * z


def own_huber(z, y):
    size = jnp.abs(z - y)
    return jnp.where(size <= 0.7, 0.5 * size**2, 0.7 * (size - 0.35))


OWN = {"squared": own_squared, "logistic": own_logistic, "poisson": own_poisson, "huber": own_huber}


def derivatives(me, local, x, v):
    return me.f.value(x), me.f.grad(x), me.f.hess(x), me.f.hvp(x, v), me.f.hess_diag(x)


def nothing(me):
    return ()


def all_derivatives(fleet, x, v):
    clients = fh.Stacked(fleet)
    with jax.enable_x64(True):
        return clients.observe(derivatives, clients.start(nothing), jnp.asarray(x), jnp.asarray(v))


@pytest.mark.parametrize("name", OWN)
def test_a_callers_loss_of_the_prediction_equals_the_built_in_one(name):
    data = sample(name)
    x, v = np.random.default_rng(3).normal(size=(2, 4))
    built_in = all_derivatives(data.fleet(), x, v)
    own = all_derivatives(data.fleet(loss=OWN[name]), x, v)
    for got, expected in zip(own, built_in, strict=True):
        assert error(got, expected) <= 1e-14


@pytest.mark.parametrize("name", OWN)
def test_a_callers_loss_of_the_whole_row_equals_the_built_in_one(name):
    def row_loss(x, a, y):
        return OWN[name](a @ x, y)

    data = sample(name, offset=False)
    x, v = np.random.default_rng(3).normal(size=(2, 4))
    built_in = all_derivatives(data.fleet(), x, v)
    own = all_derivatives(data.fleet(loss=fh.custom(row_loss, 4)), x, v)
    for got, expected in zip(own, built_in, strict=True):
        assert error(got, expected) <= 1e-14


def test_a_callers_losses_can_be_run():
    data = sample("logistic", offset=False)

    def row_loss(x, a, y):
        return own_logistic(a @ x, y)

    algorithm = fh.fedhybrid(mu=0.5, a=(0.5, 0.9), b=0.1)
    expected = fh.run(algorithm, fh.Stacked(data.fleet()), 6)[1].x0
    for loss in (own_logistic, fh.custom(row_loss, 4)):
        assert error(fh.run(algorithm, fh.Stacked(data.fleet(loss=loss)), 6)[1].x0, expected) <= 1e-12
