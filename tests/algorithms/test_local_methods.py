"""FedAvg, FedProx, SCAFFOLD, FedAC, FedPD and consensus ADMM against their papers in tests/reference, and where they go."""

import jax
import numpy as np
import pytest
from reference import local_methods as paper
from reference.companions import newton
from reference.pooled import least_squares_exact
from samples import crossed, error, sample
from scipy.optimize import minimize

import fedhybrid as fh
from fedhybrid.algorithms.admm import update as admm_update

LOSSES = ["squared", "logistic", "poisson"]
START = 0.5 * np.random.default_rng(9).normal(size=4)
STEPS = 7


def grouped(names):
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"local methods {name}")) for name in names]


every_loss = pytest.mark.parametrize("loss", ["squared", "logistic", pytest.param("poisson", marks=pytest.mark.slow)])
every_cell = pytest.mark.parametrize(("loss", "transport"), crossed("local methods", LOSSES))
squared_only = pytest.mark.parametrize("loss", grouped(["squared"]))


def run(algorithm, data, transport=fh.Stacked, steps=STEPS):
    return fh.run(algorithm, transport(data.fleet()), steps, START)[1]


def held(algorithm, data, transport):
    """What every client keeps after the last step, in site order."""
    clients = transport(data.fleet())
    state, _ = fh.run(algorithm, clients, STEPS, START)
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, clients.observe(_all, state.local))


def _all(me, local):
    return local


def norms_of_sums(oracle, x):
    """‖Σ∇fᵢ(xᵢ)‖ for xᵢ of each round."""
    return [np.linalg.norm(sum(f.grad(own) for f, own in zip(oracle, xs, strict=True))) for xs in x]


def quadratics(oracle):
    """Hessians and minimisers of the clients of a squared loss with a penalty."""
    H = [f.hess(np.zeros(4)) for f in oracle]
    return H, [np.linalg.solve(Hi, -f.grad(np.zeros(4))) for Hi, f in zip(H, oracle, strict=True)]


# ── traces ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("E", [1, 3])
@every_cell
def test_fedavg_takes_the_papers_steps(loss, E, transport):
    data = sample(loss)
    got = run(fh.fedavg(step_size=0.6, local_steps=E), data, transport)
    expected, g = paper.fedavg(data.oracle(), START, 0.6, E, STEPS)
    assert error(got.x0, expected) <= 1e-12
    assert error(got.residual, np.linalg.norm(g.mean(axis=1), axis=1)) <= 1e-12


@every_cell
def test_fedprox_takes_the_papers_steps(loss, transport):
    data = sample(loss)
    got = run(fh.fedprox(rho=0.15), data, transport)
    expected, x = paper.fedprox(data.oracle(), START, 0.15, STEPS)
    assert error(got.x0, expected) <= 1e-12
    assert error(got.residual, norms_of_sums(data.oracle(), x)) <= 1e-12


@pytest.mark.parametrize("E", [1, 3])
@every_cell
def test_scaffold_takes_the_papers_steps(loss, E, transport):
    data = sample(loss)
    algorithm = fh.scaffold(step_size=0.6, local_steps=E, server_step_size=1.3)
    got = run(algorithm, data, transport)
    expected, c, c_own = paper.scaffold(data.oracle(), START, 0.6, 1.3, E, STEPS)
    assert error(got.x0, expected) <= 1e-12
    assert error(held(algorithm, data, transport).c, c_own[-1]) <= 1e-12
    assert error(got.residual, 6 * np.linalg.norm(c, axis=1)) <= 1e-12


def fedac_weights(eta, m, E):
    """How much each of the E gradients moves x, by powers of the map (x₀, x) → (x₀, x) without gradients."""
    gamma, alpha, beta = paper.fedac_one(eta, m, E)
    middle = np.array([1 - 1 / beta, 1 / beta])
    T = np.array([middle, middle / alpha + [0.0, 1 - 1 / alpha]])
    return np.array([(np.linalg.matrix_power(T, E - 1 - k) @ [eta, gamma])[1] for k in range(E)])


