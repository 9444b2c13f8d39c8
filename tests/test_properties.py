"""Properties T-01 to T-08: what must hold between two runs, or within one, whatever the data. Bitwise where nothing rounds differently."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.pooled import least_squares_exact, logistic_high_precision
from reference.spectrum import spectral_radius
from samples import UPDATES, Sample, error, rounds_of, same_bits, sample

import fedhybrid as fh
from fedhybrid import fleet as fleet_module

MU, REG = 0.75, 0.5
A_STEPS = np.array([0.3, 0.9, 0.8, 0.7, 0.2, 0.6])
B_STEPS = np.array([0.2, 0.3, 0.4, 0.2, 0.3, 0.15])
IS_GRADIENT = np.array([update == "gradient" for update in UPDATES])
ROUNDS = 6

exponents = st.integers(-20, 20)
seeds = st.integers(0, 50)


def with_sites(data: Sample, change) -> Sample:
    """The same data with every site (A, y, w, offset) changed."""
    sites = [change(*site) for site in data.sites]
    return data._replace(sites=sites, plain_sites=sites)


def least_squares(seed):
    return sample("squared", seed=seed, reg=REG)


def scaled(rounds, x_by, lam_by):
    return rounds.z * x_by, rounds.x * x_by, rounds.lam * lam_by, rounds.x0 * x_by


# A GPU's solvers choose their paths by magnitude; there the traces agree to rounding, not in every bit.
on_a_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="bit-for-bit scaling is promised on a CPU only")


@on_a_cpu
@pytest.mark.parametrize("budget", [2**31, 0], ids=["statistics", "rows"])
@given(seed=seeds, e=exponents)
def test_scaling_y_by_a_power_of_two_scales_the_trace_in_every_bit(budget, seed, e):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module, "STATISTICS_BUDGET", budget)
        data = least_squares(seed)
        larger = with_sites(data, lambda A, y, w, offset: (A, y * 2.0**e, w, offset * 2.0**e))
        algorithm = fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS)
        plain, scaled_up = (rounds_of(algorithm, fh.Stacked(d.fleet()), ROUNDS) for d in (data, larger))
    assert same_bits(scaled_up[:4], scaled(plain, 2.0**e, 2.0**e))


@on_a_cpu
@pytest.mark.parametrize("budget", [2**31, 0], ids=["statistics", "rows"])
@given(seed=seeds, e=exponents)
def test_scaling_the_rows_by_a_power_of_two_scales_the_trace_in_every_bit(budget, seed, e):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module, "STATISTICS_BUDGET", budget)
        data = least_squares(seed)
        larger = with_sites(data, lambda A, y, w, offset: (A * 2.0**e, y, w, offset))._replace(reg=REG * 4.0**e)
        # a gradient client's steps have the units of 1/curvature and of curvature; a Newton client's have none
        a, b = (np.where(IS_GRADIENT, steps * 4.0**power, steps) for steps, power in ((A_STEPS, -e), (B_STEPS, e)))
        plain = rounds_of(fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS), fh.Stacked(data.fleet()), ROUNDS)
        scaled_up = rounds_of(fh.fedhybrid(mu=MU * 4.0**e, a=a, b=b), fh.Stacked(larger.fleet()), ROUNDS)
    assert same_bits(scaled_up[:4], scaled(plain, 2.0**-e, 2.0**e))


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@given(seed=seeds)
def test_rotating_the_rows_rotates_every_round(loss, seed):
    data = sample(loss, seed=seed, reg=REG)
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(4, 4)))[0]
    rotated = with_sites(data, lambda A, y, w, offset: (A @ Q, y, w, offset))
    algorithm = fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS)
    plain, turned = (rounds_of(algorithm, fh.Stacked(d.fleet()), ROUNDS) for d in (data, rotated))
    for name in ("z", "x", "lam", "x0"):
        assert error(getattr(turned, name), getattr(plain, name) @ Q) <= 1e-11


def optimum(fleet, steps=300):
    """By FedHybrid, with the rate of reference.spectrum in mind: gone to rounding after so many rounds."""
    is_gradient = np.array([update == "gradient" for update in fleet.updates])
    return fh.run(fh.fedhybrid(mu=0.4, a=(0.5, 0.9), b=np.where(is_gradient, 0.08, 0.3)), fh.Stacked(fleet), steps)[1].x0[-1]


@pytest.mark.parametrize(("loss", "exact"), [("squared", least_squares_exact), ("logistic", logistic_high_precision)])
def test_splitting_and_merging_clients_leaves_the_optimum(loss, exact):
    for seed in range(3):
        data = sample(loss, seed=seed, reg=REG)
        x_star = exact(data.plain_sites, REG)
        whole = [np.concatenate(part) for part in zip(*data.sites, strict=True)]
        cuts = sorted(np.random.default_rng(seed).integers(0, len(whole[1]), size=5))
        split = [tuple(part[i:j] for part in whole) for i, j in zip([0, *cuts], [*cuts, len(whole[1])], strict=True)]
        for sites in (data.sites, split, [tuple(whole)]):
            fleet = fh.Fleet(sites, loss=getattr(fh, loss), reg=REG, update=UPDATES[: len(sites)])
            assert error(optimum(fleet), x_star) <= 1e-8


def assert_order_is_ignored(data, seed, transport=fh.Stacked, updates=UPDATES, **start):
    """`start`: values with one row per client, which move with it as its step sizes and its name do."""
    order = np.random.default_rng(seed).permutation(len(data.sites))
    names = np.array([f"site {chr(ord('a') + i)}" for i in range(len(order))])
    own = {"a": A_STEPS, "b": B_STEPS, **start}
    moved = {key: values[order] for key, values in own.items()}
    plain = rounds_of(fh.fedhybrid(mu=MU, **own), transport(data.fleet(update=updates, names=list(names))), ROUNDS)
    fleet = data.permuted(order).fleet(update=[updates[i] for i in order], names=list(names[order]))
    permuted = rounds_of(fh.fedhybrid(mu=MU, **moved), transport(fleet), ROUNDS)
    assert same_bits(permuted.x0, plain.x0)
    assert same_bits((permuted.z, permuted.x, permuted.lam), (plain.z[:, order], plain.x[:, order], plain.lam[:, order]))


@pytest.mark.parametrize("transport", [fh.Stacked, fh.Serial])
@given(seed=seeds)
def test_the_order_of_the_clients_does_not_change_a_bit(transport, seed):
    assert_order_is_ignored(sample("logistic", weights=False, offset=False), seed, transport)


@given(seed=seeds)
def test_the_order_of_weighted_clients_does_not_change_a_bit(seed):
    assert_order_is_ignored(sample("logistic", seed=seed), seed)


@given(seed=seeds)
def test_the_order_of_clients_with_start_values_does_not_change_a_bit(seed):
    data = sample("logistic", weights=False)
    x, lam = np.random.default_rng(seed).normal(size=(2, len(data.sites), data.fleet().d))
    assert_order_is_ignored(data, seed, x=x, lam=lam)


@given(seed=seeds)
def test_the_order_of_clients_with_equal_rows_does_not_change_a_bit(seed):
    data = sample("squared", weights=False, sizes=(7, 7, 7, 7, 7, 7))
    alike = data._replace(sites=[data.sites[0]] * 6)
    assert_order_is_ignored(alike, seed, updates=("newton",) * 6)


# Changes that leave the mathematics as it is (T-06)


@functools.cache
def plain_rounds(loss):
    return rounds_of(fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS), fh.Stacked(sample(loss, reg=REG).fleet()), ROUNDS)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_order_of_the_rows_does_not_matter(loss):
    rng = np.random.default_rng(0)

    def shuffled(A, *rest):
        order = rng.permutation(len(rest[0]))
        return A[order], *(part[order] for part in rest)

    fleet = with_sites(sample(loss, reg=REG), shuffled).fleet()
    got = rounds_of(fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS), fh.Stacked(fleet), ROUNDS)
    for name in ("z", "x", "lam", "x0"):
        assert error(getattr(got, name), getattr(plain_rounds(loss), name)) <= 1e-10


@pytest.mark.parametrize("weighting", ["row", "client"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_rows_given_twice_count_as_once(loss, weighting):
    data = sample(loss, reg=REG)
    twice = with_sites(data, lambda *site: tuple(np.concatenate([part, part]) for part in site))
    algorithm = fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS)
    once, got = (rounds_of(algorithm, fh.Stacked(d.fleet(weighting)), ROUNDS) for d in (data, twice))
    for name in ("z", "x", "lam", "x0"):
        assert error(getattr(got, name), getattr(once, name)) <= 1e-10


@pytest.mark.parametrize(("loss", "exact"), [("squared", least_squares_exact), ("logistic", logistic_high_precision)])
def test_one_more_empty_client_leaves_the_optimum(loss, exact):
    data = sample(loss, reg=REG)
    empty = (np.zeros((0, 4)), np.zeros(0), np.zeros(0), np.zeros(0))
    fleet = fh.Fleet([*data.sites, empty], loss=getattr(fh, loss), reg=REG, update=[*UPDATES, "newton"])
    assert error(optimum(fleet), exact(data.plain_sites, REG)) <= 1e-10


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_shifting_the_start_and_the_data_shifts_the_trace(loss):
    data = sample(loss, reg=0.0)
    t = np.random.default_rng(3).normal(size=4)
    if loss == "squared":
        moved = with_sites(data, lambda A, y, w, offset: (A, y + A @ t, w, offset))
    else:
        moved = with_sites(data, lambda A, y, w, offset: (A, y, w, offset - A @ t))
    start = fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS)
    plain = rounds_of(start, fh.Stacked(data.fleet()), ROUNDS)
    got = rounds_of(start, fh.Stacked(moved.fleet()), ROUNDS, x0=t)
    assert error(got.x, plain.x + t) <= 1e-10
    assert error(got.x0, plain.x0 + t) <= 1e-10
    assert error(got.lam, plain.lam) <= 1e-10


# Invariants of one run (T-07, T-08)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_multipliers_of_gradient_clients_with_one_b_always_add_up_to_zero(loss):
    algorithm = fh.fedhybrid(mu=MU, a=A_STEPS, b=0.1)
    rounds = rounds_of(algorithm, fh.Stacked(sample(loss, reg=REG).fleet(update="gradient")), 40)
    assert np.abs(rounds.lam.sum(axis=1)).max() <= 1e-13 * np.abs(rounds.lam).max()


@pytest.mark.parametrize(("loss", "exact"), [("squared", least_squares_exact), ("logistic", logistic_high_precision)])
def test_the_optimum_is_a_fixed_point(loss, exact):
    data = sample(loss, reg=REG)
    x_star = exact(data.plain_sites, REG)
    x, lam = np.tile(x_star, (6, 1)), np.array([f.grad(x_star) for f in data.oracle()])
    rounds = rounds_of(fh.fedhybrid(mu=MU, a=A_STEPS, b=B_STEPS, x=x, lam=lam), fh.Stacked(data.fleet()), 40)
    for k in range(40):
        assert error(rounds.x[k], x) <= 1e-13
        assert error(rounds.lam[k], lam) <= 1e-13
        assert error(rounds.x0[k], x_star) <= 1e-13


def test_the_measured_rate_is_the_spectral_radius():
    data = sample("squared", sizes=(7, 5, 1, 12, 5, 3), reg=REG)
    oracle = data.oracle()
    a, b = np.where(IS_GRADIENT, 0.5, 0.9), np.where(IS_GRADIENT, 0.08, 0.3)
    rate = spectral_radius([f.hess(np.zeros(4)) for f in oracle], [u.replace("-cg", "") for u in UPDATES], 0.4, a, b)
    x_star = least_squares_exact(data.plain_sites, REG)
    lam_star = np.array([f.grad(x_star) for f in oracle])
    x, lam = 1e6 * np.random.default_rng(1).normal(size=(2, 6, 4))  # from afar: many decades for the slowest mode to be left alone
    rounds = rounds_of(fh.fedhybrid(mu=0.4, a=a, b=b, x=x, lam=lam), fh.Stacked(data.fleet()), 300)
    distance = np.sqrt(np.sum((rounds.x - x_star) ** 2, axis=(1, 2)) + np.sum((rounds.lam - lam_star) ** 2, axis=(1, 2)))
    # a line through the logarithms, above rounding: complex eigenvalues make the distance swing around it
    fitted = np.flatnonzero((distance < 1e-1) & (distance > 1e-8))
    assert len(fitted) > 50
    assert np.exp(np.polyfit(fitted, np.log(distance[fitted]), 1)[0]) == pytest.approx(rate, rel=0.01)
