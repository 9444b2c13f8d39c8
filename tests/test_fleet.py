"""The fleet: how clients are grouped, and that a client pays only for the update that it chose."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import SIZES, sample

import fedhybrid as fh
from fedhybrid.grouping import ENOUGH, MOST_GROUPS, group_by_size
from fedhybrid.problem import GLM, Multinomial, Quadratic


def padded(groups):
    return sum(len(members) * size for members, size in groups)


@pytest.mark.parametrize("seed", range(8))
def test_lognormal_sizes_are_padded_to_less_than_twice_the_data_in_at_most_eight_groups(seed):
    sizes = np.maximum(1, np.random.default_rng(seed).lognormal(4, 2, size=500).astype(int)).tolist()
    groups = group_by_size(sizes)
    print(f"seed {seed}: {len(groups)} groups, {padded(groups) / sum(sizes):.2f} times the data")
    assert len(groups) <= 8
    assert padded(groups) < 2 * sum(sizes)
    assert sorted(i for members, _ in groups for i in members) == list(range(500))
    assert all(sizes[i] <= size for members, size in groups for i in members)


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_the_best_of_all_and_no_group_too_many(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 200 if seed % 2 else 6, size=9).tolist()
    ordered = sorted(sizes)

    @functools.cache
    def best(count):
        cuts = itertools.combinations(range(1, 9), count - 1)
        return min(sum((j - i) * ordered[j - 1] for i, j in itertools.pairwise((0, *cut, 9))) for cut in cuts)

    enough = next((count for count in range(1, 9) if best(count) <= ENOUGH * sum(sizes)), MOST_GROUPS)
    groups = group_by_size(sizes)
    assert len(groups) == enough
    assert padded(groups) == best(enough)


def test_many_distinct_sizes_are_thinned_out_and_still_cover_every_client():
    sizes = np.random.default_rng(0).permutation(np.arange(1, 5001)).tolist()
    groups = group_by_size(sizes)
    assert sorted(i for members, _ in groups for i in members) == list(range(5000))
    assert all(sizes[i] <= size for members, size in groups for i in members)
    assert padded(groups) <= (ENOUGH + 0.01) * sum(sizes)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_every_client_is_in_exactly_one_group_with_others_of_its_update(loss):
    fleet = sample(loss).fleet()
    assert sorted(fleet.order) == list(range(fleet.n))
    for group in fleet.groups:
        assert len({fleet.updates[i] for i in group.members}) == 1
        assert fleet.on_statistics or all(SIZES[i] <= group.rows for i in group.members)


def test_clients_are_read_back_in_site_order():
    for transport in (fh.Stacked, fh.Serial):
        clients = transport(sample("logistic").fleet())
        with jax.enable_x64(True):
            ids = clients.observe(own_id, clients.start(nothing))
        assert list(ids) == list(range(6))


def own_id(me, local):
    return me.id


def nothing(me):
    return ()


# What a client pays for


def refuse(*arguments):
    raise AssertionError("this client must not compute it")


def refused(monkeypatch, *methods):
    jax.clear_caches()  # what was compiled before the change would still compute it
    for problem in (GLM, Multinomial, Quadratic):
        for method in methods:
            if method in vars(problem):
                monkeypatch.setattr(problem, method, refuse)


def three_rounds(loss, update, transport=fh.Stacked):
    return fh.run(fh.fedhybrid(mu=0.5, a=0.3, b=0.1), transport(sample(loss, d=3).fleet(update=update)), 3)


@pytest.mark.parametrize("transport", [fh.Stacked, fh.Serial])
@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_a_gradient_client_never_computes_a_hessian(loss, transport, monkeypatch):
    refused(monkeypatch, "hess", "hvp")
    three_rounds(loss, "gradient", transport)
    with pytest.raises(AssertionError, match="must not compute"):
        three_rounds(loss, "newton", transport)


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_a_newton_cg_client_never_forms_a_hessian(loss, monkeypatch):
    refused(monkeypatch, "hess")
    three_rounds(loss, "newton-cg")


def test_a_hessian_is_formed_only_in_the_newton_clients_group(monkeypatch):
    asked = []
    real = GLM.hess
    monkeypatch.setattr(GLM, "hess", lambda self, x: asked.append(self.y.shape) or real(self, x))
    three_rounds("logistic", ["gradient", "gradient", "gradient", "newton", "gradient", "gradient"])
    assert set(asked) == {(12,)}


# What the clients add up to


def test_the_clients_add_up_to_the_pooled_objective_however_the_rows_are_dealt_out():
    rng = np.random.default_rng(0)
    A, y, w = rng.normal(size=(30, 3)), rng.normal(size=30), rng.uniform(0.5, 2, size=30)
    x = rng.normal(size=3)
    pooled = 0.5 * np.sum(w * (A @ x - y) ** 2) / w.sum() + 0.5 * 0.2 * x @ x
    for cuts in ((30,), (10, 30), (1, 2, 30), (0, 15, 15, 30)):
        rows = [slice(i, j) for i, j in itertools.pairwise((0, *cuts))]
        fleet = fh.Fleet([(A[s], y[s], w[s]) for s in rows], loss=fh.squared, reg=0.2)
        with jax.enable_x64(True):
            total = sum(float(fleet.client(i).f.value(jnp.asarray(x))) for i in range(fleet.n))
        assert total == pytest.approx(pooled, rel=1e-14)


def test_the_callers_arrays_are_left_as_they_were():
    data = sample("logistic")
    before = [[np.array(part) for part in site] for site in data.sites]
    fh.run(fh.fedhybrid(mu=0.5, a=0.3, b=0.1), fh.Stacked(data.fleet()), 3)
    for site, kept in zip(data.sites, before, strict=True):
        assert all(np.array_equal(part, old) for part, old in zip(site, kept, strict=True))


def test_updates_can_be_given_by_name():
    A, y = np.eye(3), np.ones(3)
    sites = {"north": (A, y), "south": (A, y)}
    assert fh.Fleet(sites, loss=fh.squared, update={"south": "gradient", "north": "newton"}).updates == ("newton", "gradient")
    with pytest.raises(fh.InvalidConfig, match="every site"):
        fh.Fleet(sites, loss=fh.squared, update={"south": "gradient"})