@pytest.mark.parametrize("E", [1, 3])
@every_cell
def test_fedac_takes_the_papers_steps(loss, E, transport):
    data = sample(loss)
    clients = transport(data.fleet())
    state, got = fh.run(fh.fedac(step_size=0.6, m=0.05, local_steps=E), clients, STEPS, START)
    expected, x, g = paper.fedac(data.oracle(), START, 0.6, 0.05, E, STEPS)
    assert error(got.x0, expected) <= 1e-12
    assert error(state.x, x[-1]) <= 1e-12
    weights = fedac_weights(0.6, 0.05, E)
    weighted_means = np.einsum("k,rkd->rd", weights / weights.sum(), g)
    assert error(got.residual, np.linalg.norm(weighted_means, axis=1)) <= 1e-12


@pytest.mark.parametrize("step_size", [0.6, 5.0])
def test_fedac_takes_its_larger_step_from_the_papers_first_choice(step_size):
    data = sample("squared")
    got = run(fh.fedac(step_size=step_size, m=0.1, local_steps=3), data, steps=2)  # √(5/(0.1·3)) < 5: the other branch of γ
    assert error(got.x0, paper.fedac(data.oracle(), START, step_size, 0.1, 3, 2)[0]) <= 1e-12


@every_cell
def test_fedpd_takes_the_papers_steps(loss, transport):
    data = sample(loss)
    algorithm = fh.fedpd(eta=4.0)
    got, local = run(algorithm, data, transport), held(algorithm, data, transport)
    expected, x, lam = paper.fedpd(data.oracle(), START, 4.0, STEPS)
    assert error(got.x0, expected) <= 1e-12
    assert error(local.x, x[-1]) <= 1e-12
    assert error(local.lam, -lam[-1]) <= 1e-12
    assert error(got.residual, norms_of_sums(data.oracle(), x)) <= 1e-12


@every_cell
def test_admm_takes_the_books_steps(loss, transport):
    data = sample(loss)
    algorithm = fh.admm(rho=0.25)
    got, local = run(algorithm, data, transport), held(algorithm, data, transport)
    expected, x, y = paper.admm(data.oracle(), START, 0.25, STEPS)
    assert error(got.x0, expected) <= 1e-12
    assert error(local.x, x[-1]) <= 1e-12
    assert error(local.lam, -y[-2]) <= 1e-12  # the last step of the multipliers waits for the next round
    assert error(got.residual, norms_of_sums(data.oracle(), x)) <= 1e-12


def _sent(me, local, x0):
    return admm_update(me, local, x0)[1]


@every_cell
def test_an_admm_client_sends_the_books_vector(loss, transport):
    """The multipliers add up to zero, so that the server's points alone do not show whether they are sent."""
    data = sample(loss)
    clients = transport(data.fleet())
    state, _ = fh.run(fh.admm(rho=0.25), clients, STEPS, START)
    with jax.enable_x64(True):
        sent = clients.observe(_sent, state.local, state.x0)
    _, x, y = paper.admm(data.oracle(), START, 0.25, STEPS + 1)
    assert error(sent, x[-1] + y[-2] / 0.25) <= 1e-12


# ── one local step ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_loss
def test_one_local_step_is_gradient_descent(loss):
    data = sample(loss)
    gradient_descent = run(fh.gd(step_size=0.9 / 6), data)
    assert error(run(fh.fedavg(step_size=0.9, local_steps=1), data).x0, gradient_descent.x0) <= 1e-13
    assert error(run(fh.scaffold(step_size=0.6, local_steps=1, server_step_size=1.5), data).x0, gradient_descent.x0) <= 1e-13


@every_loss
def test_fedac_with_one_local_step_reaches_the_optimum_in_fewer_rounds_than_gradient_descent(loss):
    data = sample(loss, reg=[5.0, 0.01, 0.01, 0.01])  # badly conditioned: else there is little to gain
    x_star = newton(data.oracle(), np.zeros(4), 8)[0][-1]
    spectrum = np.linalg.eigvalsh(sum(f.hess(x_star) for f in data.oracle()) / 6)
    step_size = 0.8 / spectrum[-1]
    accelerated = run(fh.fedac(step_size=step_size, m=spectrum[0], local_steps=1), data, steps=800)
    plain = run(fh.gd(step_size=step_size / 6), data, steps=800)
    assert error(accelerated.x0[-1], x_star) <= 1e-11
    assert first_below(accelerated, x_star) < 0.4 * first_below(plain, x_star)


