"""update="auto": a choice by prices and a rehearsal, recorded, replayable, and near the best of all choices."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from samples import same_bits, sample

import fedhybrid as fh
from fedhybrid import costs
from fedhybrid.clients.rehearsal import Rehearsal
from fedhybrid.measure import measure, optimum
from fedhybrid.numerics import scope


def ill_conditioned(n=4, d=24, rows=120, seed=0, decades=2.0, apart=0.0, squared=False):
    """Sites whose columns differ in scale. Where they are not `apart`, they are IID: the Hessian of any is nearly that of all."""
    rng = np.random.default_rng(seed)
    scales, truth = 10 ** -np.linspace(0.0, decades, d), rng.normal(size=d)
    sites = []
    for _ in range(n):
        A = rng.normal(size=(rows, d)) * scales * 10 ** (apart * rng.normal(size=d))
        z = A @ truth
        sites.append((A, z + rng.normal(size=rows) if squared else (z + rng.logistic(size=rows) > 0).astype(float)))
    return sites


def fleet(sites=None, update="auto", **more):
    return fh.Fleet(ill_conditioned() if sites is None else sites, loss=fh.logistic, reg=1e-6, update=update, **more)


CLOCK = fh.Clock(speed=[1e8, 3e7, 1e7, 6e7], latency=1e-3, bandwidth=1e6)


def test_the_choice_is_recorded_and_can_be_given_again():
    chosen = fleet(clock=CLOCK)
    assert set(chosen.updates) <= {"gradient", "newton"}
    assert [site.update for site in chosen.choices] == list(chosen.updates)
    notes = fh.solve(chosen).notes
    for name, site in zip(chosen.names, chosen.choices, strict=True):
        assert any(note.startswith(f"{name}: {site.update}, ") and "a step" in note for note in notes)
    again = fleet(update=chosen.updates)
    assert again.fingerprint == chosen.fingerprint
    assert same_bits(fh.solve(again).trace.x0, fh.solve(chosen).trace.x0)


def test_without_a_clock_every_site_is_timed_here():
    chosen = fleet()
    assert all(0 < site.gradient < 60 and 0 < site.newton < 60 for site in chosen.choices)
    assert fh.solve(chosen).status is fh.Status.SOLVED


def test_prices_are_those_that_a_run_with_the_clock_is_charged():
    clock = fh.Clock(speed=CLOCK.speed, latency=1e-3)  # of a message whose length changes the price is that of the longest
    with scope():
        prices = costs._prices(fleet(update="gradient"), fh.krylov(), clock)
    for kind, update in enumerate(("gradient", "newton")):
        trace = fh.run(fh.krylov(), clock(fleet(update=update)), 1)[1]
        assert trace.seconds[0] == pytest.approx(prices.seconds[0][kind].max() + prices.seconds[1][kind].max(), rel=1e-12)


def test_a_newton_step_costs_more_on_a_slower_machine():
    choice = fh.choose(fleet(update="gradient"), clock=CLOCK)
    newton = np.array([site.newton for site in choice.sites])
    assert (np.argsort(newton) == np.argsort(-CLOCK.speed)).all()
    assert all(site.newton > site.gradient for site in choice.sites)


def test_a_rehearsal_is_the_method_itself_where_every_client_is_quadratic():
    data = sample("squared")
    updates = ("gradient", "newton", "newton", "gradient", "newton", "gradient")
    real = data.fleet(update=updates)
    for algorithm in (fh.krylov(), fh.fedhybrid(mu=1.0, a=0.5, b=0.1), fh.gd(step_size=0.1)):
        bandwidth = np.inf if algorithm.spec.name == "krylov" else 1e3  # krylov's messages grow, and their price is that of the longest
        clock = fh.Clock(speed=np.linspace(1e3, 9e3, 6), latency=0.01, bandwidth=bandwidth)
        best = optimum(real)
        expected, _ = measure(algorithm, clock(real), best, rounds=20, until=0.0)
        with scope():
            prices = costs._prices(real, algorithm, clock)
            clients = Rehearsal(costs._model(real).f, real.d, np.array([update == "newton" for update in updates]), prices)
        got, _ = measure(algorithm, clients, best, rounds=20, until=0.0)
        assert got.gap[:5] == pytest.approx(expected.gap[:5], rel=1e-6)
        assert got.seconds[:5] == pytest.approx(expected.seconds[:5], rel=1e-12)


def test_the_choice_does_not_depend_on_the_order_of_the_sites():
    sites, order = ill_conditioned(), np.array([2, 0, 3, 1])
    clock = fh.Clock(speed=CLOCK.speed[order], latency=1e-3, bandwidth=1e6)
    assert fleet([sites[i] for i in order], clock=clock).updates == tuple(fleet(clock=CLOCK).updates[i] for i in order)


def suited(m, ell, updates):
    """FedHybrid's parameters for a choice, from the analysis of equal quadratic clients."""
    m_mean, ell_mean = float(np.mean(m)), float(np.mean(ell))
    mu = float(np.sqrt(max(m_mean, 1e-4 * ell_mean) * ell_mean))
    gradient = np.array([update == "gradient" for update in updates])
    a = np.where(gradient, 1.0 / (ell + mu), 1.0)
    b = np.where(gradient, 0.25 * mu * (mu / (ell + mu)), min(0.25, mu / (ell_mean + mu)))
    return {"mu": mu, "a": a, "b": b}


