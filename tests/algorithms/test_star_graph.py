"""DGD, EXTRA, Network Newton, ESOM and Distributed Newton, step by step, against their papers' matrix forms over the whole star graph."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import star_graph
from samples import crossed, error, sample

import fedhybrid as fh

LOSSES = ["squared", "logistic", "poisson"]
START = 0.5 * np.random.default_rng(9).normal(size=4)
STEPS = 7
every_loss = pytest.mark.parametrize("loss", ["squared", "logistic", pytest.param("poisson", marks=pytest.mark.slow)])
every_cell = pytest.mark.parametrize(("loss", "transport"), crossed("star graph", LOSSES))


def held(me, local):
    return {name: getattr(local, name) for name in ("x", "p", "q", "lam") if hasattr(local, name)}


def run(algorithm, data, transport=fh.Stacked, steps=STEPS, x0=START):
    """The last state, the trace, and what every client holds at the end."""
    clients = transport(data.fleet(update="gradient"))
    state, trace = fh.run(algorithm, clients, steps, x0)
    return state, trace, {name: np.asarray(values) for name, values in clients.observe(held, state.local).items()}


def optimum(oracle, d=4):
    x = np.zeros(d)
    for _ in range(30):
        x = x - np.linalg.solve(sum(f.hess(x) for f in oracle), sum(f.grad(x) for f in oracle))
    return x


def norm_of_sum(oracle, points):
    return np.linalg.norm(sum(f.grad(x) for f, x in zip(oracle, points, strict=True)))


def total(vectors):
    return sum(np.linalg.norm(v) for v in vectors)


def assert_nodes(trace, own, nodes):
    assert error(trace.x0, nodes[:, 0]) <= 1e-12
    assert error(own["x"], nodes[-1, 1:]) <= 1e-12


def gap(f, x, W_row, points, weight, s):
    """A node's part of ∇(½ xᵀ(I − W)x·weight + s·Σfᵢ): written out, as the stopping values are."""
    return weight * (x - W_row @ points) + s * (0 if f is None else f.grad(x))


def test_metropolis_weights_are_what_the_docstring_of_the_star_says():
    n = 5
    W = star_graph.metropolis(n)
    assert np.allclose(W, W.T, atol=0)
    assert np.allclose(W.sum(axis=0), 1)
    assert np.allclose(W[0], 1 / (n + 1))
    assert np.allclose(np.diag(W)[1:], n / (n + 1))
    assert np.allclose(np.linalg.eigvalsh(W), [0, *[n / (n + 1)] * (n - 1), 1])


@every_cell
def test_dgd_takes_the_papers_steps(loss, transport):
    data, s = sample(loss), 0.7
    _, trace, own = run(fh.dgd(step_size=s), data, transport)
    nodes = star_graph.dgd(data.oracle(), START, s, STEPS)
    assert_nodes(trace, own, nodes)
    before = np.concatenate([np.tile(START, (1, 7, 1)), nodes[:-1]])
    expected = [(total(new - old) + total(old - old[0])) / s for old, new in zip(before, nodes, strict=True)]
    assert error(trace.residual, expected) <= 1e-12


@every_cell
def test_extra_takes_the_papers_steps(loss, transport):
    data, s = sample(loss), 0.7
    state, trace, own = run(fh.extra(step_size=s), data, transport)
    nodes = star_graph.extra(data.oracle(), START, s, STEPS)
    assert_nodes(trace, own, nodes)
    before = np.concatenate([np.tile(START, (1, 7, 1)), nodes[:-1]])
    expected = [(total(new - old) + total(old - old[0])) / s for old, new in zip(before, nodes, strict=True)]
    assert error(trace.residual, expected) <= 1e-12
    I_minus_W = np.eye(7) - star_graph.metropolis(6)
    p = 0.5 * np.einsum("ij,kjc->ic", I_minus_W, before)
    assert error(np.concatenate([[state.p0], own["p"]]), p) <= 1e-12


