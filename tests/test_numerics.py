"""What sums, scopes and tree structures must not do."""

import itertools
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from reference.pooled import least_squares_exact, poisson_high_precision
from threadpoolctl import threadpool_info

import fedhybrid as fh
from fedhybrid import linalg
from fedhybrid.curvature import UPDATES
from fedhybrid.numerics import scope
from fedhybrid.problem import Custom, Quadratic
from fedhybrid.rows import Dense


def test_no_two_kinds_of_client_share_a_tree_structure():
    """jax would run the one with the program that was compiled for the other, whenever their hashes collide."""
    kinds = [*UPDATES.values(), Dense(0.0), Quadratic(0.0, 0.0, 0.0), Custom(0.0, 0.0, 0.0, 0.0, len)]
    for one, other in itertools.combinations([jax.tree.structure(kind) for kind in kinds], 2):
        assert one != other


def test_every_update_runs_its_own_program_in_one_process():
    """Fleets that differ in nothing but the update, one after the other, and against each other."""
    rng = np.random.default_rng(0)
    sites = [(rng.normal(size=(6, 3)), (rng.random(6) > 0.5) * 1.0) for _ in range(3)]
    ends = {}
    for update in UPDATES:
        fleet = fh.Fleet(sites, loss=fh.logistic, reg=0.1, update=update)
        for transport in (fh.Stacked, fh.Serial):
            state, _ = fh.run(fh.fedhybrid(mu=0.5, a=0.9, b=0.1), transport(fleet), 3)
            ends[update, transport] = np.asarray(state.x0)
    np.testing.assert_allclose(ends["newton", fh.Stacked], ends["newton-cg", fh.Serial], rtol=1e-10)
    assert np.max(np.abs(ends["newton", fh.Stacked] - ends["gradient", fh.Stacked])) > 1e-3
    for update in UPDATES:
        np.testing.assert_allclose(ends[update, fh.Stacked], ends[update, fh.Serial], rtol=1e-12)


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_scopes_that_overlap_in_threads_leave_the_process_as_it_was():
    before = blas_threads()
    inside, leave = threading.Event(), threading.Event()

    def first():
        with scope():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with scope():
        leave.set()
        thread.join()
        assert set(blas_threads()) <= {1}
    assert blas_threads() == before


def test_a_million_rows_in_five_values_do_not_cost_the_bound_its_truth():
    a = np.array([90.1, 110.3, 100.7, 95.3, 104.9])
    b = np.array([0.7, 0.1, 0.9, 1.3, -0.4])
    y = np.array([1.3, 2.9, 2.2, 1.1, 3.1])
    few = [(np.column_stack([a, b, np.ones(5)]), y)]
    many = [(np.column_stack([a.repeat(200_000), b.repeat(200_000)]), y.repeat(200_000))]
    result = fh.solve(fh.Fleet(many, loss=fh.squared, intercept=True), fh.newton())
    assert np.linalg.norm(result.x - least_squares_exact(few)) <= result.error_bound


@pytest.mark.parametrize("scale", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("tol", [1e-8, 1e-12])
def test_counts_that_fit_closely_do_not_cost_the_bound_its_truth(scale, tol):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        A = scale * np.round(64 * rng.normal(size=(30, 2))) / 64
        sites = [(A, np.exp(A @ [1.0, -0.7]))]
        result = fh.solve(fh.Fleet(sites, loss=fh.poisson), fh.newton(), tol=tol, max_rounds=300)
        assert np.linalg.norm(result.x - poisson_high_precision(sites)) <= result.error_bound


def test_what_the_caller_does_to_responses_and_weights_afterwards_does_not_matter():
    rng = np.random.default_rng(0)
    A, y, w = rng.normal(size=(9, 2)), rng.normal(size=9), rng.random(9)
    fleet = fh.Fleet([(A, y, w)], loss=fh.squared, reg=1.0)
    expected = fh.solve(fh.Fleet([(A.copy(), y.copy(), w.copy())], loss=fh.squared, reg=1.0), fh.newton()).x
    y[:], w[:] = np.nan, 100.0
    assert fh.solve(fleet, fh.newton()).x.tobytes() == expected.tobytes()


SIDE_BY_SIDE = """
import jax, jax.numpy as jnp
from fedhybrid import linalg

jax.config.update("jax_enable_x64", True)
groups = tuple(2.0 * jnp.eye(20 + k) + jnp.zeros((300, 1, 1)) for k in range(6))

def once(groups, _):
    factors = [jax.vmap(linalg.cholesky)(H) for H in groups]
    solved = [jax.vmap(linalg.solve)(H, H[:, 0]) for H in groups]
    spectra = [jax.vmap(linalg.eigvalsh)(H[:10]) for H in groups]
    same = [H + 0.0 * (L + jnp.mean(v) + jnp.mean(w)) for H, L, v, w in zip(groups, factors, solved, spectra)]
    return tuple(same), None

jax.block_until_ready(jax.jit(lambda groups: jax.lax.scan(once, groups, None, length=30)[0])(groups))
print("done")
"""


def test_factorisations_of_many_groups_at_once_do_not_wait_for_each_other():
    # with jnp.linalg's own batches this hangs on two cores
    done = subprocess.run([sys.executable, "-c", SIDE_BY_SIDE], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "done", done.stderr


def test_factorisations_are_those_of_numpy_one_by_one_and_in_batches():
    rng = np.random.default_rng(0)
    R = rng.normal(size=(5, 4, 4))
    H, v = R @ R.transpose(0, 2, 1) + np.eye(4), rng.normal(size=(5, 4))
    with jax.enable_x64(True):
        for one, many, expected in (
            (linalg.cholesky(H[0]), jax.vmap(linalg.cholesky)(H), np.linalg.cholesky(H)),
            (linalg.solve(H[0], v[0]), jax.vmap(linalg.solve)(H, v), np.linalg.solve(H, v[:, :, None])[:, :, 0]),
            (linalg.inverse(H[0]), jax.vmap(linalg.inverse)(H), np.linalg.inv(H)),
            (linalg.eigvalsh(H[0]), jax.vmap(linalg.eigvalsh)(H), np.linalg.eigvalsh(H)),
        ):
            assert np.abs(one - expected[0]).max() <= 1e-13 * np.abs(expected).max()
            assert np.abs(many - expected).max() <= 1e-13 * np.abs(expected).max()
