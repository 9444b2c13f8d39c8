"""FedHybrid's golden traces (T-09): six rounds of every zᵢ, xᵢ, λᵢ and x₀ against the paper in slow NumPy.

Convergence would show little: FedHybrid heals itself, so wrong code converges too. The tolerance is the rounding of six rounds.
A newton-cg client's conjugate gradients stop at a residual of 1e-13, so that its D⁻¹r is good to κ(D)·1e-13; κ(D) is below 10 here.
"""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from reference.fedhybrid import fedhybrid as reference
from samples import UPDATES, error, rounds_of, same_bits, sample

import fedhybrid as fh
from fedhybrid import fleet as fleet_module
from fedhybrid.clients import stacked as stacked_module

EXACT, BY_CG, ACROSS = 1e-13, 1e-12, 1e-12
WITHOUT_CG = tuple(update.replace("-cg", "") for update in UPDATES)
TRANSPORTS = [fh.Stacked, fh.Serial]
QUANTITIES = ("z", "x", "lam", "x0")
ROUNDS = 6

SAMPLES = {
    "squared": functools.partial(sample, "squared"),
    "logistic": functools.partial(sample, "logistic"),
    "poisson": functools.partial(sample, "poisson"),
    "huber": functools.partial(sample, "huber"),
    "softmax": functools.partial(sample, "softmax"),
    "sparse logistic with intercept": functools.partial(sample, "logistic", sparse=True, intercept=True, d=8),
    "sparse squared with intercept": functools.partial(sample, "squared", sparse=True, intercept=True, d=8),
    "softmax with reference classes": functools.partial(sample, "softmax", intercept=True, reg=[0.3, 0.0, 0.2, 0.4]),
}


def grouped(names):
    """Each sample stays in one process of pytest-xdist, which compiles for it once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"golden {name}")) for name in names]


class Variant(NamedTuple):
    """One way of calling fedhybrid, and the same in the reference's words."""

    weighting: str
    options: dict
    a: np.ndarray
    b: np.ndarray
    x: np.ndarray
    lam: np.ndarray
    x0: np.ndarray | None

    def algorithm(self):
        return fh.fedhybrid(mu=MU, **self.options)

    def expected(self, data, updates=UPDATES):
        kinds = [update.replace("-cg", "") for update in updates]
        return reference(data.oracle(self.weighting), kinds, MU, self.a, self.b, self.x0, self.x, self.lam, ROUNDS)


MU = 0.8
PER_CLIENT_A = np.array([0.31, 0.9, 0.8, 0.7, 0.22, 0.6])
PER_CLIENT_B = np.array([0.2, 0.31, 0.42, 0.24, 0.35, 0.17])
IS_GRADIENT = np.array([update == "gradient" for update in UPDATES])


def variants(d):
    n = len(UPDATES)
    x, lam = 0.5 * np.random.default_rng(7).normal(size=(2, n, d))
    x0 = 0.5 * np.random.default_rng(8).normal(size=d)
    per_client = {"a": PER_CLIENT_A, "b": PER_CLIENT_B}
    pairs = {"a": (0.3, 0.8), "b": (0.25, 0.4)}
    pair_a, pair_b = np.where(IS_GRADIENT, 0.3, 0.8), np.where(IS_GRADIENT, 0.25, 0.4)
    numbers = {"a": 0.35, "b": 0.3}
    a, b, nothing = np.full(n, 0.35), np.full(n, 0.3), np.zeros((n, d))
    start = {"x": x, "lam": lam}
    return {
        "per client, x0 omitted": Variant("client", {**per_client, **start}, PER_CLIENT_A, PER_CLIENT_B, x, lam, None),
        "per client, x0 given": Variant("row", {**per_client, **start, "x0": x0}, PER_CLIENT_A, PER_CLIENT_B, x, lam, x0),
        "pairs, lam alone": Variant("row", {**pairs, "lam": lam}, pair_a, pair_b, nothing, lam, None),
        "numbers, x alone": Variant("client", {**numbers, "x": x}, a, b, x, nothing, None),
        "numbers, x0 alone": Variant("row", {**numbers, "x0": x0}, a, b, np.tile(x0, (n, 1)), nothing, x0),
    }


VARIANTS = list(variants(1))


@functools.cache
def trace_of(name, variant, transport, updates=UPDATES):
    data = SAMPLES[name]()
    fleet = data.fleet(variants(1)[variant].weighting, updates)
    chosen = variants(fleet.d)[variant]
    return data, chosen, rounds_of(chosen.algorithm(), transport(fleet), ROUNDS)