@pytest.mark.parametrize("K", [0, 2])
@every_cell
def test_network_newton_takes_the_papers_steps(loss, K, transport):
    data, alpha, eps = sample(loss), 0.6, 0.8
    oracle = data.oracle()
    _, trace, own = run(fh.network_newton(alpha=alpha, eps=eps, K=K), data, transport)
    nodes = star_graph.network_newton(oracle, START, alpha, eps, K, STEPS)
    assert_nodes(trace, own, nodes)
    W = star_graph.metropolis(6)
    expected = []
    for old in np.concatenate([np.tile(START, (1, 7, 1)), nodes[:-1]]):
        g = [gap(f, old[i], W[i], old, 1.0, alpha) for i, f in enumerate([None, *oracle])]
        expected.append((total(g) + total(old - old[0])) / alpha)
    assert error(trace.residual, expected) <= 1e-12
    assert set(np.diff(trace.rounds, prepend=0)) == {K + 1}
    assert set(np.diff(trace.floats_up, prepend=0)) == {6 * (4 * (K + 1) + 1)}


@pytest.mark.parametrize("K", [0, 2])
@every_cell
def test_esom_takes_the_papers_steps(loss, K, transport):
    data, alpha, eps = sample(loss), 1.3, 0.4
    oracle = data.oracle()
    state, trace, own = run(fh.esom(alpha=alpha, eps=eps, K=K), data, transport)
    nodes, q = star_graph.esom(oracle, START, alpha, eps, K, STEPS)
    assert_nodes(trace, own, nodes)
    assert error(np.concatenate([[state.q0], own["q"]]), q[-1]) <= 1e-12
    W = star_graph.metropolis(6)
    expected = []
    for k, old in enumerate(np.concatenate([np.tile(START, (1, 7, 1)), nodes[:-1]])):
        g = [gap(f, old[i], W[i], old, alpha, 1.0) + q[k, i] for i, f in enumerate([None, *oracle])]
        expected.append(total(g) + alpha * total(old - old[0]))
    assert error(trace.residual, expected) <= 1e-12
    assert set(np.diff(trace.rounds, prepend=0)) == {K + 1}
    assert set(np.diff(trace.floats_up, prepend=0)) == {6 * (4 * (K + 1) + 1)}


@pytest.mark.parametrize("s", [1.0, 0.6])
@every_cell
def test_distributed_newton_takes_newtons_steps_on_the_dual(loss, s, transport):
    data = sample(loss)
    _, trace, own = run(fh.distributed_newton(step_size=s), data, transport)
    x0, x, lam = star_graph.distributed_newton(data.oracle(), START, s, STEPS)
    assert error(trace.x0, x0) <= 1e-12
    assert error(own["x"], x) <= 1e-12
    assert error(own["lam"], lam) <= 1e-12
    assert trace.residual[0] == pytest.approx(norm_of_sum(data.oracle(), [START] * 6), rel=1e-12)


@pytest.mark.parametrize("loss", ["logistic", pytest.param("poisson", marks=pytest.mark.slow)])
def test_distributed_newtons_direction_is_the_one_by_laplacian_systems(loss):
    # The full first step makes Σλᵢ = 0, where the paper is. Its two pseudo-inverses cost some digits.
    data = sample(loss)
    clients, algorithm, own = fh.Stacked(data.fleet(update="gradient")), fh.distributed_newton(step_size=1.0), []
    with jax.enable_x64(True):
        state = algorithm.init(clients, jnp.asarray(START))
        for _ in range(5):  # one program for all, where runs of 2, 3, … steps would be four
            state = clients.call(algorithm.step, (), state)
            own.append({name: np.asarray(values) for name, values in clients.observe(held, state.local).items()})
    own = own[1:]
    assert np.abs(own[0]["lam"].sum(axis=0)).max() <= 1e-15
    expected = star_graph.laplacian_newton(data.oracle(), own[0]["lam"], own[0]["x"], 1.0, 3)
    assert error([o["x"] for o in own[1:]], expected) <= 1e-11
    assert error(own[0]["x"], own[1]["x"]) > 1e-6


@every_loss
def test_dgd_and_network_newton_go_to_the_minimiser_of_the_penalised_objective(loss):
    data, s = sample(loss), 0.8
    oracle = data.oracle()
    limit = star_graph.penalised_minimiser(oracle, START, s)
    assert norm_of_sum(oracle, limit[1:]) <= 1e-14
    for algorithm, steps in ((fh.dgd(step_size=s), 1000), (fh.network_newton(alpha=s, K=2), 400)):
        state, trace, own = run(algorithm, data, steps=steps)
        assert error(state.x0, limit[0]) <= 1e-11
        assert error(own["x"], limit[1:]) <= 1e-11
        assert error(state.x0, optimum(oracle)) > 0.02
        # the server can see that this is not the answer
        assert trace.residual[-1] >= norm_of_sum(oracle, [trace.x0[-1]] * 6) > 1e-2


