"""Methods on the dual, and one that learns Hessians, step by step against their papers in tests/reference."""

import itertools

import jax
import numpy as np
import pytest
from reference import dual_and_learning as reference
from samples import crossed, error, sample

import fedhybrid as fh
from fedhybrid import cocoa, fednl, multipliers, pn_dg
from fedhybrid.algorithms.cocoa import prox
from fedhybrid.algorithms.fednl import next_key

TRANSPORTS = [fh.Stacked, fh.Serial]
LOSSES = ["squared", "logistic", "poisson"]
ALTERNATING = np.array([1.0, -1.0, 1.0, -1.0])
START = 0.5 * np.random.default_rng(9).normal(size=4)
N, D = 6, 4  # clients and coordinates of `sample`
TRIANGLE = D * (D + 1) // 2

every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
SERIAL_LATER = pytest.param(fh.Serial, marks=pytest.mark.slow)


def run(algorithm, clients, steps, x0=START, held=None):
    """The trace; and what `held` sees of every client at the end."""
    state, trace = fh.run(algorithm, clients, steps, x0)
    if held is None:
        return trace
    with jax.enable_x64(True):
        return trace, jax.tree.map(np.asarray, clients.observe(held, state.local))


def own_values(me, local):
    return local.x, local.lam


def gradient_norm(data, x):
    return np.linalg.norm(sum(f.grad(x) for f in data.oracle()))


def per_step(counts):
    return np.diff(counts, prepend=0)


# ── the Method of Multipliers ─────────────────────────────────────────────────────────────────────────────────────────────────────


@every_transport
@pytest.mark.parametrize(("dual", "b"), [("gradient", 0.3), ("newton", 0.8)])
@pytest.mark.parametrize("loss", ["squared", pytest.param("logistic", marks=pytest.mark.slow)])
def test_the_method_of_multipliers_takes_the_papers_steps(loss, dual, b, transport):
    data = sample(loss)
    got, (x, lam) = run(multipliers(mu=0.4, b=b, dual=dual), transport(data.fleet()), 7, held=own_values)
    x0_expected, x_expected, lam_expected = reference.multipliers(data.oracle(), START, 0.4, b, dual, 7)
    assert error(got.x0, x0_expected) <= 1e-12
    assert error(x, x_expected[-1]) <= 1e-12
    assert error(lam, lam_expected[-1]) <= 1e-12
    apart = [N * 0.4 * np.sqrt(np.mean(np.sum((x - x0) ** 2, axis=1))) for x0, x in zip(x0_expected, x_expected, strict=True)]
    assert error(got.residual, apart) <= 1e-12


@every_transport
@pytest.mark.parametrize(("dual", "last", "up"), [("gradient", 1, 1), ("newton", 2, TRIANGLE + D + 1)])
def test_the_inner_minimum_costs_what_the_docstring_says(dual, last, up, transport):
    got = run(multipliers(mu=0.4, b=0.3, dual=dual), transport(sample("squared").fleet()), 7)  # the program of the papers' steps
    assert per_step(got.rounds)[:3].tolist() == [2 + last] * 3
    assert per_step(got.floats_up)[:3].tolist() == [N * (2 * (TRIANGLE + D + 1) + up)] * 3
    assert per_step(got.floats_down)[:3].tolist() == [N * D * (2 + last)] * 3


@every_transport
def test_full_dual_newton_steps_solve_a_quadratic_at_once(transport):
    data = sample("squared")
    got = run(multipliers(mu=0.4, b=1.0, dual="newton"), transport(data.fleet()), 7)  # the program of the papers' steps
    assert gradient_norm(data, got.x0[0]) > 1e-3
    assert gradient_norm(data, got.x0[1]) <= 1e-14


def test_dual_newton_steps_converge_quadratically_near_the_optimum():
    data = sample("logistic")
    got = run(multipliers(mu=0.4, b=1.0, dual="newton"), fh.Stacked(data.fleet()), 4)
    norms = [gradient_norm(data, x0) for x0 in got.x0]
    assert norms[1] <= 0.1 * norms[0]
    assert norms[2] <= norms[1] ** 1.7
    assert norms[3] <= 1e-14


@pytest.mark.parametrize(("b", "converges"), [(1.9, True), (3.0, False)])
def test_dual_gradient_steps_are_bounded_by_twice_the_penalty(b, converges):
    # The bound 2μ is that of clients without curvature; the empty client's is 0.05, and beyond 2(μ + 0.05) it diverges.
    data = sample("squared")
    residual = run(multipliers(mu=0.4, b=0.4 * b), fh.Stacked(data.fleet()), 60).residual
    assert (residual[-1] < 1e-3 * residual[0]) if converges else (residual[-1] > 1e3 * residual[0])


