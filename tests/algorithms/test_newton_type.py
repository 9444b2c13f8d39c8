"""DANE, AIDE, GIANT, DiSCO, DINGO and FedNew, step by step, against their papers in tests/reference; and where they fail."""

import numpy as np
import pytest
from reference import newton_type as paper
from samples import crossed, error, sample

import fedhybrid as fh

TRANSPORTS = [fh.Stacked, fh.Serial]
LOSSES = ["squared", "logistic"]
START = 0.5 * np.random.default_rng(9).normal(size=4)


def grouped(names):
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"newton type {name}")) for name in names]


every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
every_loss = pytest.mark.parametrize("loss", grouped(LOSSES))
every_cell = pytest.mark.parametrize(("loss", "transport"), crossed("newton type", LOSSES))


def trace(algorithm, data, transport=fh.Stacked, steps=7, x0=START):
    return fh.run(algorithm, transport(data.fleet(update="gradient")), steps, x0)[1]


def optimum(data):
    oracle = data.oracle()
    x = np.zeros(len(data.plain_reg))
    for _ in range(20):
        x = x - np.linalg.solve(sum(f.hess(x) for f in oracle), sum(f.grad(x) for f in oracle))
    return x


def assert_gradient_norms(got, data, x0=START):
    norms = [np.linalg.norm(sum(f.grad(x) for f in data.oracle())) for x in (x0, *got.x0[:-1])]
    assert np.max(np.abs(got.residual - norms)) <= 1e-13 * norms[0]


# ── the papers' steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("mu", "eta"), [(0.07, 0.9), (1e-3, 1.0)])
@every_cell
def test_dane_takes_the_papers_steps(loss, mu, eta, transport):
    data = sample(loss)
    got = trace(fh.dane(mu=mu, eta=eta), data, transport)
    assert error(got.x0, paper.dane(data.oracle(), START, 7, mu, eta)) <= 1e-12
    assert_gradient_norms(got, data)


@pytest.mark.parametrize("inner", [1, 3])
@every_cell
def test_aide_takes_the_papers_steps(loss, inner, transport):
    data, parameters = sample(loss), {"tau": 0.06, "mu": 0.02, "m": 0.05, "eta": 0.9, "inner": inner}
    got = trace(fh.aide(**parameters), data, transport)
    assert error(got.x0, paper.aide(data.oracle(), START, 7, **parameters)) <= 1e-12
    assert_gradient_norms(got, data)


@every_cell
def test_giant_takes_the_papers_steps(loss, transport):
    data = sample(loss, reg=0.001)
    got = trace(fh.giant(candidates=12), data, transport)
    expected, t = paper.giant(data.oracle(), START, 7, 12)
    assert len(set(t)) >= 2
    assert t.max() < 1
    assert error(got.x0, expected) <= 1e-12
    assert_gradient_norms(got, data)


@pytest.mark.parametrize(("accuracy", "who", "damped", "most"), [(0.2, 3, True, 100), (1e-3, 1, False, 100), (1e-9, 4, True, 2)])
@every_cell
def test_disco_takes_the_papers_steps(loss, accuracy, who, damped, most, transport):
    data = sample(loss, reg=0.05)
    steps = 3 if accuracy == 1e-3 else 7  # beyond, rounding is all that is left of a gradient
    got = trace(fh.disco(mu=0.03, accuracy=accuracy, who=who, damped=damped, most=most), data, transport, steps)
    expected, iterations = paper.disco(data.oracle(), START, steps, 0.03, accuracy, who, damped, most)
    assert error(got.x0, expected) <= 1e-12
    assert np.array_equal(np.diff(got.rounds, prepend=0), iterations + 2)
    assert_gradient_norms(got, data)