def test_dgds_limit_on_least_squares_is_a_linear_system_and_nears_the_optimum_with_the_step_size():
    data = sample("squared")
    H = [f.hess(np.zeros(4)) for f in data.oracle()]
    c = [-f.grad(np.zeros(4)) for f in data.oracle()]

    def limit(s):
        """Leaf: (sH + 1/7)·xᵢ = s·c + x₀/7. Hub: x₀ = mean(x)."""
        inverse = [np.linalg.inv(s * H_i + np.eye(4) / 7) for H_i in H]
        fixed = np.mean([s * P @ c_i for P, c_i in zip(inverse, c, strict=True)], axis=0)
        return np.linalg.solve(np.eye(4) - np.mean(inverse, axis=0) / 7, fixed)

    for s in (1.6, 0.4):
        assert error(run(fh.dgd(step_size=s), data, steps=2000)[0].x0, limit(s)) <= 1e-11
    away = [error(limit(s), optimum(data.oracle())) for s in (0.4, 0.02, 0.01)]
    assert away[0] > 0.1
    assert away[1] == pytest.approx(2 * away[2], rel=0.1)


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [(fh.extra(step_size=1.5), 500), (fh.esom(alpha=0.5, eps=0.05, K=0), 200), (fh.esom(alpha=1.0, eps=0.05, K=2), 150)],
    ids=["extra", "esom-0", "esom-2"],
)
@every_loss
def test_extra_and_esom_go_to_the_optimum_and_their_residual_bounds_the_gradient(loss, algorithm, steps):
    data = sample(loss)
    oracle, x_star = data.oracle(), optimum(data.oracle())
    state, trace, own = run(algorithm, data, steps=steps)
    assert error(state.x0, x_star) <= 1e-11
    assert error(own["x"], np.tile(x_star, (6, 1))) <= 1e-11
    assert trace.residual[-1] <= 1e-9
    for k in range(30):
        assert trace.residual[k] >= norm_of_sum(oracle, [START if k == 0 else trace.x0[k - 1]] * 6)


def circling():
    """Rows sorted by their label: every client has its own idea of the answer."""
    rng = np.random.default_rng(2)
    truth = rng.normal(size=2)
    A = 5.0 * rng.normal(size=(40, 2))
    y = (A @ truth + rng.logistic(size=40) > 0).astype(float)
    return fh.Fleet([(A[rows], y[rows]) for rows in np.array_split(np.argsort(y, kind="stable"), 4)], loss=fh.huber(delta=0.1), reg=0.1)


def test_distributed_newtons_full_steps_can_go_round_in_circles_where_shorter_ones_arrive():
    fleet = circling()
    x_star = fh.solve(fleet, fh.newton()).x
    full = fh.run(fh.distributed_newton(step_size=1.0), fh.Stacked(fleet), 200)[1]
    assert min(error(x0, x_star) for x0 in full.x0[100:]) > 0.1
    shorter = fh.run(fh.distributed_newton(step_size=0.5), fh.Stacked(fleet), 200)[1]
    assert error(shorter.x0[-1], x_star) <= 1e-9


def test_distributed_newton_needs_one_step_on_least_squares():
    data = sample("squared")
    assert error(run(fh.distributed_newton(), data, steps=1)[0].x0, optimum(data.oracle())) <= 1e-13


@pytest.mark.parametrize("algorithm", [fh.extra(step_size=1.5), fh.esom(alpha=0.5, eps=0.05), fh.distributed_newton()], ids=str)
def test_solve_proves_the_answer_of_the_exact_ones(algorithm):
    result = fh.solve(sample("logistic").fleet(), algorithm, tol=1e-9)
    assert result.status is fh.Status.SOLVED


@pytest.mark.parametrize("make", [fh.network_newton, lambda **more: fh.esom(eps=1.0, **more)])
@pytest.mark.parametrize("K", [-1, 1.0, True, "2"])
def test_a_number_of_terms_that_is_none_is_refused(make, K):
    with pytest.raises(fh.InvalidConfig, match="K must be a whole number, 0 or more"):
        make(alpha=1.0, K=K)


@pytest.mark.parametrize("make", [fh.dgd, fh.extra, fh.distributed_newton])
def test_a_step_size_that_is_none_is_refused(make):
    with pytest.raises(fh.InvalidConfig, match=rf"^{make.__name__}: step_size must be positive"):
        make(step_size=-1.0)