@every_transport
def test_the_inner_minimum_is_found_from_far_away_where_full_newton_steps_fail(transport):
    data, far, mu = sample("logistic", reg=0.01), 6 * ALTERNATING, 5.0
    oracle = data.oracle()
    with np.errstate(all="ignore"), pytest.raises((AssertionError, np.linalg.LinAlgError)):
        reference.multipliers(oracle, far, mu, 1.0, "gradient", 1)
    got, (x, lam) = run(multipliers(mu=mu, b=1.0), transport(data.fleet()), 1, far, held=own_values)
    # λ was 0 before: xᵢ minimises fᵢ + ½μ‖x − x₀‖², and x₀ is their mean
    stationarity = [f.grad(mine) + mu * (mine - got.x0[0]) for f, mine in zip(oracle, x, strict=True)]
    assert np.max(np.abs(stationarity)) <= 1e-12
    assert error(got.x0[0], x.mean(axis=0)) <= 1e-12
    assert error(lam, got.x0[0] - x) <= 1e-12


# ── PN_DG ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("loss", "transport"), crossed("dual and learning", LOSSES))
def test_pn_dg_takes_newton_steps_in_x_and_gradient_steps_in_lam(loss, transport):
    # with one b for all Σλ stays 0 and says nothing: every client has its own
    data, a, b = sample(loss), np.linspace(0.8, 1.1, N), np.linspace(0.1, 0.4, N)
    got, (x, lam) = run(pn_dg(mu=0.4, a=a, b=b), transport(data.fleet()), 8, held=own_values)
    x0_expected, x_expected, lam_expected = reference.pn_dg(data.oracle(), START, 0.4, a, b, 8)
    assert np.linalg.norm(lam_expected[-1].sum(axis=0)) > 1e-3
    assert error(got.x0, x0_expected) <= 1e-13
    assert error(x, x_expected[-1]) <= 1e-13
    assert error(lam, lam_expected[-1]) <= 1e-13
    assert per_step(got.floats_up).tolist() == [N * (D + 2)] * 8


@pytest.mark.parametrize("mu", [0.2, 3.0])
@pytest.mark.parametrize("part", [0.96, 1.04])
def test_the_dual_step_of_pn_dg_may_be_as_large_as_its_docstring_says(mu, part):
    rng = np.random.default_rng(3)
    A = rng.normal(size=(9, 3))
    fleet = fh.Fleet([(A, rng.normal(size=9)) for _ in range(3)], loss=fh.squared, reg=0.1, weighting="client")
    h = np.linalg.eigvalsh(A.T @ A / 9 + 0.1 / 3 * np.eye(3))[0]
    residual = run(pn_dg(mu=mu, b=part * min(2 * mu, h + mu)), fh.Stacked(fleet), 2000, np.ones(3)).residual
    assert (residual[-1] < 1e-9) if part < 1 else (residual[-1] > 1e3)


def test_pn_dg_says_how_many_step_sizes_it_needs():
    with pytest.raises(fh.InvalidConfig, match=r"pn_dg: b has shape \(2,\), but the fleet needs \(6,\)"):
        fh.run(pn_dg(mu=1.0, b=[0.1, 0.2]), fh.Stacked(sample("squared").fleet()), 1)


# ── CoCoA⁺ ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def own_duals(me, local):
    """−loss′ at a point is what α tends to; padded rows weigh nothing."""
    return me.f.rows.tdot(me.f.w * local.alpha)


@pytest.mark.parametrize(("loss", "transport"), crossed("dual and learning", [*LOSSES, "huber"]))
def test_cocoa_climbs_as_the_paper_does(loss, transport):
    passes = 2
    data = sample(loss, reg=np.array([0.2, 0.3, 0.5, 1.0]))
    clients = transport(data.fleet(keep_rows=True))
    got, duals = run(cocoa(passes=passes), clients, 7, held=own_duals)
    x0_expected, alpha_expected = reference.cocoa(data.oracle(), START, passes, 7)
    assert error(got.x0, x0_expected) <= 1e-12
    oracle = data.oracle()
    own = np.split(alpha_expected[-1], np.cumsum([len(f.y) for f in oracle])[:-1])
    assert error(duals, [f.A.T @ (f.v * alpha) for f, alpha in zip(oracle, own, strict=True)]) <= 1e-12
    assert per_step(got.floats_up).tolist() == [N * (D + 1)] * 7