@every_transport
@pytest.mark.parametrize(
    ("options", "theta", "phi", "cases"),
    [
        ({"loss": "squared"}, 2.0, 0.05, {3}),
        ({"loss": "squared", "reg": 0.001}, 1e-4, 1e-6, {1}),
        ({"loss": "squared", "reg": 0.001, "sizes": (2, 1, 3), "seed": 1}, 1.0, 1e-3, {1, 2, 3}),
        ({"loss": "logistic", "reg": 0.05}, 2.0, 0.05, {1, 3}),
        ({"loss": "logistic", "reg": 0.001, "sizes": (4, 5), "seed": 8}, 1e-3, 0.05, {1, 2}),
    ],
)
def test_dingo_takes_the_papers_steps(options, theta, phi, cases, transport):
    data = sample(**options)
    got = trace(fh.dingo(theta=theta, phi=phi), data, transport, 6)
    expected, seen, t = paper.dingo(data.oracle(), START, 6, theta, phi)
    assert set(seen) == cases
    assert error(got.x0, expected) <= 1e-12
    # one for the directions, one more in case 3, one a trial; and the first step's gradient
    assert np.array_equal(np.diff(got.rounds, prepend=0), 2 + (seen == 3) + np.log2(1 / t) + (np.arange(6) == 0))
    assert_gradient_norms(got, data)


@every_cell
def test_fednew_takes_the_papers_steps(loss, transport):
    data = sample(loss)
    got = trace(fh.fednew(alpha=0.03, rho=0.07), data, transport)
    assert error(got.x0, paper.fednew(data.oracle(), START, 7, 0.03, 0.07)) <= 1e-12
    norms = [np.linalg.norm(sum(f.grad(x) for f in data.oracle())) for x in (START, *got.x0[:-1])]
    assert np.all(got.residual >= norms)


# ── on data as far from IID as they get: one client has the only row, the others nothing but their share of the penalty ────────


@pytest.fixture(scope="module")
def far():
    row = (np.array([[np.sqrt(300.0)]]), np.array([2.0]))
    nothing = (np.zeros((0, 1)), np.zeros(0))
    return fh.Stacked(fh.Fleet([row, nothing, nothing, nothing], loss=fh.squared, reg=0.4))


H = np.array([300.1, 0.1, 0.1, 0.1])  # the clients' second derivatives there
X_STAR = np.sqrt(300.0) * 2.0 / H.sum()


def distances(algorithm, clients, steps):
    """From x*, at the start (0) and after each step."""
    return np.append(-X_STAR, fh.run(algorithm, clients, steps)[1].x0[:, 0] - X_STAR)


@pytest.mark.parametrize(("mu", "eta"), [(1.0, 1.0), (15.0, 0.5), (40.0, 1.0)])
def test_dane_converges_or_diverges_by_the_factor_that_quadratics_have(far, mu, eta):
    got = distances(fh.dane(mu=mu, eta=eta), far, 6)
    factor = 1 - eta * np.mean(1 / (H + mu)) * np.mean(H)
    assert (abs(factor) > 1) == (mu == 1.0)
    assert error(got[1:] / got[:-1], np.full(6, factor)) <= 1e-9


def test_aide_converges_where_its_inner_steps_do(far):
    assert abs(distances(fh.aide(tau=0.5, mu=0.5, m=0.1, inner=2), far, 6)[-1]) > 1e6
    assert abs(distances(fh.aide(tau=5.0, mu=40.0, m=75.0, inner=2), far, 60)[-1]) <= 1e-13


def test_giant_diverges_where_its_least_step_is_too_long(far):
    got = distances(fh.giant(candidates=5), far, 6)
    factor = 1 - 2.0**-4 * np.mean(1 / H) * np.mean(H)
    assert factor < -1
    assert error(got[1:] / got[:-1], np.full(6, factor)) <= 1e-9
    assert abs(distances(fh.giant(candidates=20), far, 60)[-1]) <= 1e-13


def test_giant_has_no_direction_where_a_clients_hessian_is_singular():
    data = sample("squared", sizes=(9, 1, 7), reg=0.0)
    assert not np.isfinite(trace(fh.giant(), data, steps=2).x0).all()
    result = fh.solve(data.fleet(update="gradient"), fh.giant())
    assert result.status is fh.Status.NONFINITE