def first_below(trace, x_star, tol=1e-4):
    """The step after which x₀ is so near; their number, if none is."""
    far = np.linalg.norm(trace.x0 - x_star, axis=1) > tol * np.linalg.norm(x_star)
    return int(np.argmin(far)) if not far.all() else len(far)


# ── where the biased ones go ──────────────────────────────────────────────────────────────────────────────────────────────────


def assert_goes_to(algorithm, data, limit, steps=600):
    x_star = least_squares_exact(data.plain_sites, data.plain_reg)
    got = run(algorithm, data, steps=steps)
    assert error(got.x0[-1], limit) <= 1e-11
    assert error(got.x0[-1], x_star) >= 1e-2


def fedavg_limit(oracle, s, E):
    """Σ(I − (I − s·Hᵢ)ᴱ)(x − xᵢ*) = 0."""
    H, x_own = quadratics(oracle)
    M = [np.eye(4) - np.linalg.matrix_power(np.eye(4) - s * Hi, E) for Hi in H]
    return np.linalg.solve(sum(M), sum(Mi @ x for Mi, x in zip(M, x_own, strict=True)))


@squared_only
def test_fedavg_goes_to_the_zero_of_its_clients_total_displacement(loss):
    data = sample(loss)
    assert_goes_to(fh.fedavg(step_size=0.8, local_steps=5), data, fedavg_limit(data.oracle(), 0.8, 5))


@squared_only
def test_fedavg_misses_the_optimum_by_a_distance_in_proportion_to_its_step(loss):
    data = sample(loss)
    x_star = least_squares_exact(data.plain_sites, data.plain_reg)
    bias = [np.linalg.norm(run(fh.fedavg(step_size=s, local_steps=5), data, steps=4000).x0[-1] - x_star) for s in (0.02, 0.01)]
    assert bias[1] > 1e-4
    assert 1.95 <= bias[0] / bias[1] <= 2.05


@squared_only
def test_fedprox_goes_to_the_minimiser_of_the_moreau_envelopes(loss):
    data, rho = sample(loss), 0.2
    H, x_own = quadratics(data.oracle())
    M = [rho * np.linalg.solve(Hi + rho * np.eye(4), Hi) for Hi in H]  # the envelopes' Hessians
    limit = np.linalg.solve(sum(M), sum(Mi @ x for Mi, x in zip(M, x_own, strict=True)))
    assert_goes_to(fh.fedprox(rho=rho), data, limit)


