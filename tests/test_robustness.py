"""`fh.solve(fleet)`, told nothing, on random problems: it ends in a true SOLVED, or says honestly why not; it never diverges."""

from collections import Counter
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from zoo import SHAPES, problem

import fedhybrid as fh
from fedhybrid import Status
from fedhybrid.algorithms.base import Algorithm, Spec, nothing, number
from fedhybrid.algorithms.oracle import gradient

LOSSES = {"squared": fh.squared, "logistic": fh.logistic, "poisson": fh.poisson, "huber": fh.huber}
HONEST = {Status.SOLVED_INACCURATE, Status.MAX_ROUNDS, Status.ILL_CONDITIONED, Status.NO_MINIMISER}
UNKIND = ("unscaled columns", "unscaled labels", "maybe separable")  # rounding hides the last digits; there may be no minimiser
TOL = 1e-8
MOST = 2000


class Pooled:
    """The one table that nobody has, with gradients in extended precision."""

    def __init__(self, given):
        tables = [np.column_stack([A, np.ones(len(A))]) if given.intercept else A for A, _ in given.sites]
        n, N = len(tables), sum(len(A) for A in tables)
        own = [1 / N if given.weighting == "row" else 1 / len(A) for A in tables if len(A)]
        self.A = np.vstack(tables)
        self.w = np.concatenate([np.full(len(A), v) for A, v in zip([A for A in tables if len(A)], own, strict=True)])
        self.y = np.concatenate([y for _, y in given.sites])
        self.reg = np.full(self.A.shape[1], given.reg)
        if given.intercept:
            self.reg[-1] = 0.0
        self.loss = given.loss
        assert n == len(given.sites)

    def parts(self, z):
        """Value, first and second derivative of the rows' losses."""
        y = self.y.astype(z.dtype)
        if self.loss == "squared":
            return (z - y) ** 2 / 2, z - y, np.ones_like(z)
        if self.loss == "poisson":
            return np.exp(z) - y * z, np.exp(z) - y, np.exp(z)
        if self.loss == "huber":
            r = z - y
            inside = np.abs(r) <= 1
            return np.where(inside, r * r / 2, np.abs(r) - 0.5), np.clip(r, -1, 1), inside.astype(z.dtype)
        p = 1 / (1 + np.exp(np.minimum(-z, 700)))
        return np.logaddexp(0, z) - y * z, p - y, p * (1 - p)

    def value(self, x):
        return float(self.w @ self.parts(self.A @ x)[0] + 0.5 * self.reg @ x**2)

    def gradient(self, x):
        A, x = self.A.astype(np.longdouble), x.astype(np.longdouble)
        return ((self.w * self.parts(A @ x)[1]) @ A + self.reg * x).astype(np.longdouble)

    def hessian(self, x):
        return (self.A.T * (self.w * self.parts(self.A @ x)[2])) @ self.A + np.diag(self.reg)

    def optimum(self, near):
        """Newton's method with gradients in extended precision, from a point nearby."""
        x = near.astype(np.longdouble)
        for _ in range(50):
            step = np.linalg.solve(self.hessian(x.astype(float)), self.gradient(x).astype(float))
            x = x - step
            if np.linalg.norm(step) <= 1e-15 * np.linalg.norm(x.astype(float)):
                break
        return x.astype(float)


def check(name, seed):
    given = problem(name, seed)
    fleet = fh.Fleet(
        given.sites, loss=LOSSES[given.loss], reg=given.reg, weighting=given.weighting, update=given.updates, intercept=given.intercept
    )
    result = fh.solve(fleet, tol=TOL, max_rounds=MOST)
    pooled, start = Pooled(given), np.zeros(fleet.d)
    assert np.isfinite(result.x).all()
    assert result.status is Status.SOLVED or result.status in HONEST, result
    assert pooled.value(result.x) <= pooled.value(start)
    assert result.gradient_norm == pytest.approx(
        float(np.linalg.norm(pooled.gradient(result.x).astype(float))), rel=1e-6, abs=2 * result.rounding
    )
    if result.status is Status.SOLVED:
        truth = pooled.optimum(result.x)
        assert np.linalg.norm(result.x - truth) <= min(result.error_bound, TOL * max(1.0, np.linalg.norm(result.x))) * (1 + 1e-6)
    if result.status is Status.NO_MINIMISER:
        margin = np.where(pooled.y > 0, 1, -1) * (pooled.A @ result.direction)
        assert given.loss != "logistic" or (margin >= 0).all()
        assert given.reg == 0
    return result.status


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_solved_or_says_why_not(shape, seed):
    check(shape, seed)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_five_hundred_problems_are_solved_or_say_why_not(shape):
    statuses = [check(shape, seed) for seed in range(42)]
    print(shape, dict(Counter(status.name for status in statuses)))
    if shape not in UNKIND:
        assert statuses.count(Status.SOLVED) >= 40


class Walk(NamedTuple):
    x0: Any
    local: Any
    residual: Any
    k: Any


def down_a_valley(clients, state):
    """Along a path on which F = ¼(1e12·u² + v²) falls with every step, and whose gradient is a hundred thousand times the first one."""
    local, g = clients.mean(gradient, state.local, state.x0)
    path = jnp.array([1e-4 * 0.97**state.k, 0.0])
    return Walk(jnp.where(state.k < 40, path, 0.0), local, jnp.linalg.norm(clients.n * g), state.k + 1)


@pytest.mark.parametrize(("descends", "ends"), [(False, Status.DIVERGED), (True, Status.SOLVED)])
def test_a_gradient_that_grows_while_the_objective_falls_is_no_divergence(descends, ends):
    def init(clients, x0):
        return Walk(x0, clients.start(nothing), number(jnp.inf), number(0.0))

    walk = Algorithm(init, down_a_valley, (nothing, gradient), Spec("walk", {}), residual_is_gradient=True, descends=descends)
    fleet = fh.Fleet([(np.array([[1e6, 0.0]]), [0.0]), (np.array([[0.0, 1.0]]), [0.0])], loss=fh.squared, update="gradient")
    result = fh.solve(fleet, walk, x0=[0.0, 1e3], max_rounds=200)
    assert result.status is ends
