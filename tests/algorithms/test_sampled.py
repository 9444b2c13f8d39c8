"""FedHybrid on a few rows a step: with its noise, and with the noise taken out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.pooled import logistic_high_precision
from reference.sampled import fedhybrid_on_samples
from samples import error, same_bits, sample

import fedhybrid as fh
from fedhybrid.algorithms.sampled import sample_of

SIZES = (20, 15, 10, 18)
UPDATES = ("gradient", "newton", "gradient", "gradient")
SETTING = {"mu": 0.1, "a": (0.8, 0.9), "b": (0.02, 0.1)}


@functools.cache
def problem():
    data = sample("logistic", sizes=SIZES, d=4, reg=0.2)
    return data.fleet(update=UPDATES), logistic_high_precision(data.plain_sites, 0.2)


@functools.cache
def errors(steps, **options):
    fleet, x_star = problem()
    trace = fh.run(fh.fedhybrid(**SETTING, **options), fh.Stacked(fleet), steps)[1]
    return np.linalg.norm(trace.x0 - x_star, axis=1) / np.linalg.norm(x_star)


def test_plain_sampling_ends_in_a_ball_around_the_optimum_that_larger_batches_shrink():
    floors = [float(np.sqrt(np.mean(errors(3000, batch=batch, reduced=False)[1000:] ** 2))) for batch in (4, 64)]
    assert floors[1] > 1e-4
    assert 2.0 <= floors[0] / floors[1] <= 8.0  # the noise falls with the square root: 4
    assert errors(3000)[-1] <= 1e-12  # all rows: none


def test_with_the_noise_taken_out_it_reaches_the_optimum():
    assert errors(3000, batch=4, reduced=True)[-1] <= 1e-10


def test_a_sample_is_right_in_the_mean():
    fleet, _ = problem()
    with jax.enable_x64(True):
        f = jax.tree.map(jnp.asarray, fleet.client(0).f)
        x = jnp.ones(4)
        keys = jax.random.split(jax.random.key(0), 20_000)
        mean = jnp.mean(jax.vmap(lambda key: sample_of(f, key, 3).grad(x))(keys), axis=0)
        assert error(mean, f.grad(x)) <= 0.02


def drawn(data, seed, batch, rounds):
    """rows[k][i] as the keys (seed, i, k) say: by the inverse of the distribution of the weights."""
    rows = []
    with jax.enable_x64(True):
        for k in range(rounds):
            keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), i), k) for i in range(len(data.sites))]
            uniform = [np.asarray(jax.random.uniform(key, (batch,), jnp.float64)) for key in keys]
            upto = [np.cumsum(f.v) for f in data.oracle()]
            rows.append([np.searchsorted(each, each[-1] * u, side="right") for each, u in zip(upto, uniform, strict=True)])
    return rows


@pytest.mark.parametrize("reduced", [False, True])
def test_twelve_rounds_on_samples_are_the_loops(reduced):
    fleet, _ = problem()
    data = sample("logistic", sizes=SIZES, d=4, reg=0.2)
    a, b = ([SETTING[name][kind == "newton"] for kind in UPDATES] for name in "ab")
    expected = fedhybrid_on_samples(data.oracle(), UPDATES, SETTING["mu"], a, b, drawn(data, 5, 4, 12), reduced)
    got = fh.run(fh.fedhybrid(**SETTING, batch=4, seed=5, reduced=reduced), fh.Stacked(fleet), 12)[1].x0
    assert error(got, expected) <= 1e-12


def test_newton_clients_alone_have_their_noise_too_or_none_of_it():
    data = sample("logistic", sizes=SIZES, d=4, reg=0.2)
    fleet, (_, x_star) = data.fleet(update="newton"), problem()
    ends = [fh.run(fh.fedhybrid(**SETTING, batch=8, reduced=reduced), fh.Stacked(fleet), 400)[1].x0[-1] for reduced in (False, True)]
    assert error(ends[0], x_star) > 1e-3
    assert error(ends[1], x_star) <= 1e-10


@pytest.mark.parametrize("transport", [fh.Stacked, fh.Serial])
def test_the_same_seed_draws_the_same_rows(transport):
    fleet, _ = problem()

    def x0(seed):
        return fh.run(fh.fedhybrid(**SETTING, batch=3, seed=seed), transport(fleet), 5)[1].x0

    assert same_bits(x0(1), x0(1))
    assert not same_bits(x0(1), x0(2))


def test_both_transports_draw_the_same_rows():
    stacked, serial = (fh.run(fh.fedhybrid(**SETTING, batch=3), transport(problem()[0]), 12)[1] for transport in (fh.Stacked, fh.Serial))
    assert error(stacked.x0, serial.x0) <= 1e-12


def test_an_empty_client_and_absence_change_nothing_of_the_answer():
    data = sample("logistic", sizes=(20, 0, 10, 18), d=4, reg=0.2)
    x_star = logistic_high_precision(data.plain_sites, 0.2)
    clients = fh.absent(0.2)(data.fleet(update="gradient"))
    trace = fh.run(fh.fedhybrid(**SETTING, batch=4), clients, 4000)[1]
    assert error(trace.x0[-1], x_star) <= 1e-9


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(fh.InvalidConfig, match="keep_rows"):
        fh.run(fh.fedhybrid(**SETTING, batch=3), fh.Stacked(sample("squared").fleet(update="gradient")), 1)
    for options in ({"batch": 3}, {**SETTING, "batch": 0}, {**SETTING, "batch": 3, "seed": -1}):
        with pytest.raises(fh.InvalidConfig, match="fedhybrid"):
            fh.fedhybrid(**options)