@every_loss
def test_giant_is_not_stopped_by_the_rounding_of_the_objective(loss):
    data = sample(loss, reg=0.05)
    assert error(trace(fh.giant(), data, steps=400).x0[-1], optimum(data)) <= 1e-12


def test_disco_and_dingo_do_not_mind_how_the_data_are_dealt(far):
    for who in range(4):
        assert abs(distances(fh.disco(mu=1e-3, who=who), far, 40)[-1]) <= 1e-13
    assert abs(distances(fh.dingo(), far, 40)[-1]) <= 1e-13


def fednews_map(alpha, rho):
    """How one iteration on `far` maps the distances of x, y and the λ's from where they are to go; the λ's are kept to sum 0."""
    n, columns = len(H), []
    for unit in np.eye(2 + n):
        x, y, lam = unit[0], unit[1], unit[2:] - np.mean(unit[2:])
        own = (H * x - lam + rho * y) / (H + alpha + rho)
        columns.append(np.concatenate([[x - own.mean(), own.mean()], lam + rho * (own - own.mean())]))
    return np.array(columns).T


@pytest.mark.parametrize(("alpha", "rho", "converges"), [(0.1, 6.0, False), (60.0, 60.0, True)])
def test_fednew_converges_or_diverges_by_the_spectrum_that_quadratics_have(far, alpha, rho, converges):
    radius = np.max(np.abs(np.linalg.eigvals(fednews_map(alpha, rho))))
    assert (radius < 1) == converges
    got = np.abs(distances(fh.fednew(alpha=alpha, rho=rho), far, 300))
    assert got[-1] <= 1e-13 if converges else got[-1] > 1e6


def test_disco_needs_few_rounds_where_clients_are_alike():
    rng = np.random.default_rng(0)
    scales, truth = np.linspace(0.05, 1.0, 30), rng.normal(size=30)
    sites = []
    for _ in range(5):
        A = rng.normal(size=(400, 30)) * scales
        sites.append((A, A @ truth + rng.normal(size=400)))
    clients = fh.Stacked(fh.Fleet(sites, loss=fh.squared, reg=1e-3))
    preconditioned = fh.run(fh.disco(mu=1e-3, accuracy=1e-6), clients, 1)[1].rounds[0]
    plain = fh.run(fh.disco(mu=1e6, accuracy=1e-6), clients, 1)[1].rounds[0]  # P is a multiple of I
    assert preconditioned <= 12
    assert plain >= 2 * preconditioned


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fh.dane(mu=0.0), "dane: mu must be positive"),
        (lambda: fh.dane(mu=1.0, eta=-1.0), "dane: eta must be positive"),
        (lambda: fh.aide(tau=-1.0, mu=1.0, m=1.0), "aide: tau must be positive"),
        (lambda: fh.aide(tau=1.0, mu=1.0, m=1.0, inner=0), "aide: inner must be a positive whole number"),
        (lambda: fh.giant(candidates=2.5), "giant: candidates must be a positive whole number"),
        (lambda: fh.disco(mu=1.0, who=-1), "disco: who must be the number of a client"),
        (lambda: fh.disco(mu=1.0, who="first"), "disco: who must be the number of a client"),
        (lambda: fh.disco(mu=1.0, damped=1), "disco: damped must be True or False"),
        (lambda: fh.disco(mu=1.0, most=0), "disco: most must be a positive whole number"),
        (lambda: fh.dingo(theta=0.0), "dingo: theta must be positive"),
        (lambda: fh.fednew(alpha=1.0, rho=0.0), "fednew: rho must be positive"),
        (lambda: fh.run(fh.disco(mu=1.0, who=6), fh.Stacked(sample("squared").fleet()), 1), "disco: who is 6"),
    ],
)
def test_bad_parameters_are_refused_by_name(make, message):
    with pytest.raises(fh.InvalidConfig, match=message):
        make()
