"""Krylov steps against slow NumPy loops, and what they promise: few rounds, never uphill, Newton clients used only where that pays."""

import jax
import numpy as np
import pytest
from reference import objective
from reference.krylov import krylov
from samples import LOSSES, UPDATES, error, sample

import fedhybrid as fh
from fedhybrid.algorithms.krylov import step

TRANSPORTS = [fh.Stacked, fh.Serial]
START = 0.5 * np.random.default_rng(9).normal(size=4)
NEWTON = [update != "gradient" for update in UPDATES]


def ill_conditioned(kappa=1e4, n=4, rows=80, d=12, seed=0, reg=1e-7):
    """Sites that hold the same kind of rows, whose Gram matrix has eigenvalues from 1 to 1/kappa."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    truth = rng.normal(size=d)
    scale = np.sqrt(np.logspace(0, -np.log10(kappa), d))
    tables = [rng.normal(size=(rows, d)) * scale @ Q.T for _ in range(n)]
    return [(A, A @ truth + 0.1 * rng.normal(size=rows)) for A in tables], reg


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("memory", [2, 9])
@pytest.mark.parametrize("loss", ["squared", "logistic", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("poisson", "softmax"))])
def test_it_takes_the_steps_of_the_slow_loops(loss, memory, transport):
    data = sample(loss)
    start = START if loss != "softmax" else 0.3 * np.random.default_rng(9).normal(size=12)
    got = fh.run(fh.krylov(memory=memory), transport(data.fleet()), 6, start)[1]
    expected, rounds, _ = krylov(data.oracle(), start, 6, memory, NEWTON)
    assert rounds.tolist() == [1] * 6
    assert np.array_equal(got.rounds, np.cumsum(rounds))
    assert error(got.x0, expected) <= 1e-9  # the small systems are solved by another factorisation


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_point_that_lies_higher_is_refused_and_the_next_is_nearer(transport):
    data, far = sample("logistic", reg=0.01), np.array([15.0, -15.0, 15.0, -15.0])
    expected, _, accepted = krylov(data.oracle(), far, 8, 3, NEWTON)
    assert False in accepted
    got = fh.run(fh.krylov(memory=3), transport(data.fleet()), 8, far)[1]
    assert error(got.x0, expected) <= 1e-8


@pytest.mark.parametrize("update", ["newton", ("newton", "gradient", "newton-cg", "gradient")])
def test_where_it_is_slow_newton_clients_precondition_as_in_the_slow_loops(update):
    sites, reg = ill_conditioned()
    fleet = fh.Fleet(sites, loss=fh.squared, reg=reg, update=update)
    newton = [name != "gradient" for name in fleet.updates]
    start = np.zeros(12)
    expected, rounds, _ = krylov(objective.clients(sites, "squared", reg), start, 18, 2, newton)
    got = fh.run(fh.krylov(memory=2), fh.Stacked(fleet), 18, start)[1]
    assert 2 in rounds
    assert np.array_equal(got.rounds, np.cumsum(rounds))
    assert error(got.x0, expected) <= 1e-6


@pytest.mark.parametrize("loss", list(LOSSES))
def test_what_a_client_measures_of_its_curvature_is_that_of_its_hessian(loss):
    data = sample(loss)
    fleet = data.fleet()
    rng = np.random.default_rng(0)
    x, S = rng.normal(size=fleet.d), rng.normal(size=(3, fleet.d))
    for i in range(fleet.n):
        with jax.enable_x64(True):
            f = jax.tree.map(jax.numpy.asarray, fleet.client(i).f)
            assert error(f.form(x, S), S @ np.asarray(f.hess(x)) @ S.T) <= 1e-13


def test_on_least_squares_a_gradient_a_dimension_is_enough():
    """As of GMRES: in d + 1 rounds, whatever the clients disagree on."""
    rng = np.random.default_rng(3)
    sites = [(rng.normal(size=(40, 6)) * rng.uniform(0.2, 2.0, size=6), rng.normal(size=40)) for _ in range(5)]
    fleet = fh.Fleet(sites, loss=fh.squared, reg=0.1, update="gradient")
    trace = fh.run(fh.krylov(), fh.Stacked(fleet), 8)[1]
    truth = np.linalg.solve(sum(A.T @ A for A, _ in sites) / 200 + 0.1 * np.eye(6), sum(A.T @ y for A, y in sites) / 200)
    assert error(trace.x0[7], truth) <= 1e-7
    assert error(trace.x0[4], truth) > 1e-7  # not before


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_the_objective_never_rises(loss):
    data = sample(loss, reg=1e-3, seed=4)
    trace = fh.run(fh.krylov(memory=3), fh.Stacked(data.fleet()), 25, 3 * START)[1]
    values = [sum(f.value(x) for f in data.oracle()) for x in [3 * START, *trace.x0]]
    assert np.all(np.diff(values) <= 1e-13 * np.abs(values[0]))


def test_newton_clients_save_most_rounds_where_sites_are_alike_and_columns_are_not():
    sites, reg = ill_conditioned(n=6, rows=200, d=30)
    rounds = {
        update: fh.solve(fh.Fleet(sites, loss=fh.squared, reg=reg, update=update), tol=1e-3, max_rounds=2000).rounds
        for update in ("gradient", "newton")
    }
    assert rounds["newton"] <= 45
    assert rounds["gradient"] >= 3 * rounds["newton"]


def test_newton_clients_cost_nothing_where_there_is_no_need():
    data = sample("logistic", reg=0.3)
    rounds = [fh.solve(data.fleet(update=update)).trace.x0 for update in ("gradient", "newton", UPDATES)]
    assert error(rounds[0], rounds[1]) <= 1e-12
    assert error(rounds[0], rounds[2]) <= 1e-12


def test_another_memory_is_another_method_and_the_same_step():
    assert fh.krylov(memory=3).spec.digest() != fh.krylov(memory=4).spec.digest()
    assert fh.krylov(memory=3).step is step


@pytest.mark.parametrize("memory", [0, -1, 1.5, "ten", True])
def test_a_memory_that_is_not_a_positive_integer_is_refused(memory):
    with pytest.raises(fh.InvalidConfig, match="memory"):
        fh.krylov(memory=memory)


def test_a_diagonal_mends_columns_of_different_scales():
    data = sample("squared", sizes=(60, 50, 70), d=30, reg=0.0, weights=False, offset=False)
    scales = 10.0 ** np.linspace(-1.0, 1.0, 30)
    sites = [(A * scales, y) for A, y in data.sites]
    gradient, diagonal = (fh.solve(fh.Fleet(sites, loss=fh.squared, update=update)).rounds for update in ("gradient", "diagonal"))
    assert diagonal <= gradient / 2