@pytest.mark.parametrize("transport", [fh.Stacked, SERIAL_LATER])
def test_cocoa_is_the_same_on_sparse_rows(transport):
    data = sample("logistic", d=7, sparse=True)
    x0 = 0.3 * np.cos(np.arange(7.0))
    got = run(cocoa(passes=2), transport(data.fleet()), 6, x0)
    plain = sample("logistic", d=7, sparse=True)._replace(sites=[(A.toarray(), *rest) for A, *rest in data.sites])
    assert error(got.x0, run(cocoa(passes=2), transport(plain.fleet()), 6, x0).x0) <= 1e-13


def test_cocoa_ignores_rows_without_weight():
    data = sample("logistic")
    sites = [(np.vstack([A, 5 + A]), np.append(y, y), np.append(w, 0 * w), np.append(o, o)) for A, y, w, o in data.sites]
    with_more = run(cocoa(), fh.Stacked(data._replace(sites=sites).fleet()), 5)
    assert error(with_more.x0, run(cocoa(), fh.Stacked(data.fleet()), 5).x0) <= 1e-13


def test_the_residual_of_cocoa_is_at_least_the_gradients_norm():
    data = sample("logistic")
    got = run(cocoa(passes=2), fh.Stacked(data.fleet()), 30, np.zeros(D))
    norms = np.array([gradient_norm(data, x0) for x0 in [np.zeros(D), *got.x0[:-1]]])
    assert np.all(got.residual >= norms * (1 - 1e-9))
    assert np.all(got.residual <= 20 * norms)


def test_cocoa_takes_any_convex_loss_of_one_prediction():
    def log_cosh(z, y):
        return jax.numpy.logaddexp(z - y, y - z)

    sites = sample("squared").sites
    x0 = run(cocoa(passes=5), fh.Stacked(fh.Fleet(sites, loss=log_cosh, reg=0.3)), 150).x0[-1]
    w = np.concatenate([site[2] for site in sites])
    A, y, offset = (np.concatenate([site[k] for site in sites]) for k in (0, 1, 3))
    assert np.linalg.norm(A.T @ (w / w.sum() * np.tanh(A @ x0 + offset - y)) + 0.3 * x0) <= 1e-11


@pytest.mark.parametrize(
    ("loss", "y", "q", "alpha", "z"),
    [
        ("poisson", 20.0, 100.0, 0.0, -10.0),  # Newton's first step would overflow
        ("poisson", 0.0, 1e-3, -3.0, 20.0),
        ("logistic", 1.0, 1e4, 0.3, -40.0),
        ("huber", 5.0, 1e6, -0.5, 1e3),
        ("squared", 3.0, 0.0, 1.0, 2.0),
    ],
)
def test_one_rows_maximum_is_found_however_far_it_is(loss, y, q, alpha, z):
    chosen = {"poisson": fh.poisson, "logistic": fh.logistic, "huber": fh.huber, "squared": fh.squared}[loss]
    with jax.enable_x64(True):
        y, q, alpha, z = (jax.numpy.full(1, number, float) for number in (y, q, alpha, z))
        t = prox(chosen, y, q, alpha, z)
        terms = [t, -z, q * chosen.d1(t, y), q * alpha]
        # to the rounding of t, which q·loss″ makes larger
        assert abs(float(sum(terms)[0])) <= 1e-15 * float((sum(map(abs, terms)) + (1.0 + q * chosen.d2(t, y)) * (1.0 + abs(t)))[0])


def test_cocoa_refuses_what_has_no_dual_of_one_number_a_row():
    for fleet in (sample("squared").fleet(), sample("softmax", weights=False, offset=False).fleet()):
        with pytest.raises(fh.InvalidConfig, match=r"cocoa: .*keep_rows=True"):
            fh.run(cocoa(), fh.Stacked(fleet), 1)
    for options in ({"intercept": True}, {"reg": 0.0}):
        for transport in TRANSPORTS:
            with pytest.raises(fh.InvalidConfig, match=r"cocoa: every coordinate needs a penalty"):
                fh.run(cocoa(), transport(sample("logistic", **options).fleet()), 1)
    with pytest.raises(fh.InvalidConfig, match="cocoa: passes"):
        cocoa(passes=0)


# ── FedNL ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def drawn_entries(k, seed, steps):
    """The positions that randk draws: random numbers are the one thing the reference cannot make itself."""
    rows, columns = np.triu_indices(D)
    places, key = [], jax.random.PRNGKey(seed)
    with jax.enable_x64(True):
        for _ in range(steps):
            positions = np.asarray(jax.random.permutation(key, TRIANGLE)[:k])
            places.append([(rows[p], columns[p]) for p in positions])
            key = next_key(key)
    assert len({tuple(sorted(step)) for step in places}) > 1
    return places