@pytest.mark.parametrize("loss", grouped(["logistic"]))
def test_fedprox_minimises_the_moreau_envelopes_also_where_there_is_no_formula(loss):
    data, rho = sample(loss), 0.2
    oracle = data.oracle()

    def envelopes(x):
        value, slope = 0.0, np.zeros(4)
        for f in oracle:
            u = paper.argmin(lambda u, f=f: f.grad(u) + rho * (u - x), lambda u, f=f: f.hess(u) + rho * np.eye(4), x)
            value, slope = value + f.value(u) + 0.5 * rho * np.sum((u - x) ** 2), slope + rho * (x - u)
        return value, slope

    limit = minimize(envelopes, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    x_star = newton(oracle, np.zeros(4), 8)[0][-1]
    got = run(fh.fedprox(rho=rho), data, steps=600).x0[-1]
    assert error(got, limit) <= 1e-7  # as near as BFGS gets
    assert error(got, x_star) >= 1e-2


@squared_only
def test_fedac_goes_to_the_fixed_point_of_its_clients_averaged_maps(loss):
    data, eta, m, E = sample(loss), 0.5, 0.05, 5
    gamma, alpha, beta = paper.fedac_one(eta, m, E)
    identity, total, shift = np.eye(4), np.zeros((8, 8)), np.zeros(8)
    for H, x_own in zip(*quadratics(data.oracle()), strict=True):
        middle = np.hstack([(1 - 1 / beta) * identity, identity / beta])  # v from (x₀, x), with x* as the origin
        x0_row = middle - eta * H @ middle
        x_row = middle / alpha - gamma * H @ middle + np.hstack([0 * identity, (1 - 1 / alpha) * identity])
        T = np.linalg.matrix_power(np.vstack([x0_row, x_row]), E)
        total, shift = total + T / 6, shift + (np.eye(8) - T) @ np.tile(x_own, 2) / 6
    limit = np.linalg.solve(np.eye(8) - total, shift)[:4]
    assert_goes_to(fh.fedac(step_size=eta, m=m, local_steps=E), data, limit)


# ── the exact ones ────────────────────────────────────────────────────────────────────────────────────────────────────────────

EXACT = {
    "scaffold": fh.scaffold(step_size=0.3, local_steps=5),
    "fedpd": fh.fedpd(eta=4.0),
    "admm": fh.admm(rho=0.25),
}


@pytest.mark.parametrize("weighting", ["row", "client"])
@pytest.mark.parametrize("name", EXACT)
@squared_only
def test_the_others_reach_the_optimum_and_their_clients_hold_its_gradients(loss, name, weighting):
    data = sample(loss)
    oracle = data.oracle(weighting)
    x_star = np.linalg.solve(sum(f.hess(np.zeros(4)) for f in oracle), -sum(f.grad(np.zeros(4)) for f in oracle))
    clients = fh.Stacked(data.fleet(weighting))
    state, got = fh.run(EXACT[name], clients, 1500, START)
    assert error(got.x0[-1], x_star) <= 1e-11
    with jax.enable_x64(True):
        local = clients.observe(_all, state.local)
    held = local.c if name == "scaffold" else local.lam
    assert error(held, [f.grad(x_star) for f in oracle]) <= 1e-10


@squared_only
def test_scaffolds_rounding_errors_do_not_add_up(loss):
    data = sample(loss)
    x_star = least_squares_exact(data.plain_sites, data.plain_reg)
    assert error(run(EXACT["scaffold"], data, steps=20_000).x0[-1], x_star) <= 1e-14


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

MISTAKES = [
    (fh.fedavg, {"step_size": 0.0, "local_steps": 2}, "fedavg: step_size must be positive"),
    (fh.fedavg, {"step_size": 0.1, "local_steps": 0}, "fedavg: local_steps must be a positive whole number"),
    (fh.fedprox, {"rho": -1.0}, "fedprox: rho must be positive"),
    (fh.scaffold, {"step_size": "s", "local_steps": 2}, "scaffold: step_size must be a number"),
    (fh.scaffold, {"step_size": 0.1, "local_steps": 2.0}, "scaffold: local_steps must be a positive whole number"),
    (fh.scaffold, {"step_size": 0.1, "local_steps": 2, "server_step_size": np.inf}, "scaffold: server_step_size must be positive"),
    (fh.fedac, {"step_size": 0.1, "m": 0, "local_steps": 2}, "fedac: m must be positive"),
    (fh.fedac, {"step_size": [0.1, 0.2], "m": 0.1, "local_steps": 2}, "fedac: step_size must be one number"),
    (fh.fedac, {"step_size": 0.1, "m": 0.1, "local_steps": True}, "fedac: local_steps must be a positive whole number"),
    (fh.fedpd, {"eta": np.nan}, "fedpd: eta must be positive"),
    (fh.admm, {"rho": 0}, "admm: rho must be positive"),
    (fh.admm, {"mu": 1.0}, "admm: .* Its arguments are: rho"),
]


@pytest.mark.parametrize(("factory", "parameters", "message"), MISTAKES)
def test_a_parameter_out_of_range_is_named(factory, parameters, message):
    with pytest.raises(fh.InvalidConfig, match=message):
        factory(**parameters)