class Fleets(NamedTuple):
    sites: list
    loss: Any
    reg: float
    method: str

    def fleet(self, updates):
        return fh.Fleet(self.sites, loss=self.loss, reg=self.reg, update=updates)

    def algorithm(self):
        """krylov, or fedhybrid with the parameters that suit a choice."""
        plain = self.fleet("gradient")
        bounds = fh.theory.bounds(plain)
        return lambda updates: fh.krylov() if self.method == "krylov" else fh.fedhybrid(**suited(*bounds, updates))


SLOW = pytest.mark.slow
FLEETS = {
    "least squares": Fleets(ill_conditioned(d=40, squared=True), fh.squared, 1e-5, "krylov"),
    "apart": Fleets(ill_conditioned(decades=1.0, apart=0.5, seed=1), fh.logistic, 1e-3, "krylov"),
    "fedhybrid": Fleets(ill_conditioned(decades=0.5, seed=2), fh.logistic, 1e-2, "fedhybrid"),
    "fedhybrid, dear": Fleets(ill_conditioned(d=60, rows=240, decades=0.0, seed=3), fh.logistic, 0.3, "fedhybrid"),
}


@pytest.mark.parametrize("name", ["fedhybrid", *(pytest.param(name, marks=SLOW) for name in ("least squares", "fedhybrid, dear", "apart"))])
def test_auto_is_within_a_tenth_of_the_best_of_all_choices(name):
    one, found = FLEETS[name], {}
    make, best = one.algorithm(), optimum(one.fleet("gradient"))
    for updates in itertools.product(("gradient", "newton"), repeat=4):
        curve, _ = measure(make(updates), CLOCK(one.fleet(updates)), best, rounds=2000, until=1e-8)
        found[updates] = curve.first_below(1e-8, "seconds")
    chosen = fh.choose(one.fleet("gradient"), make, clock=CLOCK).updates
    assert found[chosen] <= 1.1 * min(found.values())


def test_newton_updates_are_chosen_where_they_pay():
    chosen = fleet(clock=CLOCK)
    assert "newton" in chosen.updates
    auto, gradient = (fh.solve(one, transport=CLOCK).seconds for one in (chosen, fleet(update="gradient")))
    assert auto < 0.7 * gradient


@pytest.mark.parametrize("loss", [pytest.param("poisson", marks=pytest.mark.slow), "softmax"])
def test_any_loss_and_the_smallest_sites_can_be_chosen_for(loss):
    chosen = sample(loss).fleet(update="auto", clock=fh.Clock(speed=1e6))
    assert len(chosen.updates) == len(chosen.choices) == 6
    assert all(np.isfinite([site.gradient, site.newton]).all() for site in chosen.choices)


def test_one_site_with_one_column_chooses_too():
    chosen = fh.Fleet([(np.ones((3, 1)), np.arange(3.0))], loss=fh.squared, update="auto", clock=fh.Clock(speed=1e6))
    assert chosen.updates[0] in ("gradient", "newton")


def test_without_a_model_everybody_does_gradient_updates(monkeypatch):
    monkeypatch.setattr(costs, "LARGEST_MODEL", 10)
    chosen = fleet()
    assert set(chosen.updates) == {"gradient"}
    assert "no model to choose by" in chosen.notes[-1]


def test_a_clock_without_auto_is_refused():
    with pytest.raises(fh.InvalidConfig, match="transport=clock"):
        fleet(update="newton", clock=CLOCK)


def test_a_method_on_rows_has_nothing_to_choose():
    with pytest.raises(fh.InvalidConfig, match="works on rows"):
        fh.choose(fleet(update="gradient"), fh.cocoa(), clock=CLOCK)


def test_auto_is_for_all_sites():
    with pytest.raises(fh.InvalidConfig, match="auto for all"):
        fleet(update=["auto", "newton", "gradient", "newton"])
