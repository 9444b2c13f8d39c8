"""Noise that is what it is said to be, an accountant that agrees with other ways to count, and an audit that does not find more."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import fftconvolve

from fedhybrid.secure import privacy
from fedhybrid.secure.errors import Reason, SecureError


def pmf(variance, reach):
    x = np.arange(-reach, reach + 1)
    weight = np.exp(-(x.astype(float) ** 2) / (2 * variance))
    return x, weight / weight.sum()


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 3), (5, 2), (36, 1), (1000, 7)])
def test_the_sampler_draws_the_discrete_gaussian(numerator, denominator):
    below = random.Random(1).randrange
    draws = [privacy.discrete_gaussian(numerator, denominator, below) for _ in range(8000)]
    x, p = pmf(numerator / denominator, 80)
    expected, observed = 8000 * p, np.bincount(np.array(draws) + 80, minlength=161)
    enough = expected >= 5
    groups = np.append(expected[enough], expected[~enough].sum()), np.append(observed[enough], observed[~enough].sum())
    statistic = ((groups[1] - groups[0]) ** 2 / np.maximum(groups[0], 1e-9))[groups[0] > 0.5].sum()
    assert stats.chi2.sf(statistic, len(x[enough])) > 1e-3
    assert not np.any(observed[expected < 1e-9])


def test_noise_comes_from_the_operating_system_unless_a_test_says_otherwise():
    draws = [privacy.discrete_gaussian(2**80, 1) for _ in range(500)]
    assert len(set(draws)) == 500
    assert 0.8 < np.std(np.array(draws, float)) / 2**40 < 1.2


@pytest.mark.parametrize(("num", "den"), [(0, 1), (1, 2), (1, 1), (7, 3)])
def test_a_coin_of_probability_exp(num, den):
    below = random.Random(2).randrange
    heads = sum(privacy.bernoulli_exp(num, den, below) for _ in range(20_000))
    assert abs(heads / 20_000 - math.exp(-num / den)) < 0.012


@given(st.integers(1, 6), st.floats(0.01, 100.0), st.data())
def test_two_messages_of_a_site_are_never_further_apart_than_its_sensitivity(size, radius, data):
    vectors = st.lists(st.floats(-1e3, 1e3), min_size=size, max_size=size).map(np.array)
    centre, first, second = data.draw(vectors), data.draw(vectors), data.draw(vectors)
    noiseless = [np.rint(np.ldexp(centre + privacy.clipped(values - centre, radius), 20)) / 2.0**20 for values in (first, second)]
    assert np.linalg.norm(noiseless[0] - noiseless[1]) <= privacy.sensitivity(radius, size, 20)


def test_the_implied_gradient_of_what_is_released_is_bounded():
    rng = np.random.default_rng(0)
    x0, mu, G = rng.normal(size=5), 0.3, 2.0
    z = x0 + 1e4 * rng.normal(size=5)
    sent = privacy.release(z, x0, radius=G / mu, sigma=2.0**-30, scale=40)
    assert np.linalg.norm(mu * (x0 - sent)) == pytest.approx(G, rel=1e-6)
    near = x0 + 0.1
    assert np.max(np.abs(privacy.release(near, x0, radius=G / mu, sigma=2.0**-30, scale=40) - near)) < 2.0**-26
    assert np.array_equal(np.rint(np.ldexp(sent, 40)), np.ldexp(sent, 40))  # on the grid


def test_a_release_has_the_noise_that_was_asked_for():
    sent = privacy.release(np.zeros(3000), np.zeros(3000), radius=1.0, sigma=0.25, scale=30, below=random.Random(3).randrange)
    assert np.std(sent) == pytest.approx(0.25, rel=0.05)
    assert abs(np.mean(sent)) < 0.02


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"sigma": 0.0}, Reason.NOT_ALLOWED),
        ({"sigma": math.inf}, Reason.NOT_ALLOWED),
        ({"radius": math.nan}, Reason.NOT_ALLOWED),
        ({"sigma": 2.0**-39}, Reason.NOT_ALLOWED),
        ({"centre": np.full(2, 5000.0)}, Reason.OVERFLOW),
        ({"values": np.array([np.nan, 0.0])}, Reason.NOT_FINITE),
        ({"values": np.array([np.inf, 0.0])}, Reason.NOT_FINITE),
    ],
)
def test_a_release_that_would_not_be_private_is_refused(wrong, reason):
    right = {"values": np.zeros(2), "centre": np.zeros(2), "radius": 1.0, "sigma": 0.1, "scale": 40}
    with pytest.raises(SecureError) as caught:
        privacy.release(**(right | wrong))
    assert caught.value.reason == reason


@pytest.mark.parametrize(("rho", "delta"), [(0.001, 1e-6), (0.05, 1e-5), (0.5, 1e-5), (5.0, 1e-8)])
def test_the_accountant_agrees_with_divergences_summed_from_the_probabilities(rho, delta):
    """Independent: Rényi divergences of N_ℤ as sums over its probabilities, and their conversion, on a plain grid of orders."""
    releases, shift = 10, 20
    variance = releases * shift**2 / (2 * rho)
    x = np.arange(-int(12 * math.sqrt(variance)) - 60 * shift, int(12 * math.sqrt(variance)) + 60 * shift, dtype=float)
    log_p = -(x**2) / (2 * variance) - np.log(np.exp(-(x**2) / (2 * variance)).sum())
    log_q = -((x - shift) ** 2) / (2 * variance) - np.log(np.exp(-((x - shift) ** 2) / (2 * variance)).sum())
    best = math.inf
    for alpha in 1 + np.geomspace(0.01, 400, 300):
        exponent = alpha * log_p + (1 - alpha) * log_q
        top = exponent.max()
        if top in (exponent[0], exponent[-1]):
            continue
        divergence = (top + math.log(np.exp(exponent - top).sum())) / (alpha - 1)
        bound = releases * divergence + math.log((alpha - 1) / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)
        best = min(best, bound)
    accountant = privacy.Accountant(delta)
    for _ in range(releases):
        accountant.spend(shift, math.sqrt(variance))
    assert accountant.rho == pytest.approx(rho)
    assert accountant.epsilon == pytest.approx(best, rel=0.01)


@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-5), (0.1, 1e-5), (0.5, 1e-6), (2.0, 1e-5)])
def test_the_exact_epsilon_agrees_with_the_distribution_of_the_privacy_loss(rho, delta):
    """Independent: the loss of N_ℤ lies on a lattice; its distribution after many releases by FFT."""
    releases, shift = 16, 2
    variance = releases * shift**2 / (2 * rho)
    x, p = pmf(variance, int(14 * math.sqrt(variance)) + 10)
    total = p
    for _ in range(4):
        total = np.maximum(fftconvolve(total, total), 0.0)
    sums = np.arange(len(total)) + releases * x[0]
    losses = (releases * shift**2 - 2 * sums * shift) / (2 * variance)

    def excess(eps):
        return float(np.sum(total * np.maximum(0.0, -np.expm1(np.minimum(eps - losses, 0.0)))))

    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    assert privacy.tight_epsilon(rho, delta) == pytest.approx(high, rel=0.01)
    assert high <= privacy.epsilon(rho, delta) <= 1.12 * high  # the Rényi bound is one, and not far off


@given(st.floats(0.05, 20.0), st.floats(-10, -3))
def test_a_budget_is_what_it_buys(eps, log_delta):
    rho = privacy.rho_for(eps, 10.0**log_delta)
    assert privacy.epsilon(rho, 10.0**log_delta) == pytest.approx(eps, rel=1e-6)


def test_beyond_its_budget_a_site_sends_nothing():
    delta, rounds = 1e-5, 50
    accountant = privacy.Accountant(delta, limit=3.0 + 1e-9)
    sigma = math.sqrt(rounds / (2 * privacy.rho_for(3.0, delta)))
    for _ in range(rounds):
        accountant.spend(1.0, sigma)
    assert accountant.epsilon == pytest.approx(3.0)
    assert accountant.label == "dp(3, 1e-05)"
    with pytest.raises(SecureError, match="used up") as caught:
        accountant.spend(1.0, sigma)
    assert caught.value.reason == Reason.NOT_ALLOWED
    assert accountant.epsilon == pytest.approx(3.0)


def test_noise_that_is_shared_adds_up_to_what_was_planned():
    assert 7 * privacy.share_of(2.0, 7) ** 2 == pytest.approx(4.0)
    with pytest.raises(SecureError):
        privacy.share_of(2.0, 0)


def test_an_audit_finds_no_more_than_the_accountant_admits():
    """Two neighbouring data sets, ten thousand runs each; the least epsilon that explains what was seen, at 99.9 % confidence."""
    runs, delta, sigma = 10_000, 1e-5, 1.0
    below = random.Random(4).randrange
    centre, radius = np.zeros(1), 0.5
    ends = [np.array([100.0]), np.array([-100.0])]  # as far apart as two sites can be: both are clipped
    seen = [
        np.array([privacy.release(end, centre, radius=radius, sigma=sigma, scale=12, below=below)[0] for _ in range(runs)]) for end in ends
    ]
    accountant = privacy.Accountant(delta)
    accountant.spend(privacy.sensitivity(radius, 1, 12), sigma)
    found = 0.0
    for cut in np.linspace(0.0, 3.0, 13):
        high, low = int(np.sum(seen[0] > cut)), int(np.sum(seen[1] > cut))
        least = stats.beta.ppf(0.001, high, runs - high + 1) if high else 0.0
        most = stats.beta.ppf(0.999, low + 1, runs - low)
        if least > delta:
            found = max(found, math.log((least - delta) / most))
    assert 0.5 < found <= accountant.epsilon
