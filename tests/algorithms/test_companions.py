"""Gradient descent, Newton and L-BFGS, step by step, against their textbook forms in tests/reference."""

import numpy as np
import pytest
from reference.companions import gradient_descent, lbfgs_direction
from reference.companions import newton as reference_newton
from samples import crossed, error, sample

import fedhybrid as fh

TRANSPORTS = [fh.Stacked, fh.Serial]
LOSSES = ["squared", "logistic", "poisson"]
ALTERNATING = np.array([1.0, -1.0, 1.0, -1.0])
START = 0.5 * np.random.default_rng(9).normal(size=4)
every_cell = pytest.mark.parametrize(("loss", "transport"), crossed("companions", LOSSES))


def grouped(names):
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"companions {name}")) for name in names]


def trace(algorithm, data, transport, steps, x0=START):
    return fh.run(algorithm, transport(data.fleet(update="gradient")), steps, x0)[1]


@every_cell
def test_gradient_descent_takes_the_textbooks_steps(loss, transport):
    data = sample(loss)
    got = trace(fh.gd(step_size=0.4), data, transport, 8)
    assert error(got.x0, gradient_descent(data.oracle(), START, 0.4, 8)) <= 1e-13
    points = [START, *got.x0[:-1]]
    norms = [np.linalg.norm(sum(f.grad(x) for f in data.oracle())) for x in points]
    assert error(got.residual, norms) <= 1e-13


def assert_newton(data, transport, steps, x0):
    got = trace(fh.newton(), data, transport, steps, x0)
    expected, t = reference_newton(data.oracle(), x0, steps)
    assert error(got.x0, expected) <= 1e-12
    # one round for the expansion, one for the full step and one for every halving
    rounds = 2 + np.log2(1 / t).astype(int)
    assert np.array_equal(np.diff(got.rounds, prepend=0), rounds)
    assert np.array_equal(np.diff(got.floats_up, prepend=0), 6 * (4 * 5 // 2 + 4 + 1) + 6 * (rounds - 1))
    assert np.array_equal(np.diff(got.floats_down, prepend=0), 6 * 4 * rounds)
    return t


@every_cell
def test_newton_takes_the_textbooks_steps(loss, transport):
    steps = {"squared": 1, "logistic": 3, "poisson": 3}[loss]  # beyond, F changes by less than its rounding
    assert_newton(sample(loss), transport, steps, START)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("loss", grouped(["logistic"]))
def test_newton_halves_its_step_as_often_as_the_textbook(loss, transport):
    t = assert_newton(sample(loss, reg=0.01), transport, 3, 6 * ALTERNATING)
    assert t.max() < 1


def lbfgs(oracle, x0, steps, memory):
    """As the module's docstring says, on the mean of the clients' functions: what a server sees. Also the rounds that were accepted."""
    n = len(oracle)
    x, s, y = np.array(x0), [], []
    accepted, points = [], []
    F = g = p = None
    t = 1.0
    for _ in range(steps):
        u = x if F is None else x + t * p
        F_u, g_u = sum(f.value(u) for f in oracle) / n, sum(f.grad(u) for f in oracle) / n
        if F is None or F_u <= F + 1e-4 * t * (p @ g):
            if F is not None:
                s, y = [*s, u - x][-memory:], [*y, g_u - g][-memory:]
            x, F, g = u, F_u, g_u
            p = lbfgs_direction(s, y, g)
            t = 1.0 if s else 1 / max(1.0, np.linalg.norm(g))  # no scale is known before the first pair
            accepted.append(True)
        else:
            t /= 2
            accepted.append(False)
        points.append(x)
    return np.array(points), accepted


@pytest.mark.parametrize("memory", [1, 3])
@every_cell
def test_lbfgs_takes_the_textbooks_steps(loss, memory, transport):
    data = sample(loss)
    got = trace(fh.lbfgs(memory=memory), data, transport, 8)
    assert error(got.x0, lbfgs(data.oracle(), START, 8, memory)[0]) <= 1e-12


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("loss", grouped(["logistic"]))
def test_lbfgs_halves_a_step_that_does_not_lead_down(loss, transport):
    data, far = sample(loss, reg=0.01), -15 * ALTERNATING
    expected, accepted = lbfgs(data.oracle(), far, 8, 3)
    assert accepted.count(False) == 3
    assert error(trace(fh.lbfgs(memory=3), data, transport, 8, far).x0, expected) <= 1e-11