def assert_same_rounds(got, expected, tolerance):
    for k in range(ROUNDS):
        errors = {name: error(getattr(got, name)[k], getattr(expected, name)[k]) for name in QUANTITIES}
        assert max(errors.values()) <= tolerance, f"round {k}: {errors}"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", grouped(SAMPLES))
def test_six_rounds_of_mixed_clients_are_the_papers(name, variant, transport):
    data, chosen, got = trace_of(name, variant, transport)
    assert_same_rounds(got, chosen.expected(data), BY_CG)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", grouped(SAMPLES))
def test_six_rounds_without_conjugate_gradients_are_the_papers_to_rounding(name, transport):
    data, chosen, got = trace_of(name, VARIANTS[0], transport, WITHOUT_CG)
    assert_same_rounds(got, chosen.expected(data, WITHOUT_CG), EXACT)


WITH_DIAGONALS = tuple(update.replace("newton-cg", "diagonal") for update in UPDATES)


@pytest.mark.parametrize("name", ["softmax", "sparse logistic with intercept"])
def test_six_rounds_with_diagonals_are_the_papers_to_rounding(name):
    data, chosen, got = trace_of(name, VARIANTS[0], fh.Stacked, WITH_DIAGONALS)
    assert_same_rounds(got, chosen.expected(data, WITH_DIAGONALS), EXACT)


@pytest.mark.parametrize("name", grouped(SAMPLES))
def test_both_transports_make_the_same_rounds(name):
    for variant in VARIANTS:
        _, _, stacked = trace_of(name, variant, fh.Stacked)
        _, _, serial = trace_of(name, variant, fh.Serial)
        assert_same_rounds(stacked, serial, ACROSS)
        assert error(stacked.residual, serial.residual) <= ACROSS


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", grouped(SAMPLES))
def test_a_run_repeated_gives_the_same_bits(name, transport):
    _, _, first = trace_of(name, VARIANTS[0], transport)
    _, _, again = trace_of.__wrapped__(name, VARIANTS[0], transport)
    assert same_bits(first, again)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", grouped(["logistic"]))
def test_the_residual_is_made_of_the_clients_own(name, transport):
    data, chosen, got = trace_of(name, VARIANTS[1], transport)
    expected = chosen.expected(data)
    oracle = data.oracle(chosen.weighting)
    x, lam, x0 = chosen.x, chosen.lam, chosen.x0
    for k in range(ROUNDS):
        r = np.array([f.grad(x[i]) - lam[i] + MU * (x[i] - x0) for i, f in enumerate(oracle)])
        apart = np.mean(np.sum((x - x0) ** 2, axis=1))
        still = np.mean(np.sum(r**2, axis=1))
        residual = len(oracle) * (np.sqrt(still) + MU * np.sqrt(apart))
        assert got.residual[k] == pytest.approx(residual, rel=1e-12)
        x, lam, x0 = expected.x[k], expected.lam[k], expected.x0[k]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", grouped(["logistic"]))
def test_run_traces_the_same_x0(name, transport):
    data, chosen, got = trace_of(name, VARIANTS[0], transport)
    _, trace = fh.run(chosen.algorithm(), transport(data.fleet(chosen.weighting)), ROUNDS)
    start = np.mean(chosen.x, axis=0) - np.mean(chosen.lam, axis=0) / MU
    assert error(trace.start, start) <= 1e-15
    assert error(trace.x0, got.x0) <= 1e-15


@pytest.mark.xdist_group("golden squared")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_squared_loss_on_its_rows_makes_the_same_rounds_as_on_its_statistics(transport, monkeypatch):
    data, chosen, on_statistics = trace_of("squared", VARIANTS[0], transport)
    monkeypatch.setattr(fleet_module, "STATISTICS_BUDGET", 0)
    fleet = data.fleet(chosen.weighting)
    assert not fleet.on_statistics
    assert_same_rounds(rounds_of(chosen.algorithm(), transport(fleet), ROUNDS), on_statistics, BY_CG)


@pytest.mark.xdist_group("golden squared")
def test_clients_in_blocks_make_the_same_rounds_as_all_at_once(monkeypatch):
    data, chosen, whole = trace_of("squared", VARIANTS[0], fh.Stacked)
    monkeypatch.setattr(stacked_module, "WORTH_BLOCKING", 0)
    monkeypatch.setattr(stacked_module, "CACHE", 1)
    fleet = data.fleet(chosen.weighting, names=[f"block {i}" for i in range(6)])  # another name: another compilation
    assert_same_rounds(rounds_of(chosen.algorithm(), fh.Stacked(fleet), ROUNDS), whole, EXACT)
