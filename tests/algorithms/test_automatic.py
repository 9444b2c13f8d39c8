"""FedHybrid that chooses μ, a and b itself, and by Theorem 1."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.local_steps import local_steps
from reference.pooled import least_squares_exact
from samples import error, sample

import fedhybrid as fh
from fedhybrid import theory
from fedhybrid.algorithms import automatic
from fedhybrid.problem import GLM

SIZES = (20, 15, 10, 18, 12, 15)
KINDS = {"newton": "newton", "gradient": "gradient", "mixed": ("newton", "gradient", "newton-cg", "gradient", "newton", "gradient")}


@functools.cache
def one_label(kind):
    """Logistic loss, each client with one label, correlated columns: the Hessians differ, and so do the gradients."""
    rng = np.random.default_rng(3)
    A = 1.5 * rng.normal(size=(240, 6))
    y = (A @ rng.normal(size=6) + rng.logistic(size=240) > 0).astype(float)
    parts = np.array_split(np.argsort(y, kind="stable"), 6)
    return fh.Fleet([(A[part], y[part]) for part in parts], loss=fh.logistic, reg=0.02, update=KINDS[kind])


@functools.cache
def counts(kind):
    """Poisson loss, clients sorted by response: at the optimum one client is bent two hundred times as much as another."""
    rng = np.random.default_rng(4)
    A = rng.normal(size=(240, 5))
    y = rng.poisson(np.exp(np.clip(A @ (0.8 * rng.normal(size=5)), -5, 5))).astype(float)
    parts = np.array_split(np.argsort(y, kind="stable"), 6)
    return fh.Fleet([(A[part], y[part]) for part in parts], loss=fh.poisson, reg=0.02, update=KINDS[kind])


PARAMETERLESS_ALWAYS = [("squared", "mixed"), *(("one label", kind) for kind in KINDS)]
PARAMETERLESS = itertools.product(("squared", "one label", "logistic", "poisson", "huber", "softmax", "counts"), KINDS)


@pytest.mark.parametrize(
    ("loss", "kind"), [pytest.param(*cell, marks=[] if cell in PARAMETERLESS_ALWAYS else pytest.mark.slow) for cell in PARAMETERLESS]
)
def test_it_solves_without_a_parameter(loss, kind):
    special = {"one label": one_label, "counts": counts}
    fleet = special[loss](kind) if loss in special else sample(loss, sizes=SIZES, d=5, reg=0.1).fleet(update=KINDS[kind])
    result = fh.solve(fleet, fh.fedhybrid(), max_rounds=2000)
    assert result.status is fh.Status.SOLVED
    assert result.trace.residual.max() <= 100 * result.trace.residual[0]  # and never went astray


def test_a_far_start_is_no_danger():
    for fleet in (one_label("mixed"), counts("mixed")):
        result = fh.solve(fleet, fh.fedhybrid(), x0=np.full(fleet.d, 2.0), max_rounds=3000)
        assert result.status is fh.Status.SOLVED


@pytest.mark.parametrize("transport", [fh.Stacked, fh.Serial])
def test_choosing_costs_what_is_stated(transport):
    data = sample("squared", sizes=SIZES, d=5, reg=0.1)
    trace = fh.run(fh.fedhybrid(), transport(data.fleet(update=KINDS["mixed"])), 20)[1]
    extra = np.zeros(20)
    extra[[0, 3, 15]] = 2, 1, 1  # at the start, and looking again after 4 and 16 steps; quadratics stay as they are
    assert np.diff(trace.rounds, prepend=0).tolist() == (1 + extra).tolist()
    up = np.full(20, 6 * 7)
    up[[0, 3, 15]] += np.array([6 * (2 + 5), 6 * 2, 6 * 2])
    assert np.diff(trace.floats_up, prepend=0).tolist() == up.tolist()
    down = np.full(20, 6 * 5)
    down[0] += 6 * 2
    assert np.diff(trace.floats_down, prepend=0).tolist() == down.tolist()


@pytest.mark.parametrize("steps", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_both_transports_choose_the_same(steps):
    fleet = one_label("mixed")
    stacked, serial = (fh.run(fh.fedhybrid(local_steps=steps), transport(fleet), 10)[1] for transport in (fh.Stacked, fh.Serial))
    for k in range(10):
        assert error(stacked.x0[k], serial.x0[k]) <= 1e-12
    assert np.array_equal(stacked.rounds, serial.rounds)


def held(me, local):
    return local.x, local.lam


def test_x0_stays_consistent_when_mu_changes():
    fleet = one_label("mixed")
    clients, algorithm = fh.Stacked(fleet), fh.fedhybrid()
    penalties = []
    with jax.enable_x64(True):
        state = algorithm.init(clients, jnp.zeros(fleet.d))
        for _ in range(10):
            state = clients.call(algorithm.step, (), state)
            x, lam = clients.observe(held, state.local)
            assert error(state.x0, np.mean(x, axis=0) - np.mean(lam, axis=0) / float(state.mu)) <= 1e-12
            penalties.append(float(state.mu))
    assert len(set(penalties)) > 1


def test_a_gradient_client_never_forms_a_hessian(monkeypatch):
    def refuse(self, x):
        raise AssertionError("a Hessian was formed")

    monkeypatch.setattr(GLM, "hess", refuse)
    data = sample("logistic", sizes=(21, 16, 11), d=7, reg=0.1)
    for update in ("gradient", "newton-cg"):
        fh.run(fh.fedhybrid(), fh.Stacked(data.fleet(update=update)), 6)


# ── local steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.slow)])
def test_six_rounds_of_local_steps_are_the_loops(loss):
    kinds = ("newton", "gradient", "diagonal", "gradient", "newton", "diagonal")
    data = sample(loss, sizes=SIZES, d=5, reg=0.1)
    fleet, clients, algorithm = data.fleet(update=kinds), fh.Stacked(data.fleet(update=kinds)), fh.fedhybrid(mu=0.05, local_steps=3)
    expected = local_steps(data.oracle(), kinds, 0.05, 3, 6, relaxation=1.8 if loss == "squared" else 1.0)
    with jax.enable_x64(True):
        state = algorithm.init(clients, jnp.zeros(fleet.d))
        for k in range(6):
            state = clients.call(algorithm.step, (), state)
            x, lam = clients.observe(held, state.local)
            for got, wanted in ((x, expected.x), (lam, expected.lam), (state.x0, expected.x0)):
                assert error(got, wanted[k]) <= 1e-12


def rounds_to(algorithm, fleet, x_star, accuracy=1e-9):
    trace = fh.run(algorithm, fh.Stacked(fleet), 400)[1]
    late = np.flatnonzero(~(np.linalg.norm(trace.x0 - x_star, axis=1) <= accuracy * np.linalg.norm(x_star)))
    return int(trace.rounds[late[-1]])


def test_local_steps_save_rounds():
    data = sample("squared", sizes=SIZES, d=5, reg=0.1)
    x_star = least_squares_exact(data.plain_sites, 0.1)
    one, several = (rounds_to(fh.fedhybrid(local_steps=steps), data.fleet(update="gradient"), x_star) for steps in (1, None))
    assert several <= one / 3


def bumps(z, y):
    """Bends down where |z − y| > 1."""
    return 0.5 * jnp.log1p((z - y) ** 2)


@pytest.mark.parametrize("update", ["diagonal", pytest.param("gradient", marks=pytest.mark.slow)])
def test_it_is_safe_where_the_loss_bends_down(update):
    rng = np.random.default_rng(0)
    sites = [(A, A @ [1.0, -1.0, 1.0] + rng.standard_t(1.5, size=30)) for A in rng.normal(size=(4, 30, 3))]
    fleet = fh.Fleet(sites, loss=bumps, reg=0.01, update=update)
    result = fh.solve(fleet, fh.fedhybrid(), x0=[4.0, -4.0, 4.0], max_rounds=1000)
    assert result.status in (fh.Status.SOLVED, fh.Status.SOLVED_INACCURATE)


@pytest.mark.parametrize("options", [{"mu": 1.0, "a": 1.0, "b": 0.1}, {"a": (0.5, 1.0)}, {"steps": "theorem"}])
def test_what_takes_one_step_a_round_refuses_several(options):
    with pytest.raises(fh.InvalidConfig, match="one step a round"):
        fh.fedhybrid(**options, local_steps=5)
    fh.fedhybrid(**options, local_steps=1)


@pytest.mark.parametrize("d", [1, 3, 30])
def test_lanczos_finds_the_largest_curvature_and_invents_no_smaller_one(d):
    rng = np.random.default_rng(d)
    A = rng.normal(size=(60, d)) * np.linspace(1, 4, d)
    clients = fh.Stacked(fh.Fleet([(A, rng.normal(size=60))], loss=fh.squared, reg=0.1, update="gradient"))
    with jax.enable_x64(True):
        f = jax.tree.map(lambda leaf: leaf[0], clients.groups[0]).f
        found = np.asarray(automatic._ritz_values(f, jnp.zeros(d)))
    w = np.linalg.eigvalsh(f.H)
    assert 0.97 * w[-1] <= found[-1] <= w[-1] * (1 + 1e-12)
    assert found[0] >= w[0] * (1 - 1e-9)
    if d <= automatic.LANCZOS:
        assert found[0] == pytest.approx(w[0], rel=1e-9)


def choice(me, local):
    return jnp.stack([local.mu, jnp.asarray(jnp.nan) if local.a is None else local.a, jnp.asarray(jnp.nan) if local.b is None else local.b])


@pytest.mark.parametrize("options", [{"mu": 0.2}, {"a": (0.5, 0.9)}, {"mu": 0.2, "b": 0.03}])
def test_what_is_given_is_kept(options):
    fleet = sample("squared", sizes=SIZES, d=5, reg=0.1).fleet(update=KINDS["mixed"])
    clients = fh.Stacked(fleet)
    state, trace = fh.run(fh.fedhybrid(**options), clients, 200)
    with jax.enable_x64(True):
        mu, a, b = np.asarray(clients.observe(choice, state.local)).T
    assert "mu" not in options or np.all(mu == 0.2)
    assert np.all(np.isnan(a)) if "a" not in options else set(a) == {0.5, 0.9}
    assert np.all(np.isnan(b)) if "b" not in options else np.all(b == 0.03)
    assert trace.residual[-1] <= 1e-3 * trace.residual[0]


def test_start_values_are_kept_too():
    data = sample("squared", sizes=SIZES, d=5, reg=0.1)
    x, lam = np.random.default_rng(0).normal(size=(2, 6, 5))
    state, trace = fh.run(fh.fedhybrid(x=x, lam=lam), fh.Stacked(data.fleet()), 1)
    assert error(trace.start, x.mean(axis=0) - lam.mean(axis=0) / float(state.mu)) <= 1e-14


# ── Theorem 1 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps_of(me, local):
    return local.a, local.b, local.mu


@pytest.mark.parametrize("transport", [fh.Stacked, fh.Serial])
@pytest.mark.parametrize("loss", ["logistic", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("squared", "softmax", "huber"))])
def test_the_theorems_steps_are_admissible_and_nearly_the_largest(loss, transport):
    data = sample(loss, sizes=SIZES, d=4, reg=1.0)
    fleet = data.fleet(update=KINDS["mixed"])
    clients = transport(fleet)
    with jax.enable_x64(True):
        state = fh.fedhybrid(steps="theorem").init(clients, jnp.zeros(fleet.d))
        a, b, mu = (np.asarray(part) for part in clients.observe(steps_of, state.local))
    assert int(state.local.meter.rounds) == 3
    m, ell = theory.bounds(fleet)
    mu = float(mu[0])
    theory.check_steps(mu, a, b, m, ell, fleet.updates)
    largest = theory.theorem_steps(mu, m, ell, fleet.updates)
    assert np.all(a >= 0.85 * largest.a)
    assert theory.rate(mu, a, b, m, ell, fleet.updates) > 0


def test_the_theorems_rate_is_kept_round_by_round():
    data = sample("logistic", sizes=(6, 5, 4), d=3, reg=20.0, weights=False, offset=False)
    fleet = data.fleet(update=("newton", "gradient", "newton"))
    clients = fh.Stacked(fleet)
    with jax.enable_x64(True):
        state = fh.fedhybrid(steps="theorem").init(clients, jnp.zeros(fleet.d))
        a, b, mu = (np.asarray(part) for part in clients.observe(steps_of, state.local))
    found = theory.certify(fleet, float(mu[0]), steps=(a, b), rounds=20)
    assert found.holds
    assert found.checked == 20


@pytest.mark.parametrize("case", ["no bound above", "no bound below"])
def test_a_fleet_without_bounds_is_refused(case):
    data = sample("poisson" if case == "no bound above" else "logistic", sizes=SIZES, reg=0.1, intercept=case == "no bound below")
    with pytest.raises(fh.InvalidConfig, match="Theorem 1"):
        fh.solve(data.fleet(update="newton"), fh.fedhybrid(steps="theorem"))


@pytest.mark.parametrize("options", [{"steps": "large"}, {"steps": "theorem", "a": 1.0}, {"mu": -1.0}, {"a": "fast"}])
def test_what_cannot_be_meant_is_refused(options):
    with pytest.raises(fh.InvalidConfig, match="fedhybrid"):
        fh.fedhybrid(**options)