COMPRESSORS = {
    "identity": ({}, lambda M, step: M, TRIANGLE),
    "topk": ({"k": 3}, reference.top_k(3), 6),
    "randk": ({"k": 3, "seed": 7}, reference.chosen_entries(drawn_entries(3, 7, 7)), 3),
    "rank1": ({}, reference.rank_1, D + 1),
}


# In the default tier are every compressor, every start of both losses, and both transports; but not all of their product.
FEDNL_ALWAYS = [
    *(("logistic", "hessian", compressor, fh.Stacked) for compressor in COMPRESSORS),
    ("squared", "zero", "topk", fh.Stacked),
    ("logistic", "zero", "identity", fh.Stacked),
    ("logistic", "zero", "randk", fh.Serial),
    ("logistic", "hessian", "rank1", fh.Serial),
]
FEDNL_CELLS = [
    pytest.param(*cell, marks=[] if cell in FEDNL_ALWAYS else pytest.mark.slow)
    for start in (("squared", "zero"), ("logistic", "hessian"), ("logistic", "zero"))
    for cell in itertools.product(*([part] for part in start), COMPRESSORS, TRANSPORTS)
]


@pytest.mark.parametrize(("loss", "first", "compressor", "transport"), FEDNL_CELLS)
def test_fednl_learns_hessians_as_the_paper_does(loss, compressor, first, transport):
    data = sample(loss)
    options, compress, floats = COMPRESSORS[compressor]
    got = run(fednl(compressor=compressor, alpha=0.9, first=first, **options), transport(data.fleet()), 7)
    assert error(got.x0, reference.fednl(data.oracle(), START, compress, 0.9, first, 7)) <= 1e-12
    more = [1, 0, 0, 0, 0, 0, 0] if first == "hessian" else [0] * 7
    assert per_step(got.rounds).tolist() == [1 + extra for extra in more]
    assert per_step(got.floats_up).tolist() == [N * (D + 1 + floats + TRIANGLE * extra) for extra in more]
    assert per_step(got.floats_down).tolist() == [N * D] * 7
    assert error(got.residual, [gradient_norm(data, x0) for x0 in [START, *got.x0[:-1]]]) <= 1e-12


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.slow)])
def test_fednl_reaches_the_optimum_from_hessians_of_zero(loss, compressor):
    data = sample(loss)
    got = run(fednl(compressor=compressor, first="zero", **COMPRESSORS[compressor][0]), fh.Stacked(data.fleet()), 60)
    assert gradient_norm(data, got.x0[-1]) <= 1e-14


def test_fednl_with_more_entries_than_there_are_sends_them_all():
    clients = fh.Stacked(sample("logistic").fleet())
    plain = run(fednl(compressor="identity"), clients, 5)
    for compressor in ("topk", "randk"):
        assert error(run(fednl(compressor=compressor, k=99), clients, 5).x0, plain.x0) <= 1e-13


def test_fednl_descends_on_a_quadratic_from_anywhere():
    data = sample("squared")
    got = run(fednl(compressor="topk", k=1, first="zero"), fh.Stacked(data.fleet()), 40, 1e6 * ALTERNATING)
    values = [sum(f.value(x0) for f in data.oracle()) for x0 in got.x0]
    assert np.all(np.diff(values[:8]) < 0)
    assert np.all(np.diff(values) <= 1e-12)


@pytest.mark.parametrize(("start", "works"), [(0.5, True), (10.0, False)])
def test_fednl_is_a_local_method(start, works):
    # where the logistic function is flat, Newton's step is too long by far; from there on it goes to and fro
    data = sample("logistic", reg=1e-4)
    residual = run(fednl(compressor="rank1"), fh.Stacked(data.fleet()), 60, start * ALTERNATING).residual
    assert (residual[-1] <= 1e-12) if works else (residual.min() >= 0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compressor": "topk"}, "needs k"),
        ({"compressor": "rank1", "k": 2}, "takes no k"),
        ({"compressor": "zip"}, "compressor must be"),
        ({"compressor": "randk", "k": 0}, "fednl: k must be"),
        ({"first": "guess"}, "first must be"),
        ({"alpha": -1.0}, "fednl: alpha must be positive"),
    ],
)
def test_fednl_says_what_is_wrong_with_its_parameters(options, says):
    with pytest.raises(fh.InvalidConfig, match=says):
        fednl(**options)


def test_the_method_of_multipliers_says_which_dual_steps_there_are():
    with pytest.raises(fh.InvalidConfig, match="multipliers: dual must be 'gradient' or 'newton'"):
        multipliers(mu=1.0, b=1.0, dual="U2")
