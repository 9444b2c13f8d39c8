"""Clients that are away: last known replies stand in, the answer is that of everyone, and only those present cost anything."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.bridged import fedhybrid_with_absence
from reference.pooled import least_squares_exact, logistic_high_precision
from samples import crossed, error, rounds_of, same_bits, sample

import fedhybrid as fh
from fedhybrid.algorithms.base import nothing
from fedhybrid.algorithms.oracle import gradient

SIZES = (20, 15, 10, 18, 12, 15)
UPDATES = ("newton", "gradient", "newton", "gradient", "newton", "gradient")
NAMES = ("a", "b", "c", "d", "e", "f")
EXACT = {"squared": least_squares_exact, "logistic": logistic_high_precision}
OVER = [fh.Stacked, fh.Serial]
IS_GRADIENT = np.array([update == "gradient" for update in UPDATES])
STEPS = {"mu": 0.3, "a": np.where(IS_GRADIENT, 1.2, 0.9), "b": np.where(IS_GRADIENT, 0.1, 0.2)}


@functools.cache
def problem(loss):
    data = sample(loss, sizes=SIZES, d=5, reg=0.1)
    return data, data.fleet(update=UPDATES, names=NAMES), EXACT[loss](data.plain_sites, 0.1)


@functools.cache
def rounds_to(loss, **absence):
    """Rounds after which automatic FedHybrid stays within 1e-10 of the pooled optimum."""
    _, fleet, x_star = problem(loss)
    if "who" in absence:
        absence = {"rate": {absence["who"]: absence["rate"]}}
    transport = fh.absent(**absence) if absence else fh.Stacked
    trace = fh.run(fh.fedhybrid(), transport(fleet), 1500)[1]
    away = np.linalg.norm(trace.x0 - x_star, axis=1) / np.linalg.norm(x_star)
    late = np.flatnonzero(~(away <= 1e-10))
    return math.inf if late[-1] + 1 == len(away) else int(trace.rounds[late[-1] + 1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rate", "factor"), [(0.1, 1.5), (0.3, 2.0)])
@pytest.mark.parametrize("loss", EXACT)
def test_random_absence_costs_few_rounds_and_no_accuracy(loss, rate, factor, seed):
    assert rounds_to(loss, rate=rate, seed=seed) <= factor * rounds_to(loss)


@pytest.mark.parametrize("who", ["b", pytest.param("a", marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", EXACT)
def test_a_client_that_is_away_nine_rounds_in_ten_is_still_fully_counted(loss, who):
    assert rounds_to(loss, who=who, rate=0.9) <= 12 * rounds_to(loss)  # about as many of its own rounds as ever


@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.slow)])
def test_a_slow_client_and_time_varying_participation_change_nothing_of_the_answer(loss):
    _, fleet, x_star = problem(loss)
    halves = np.array([[True, True, True, False, False, False], [False, False, False, True, True, True], [True] * 6])
    for transport in (fh.absent(every={"d": 4}), fh.absent(present=halves)):
        result = fh.solve(fleet, transport=transport, tol=1e-10)
        assert result.status is fh.Status.SOLVED
        assert result.algorithm == "fedhybrid()"
        assert np.linalg.norm(result.x - x_star) <= 1e-10 * max(1.0, np.linalg.norm(x_star))


def mask(rounds, rate, seed=0):
    return np.random.default_rng(seed).random((rounds, len(SIZES))) >= rate


@pytest.mark.parametrize(("loss", "over"), crossed("participation", EXACT))
def test_ten_rounds_are_those_of_the_reference(loss, over):
    data, fleet, _ = problem(loss)
    present = mask(10, 0.4)
    got = rounds_of(fh.fedhybrid(**STEPS), fh.absent(present=present, over=over)(fleet), 10)
    expected = fedhybrid_with_absence(data.oracle(), UPDATES, STEPS["mu"], STEPS["a"], STEPS["b"], present, 10)
    for k in range(10):
        for name in ("x", "lam", "x0"):
            assert error(getattr(got, name)[k], getattr(expected, name)[k]) <= 1e-12


def test_to_average_those_who_answered_would_leave_a_permanent_error():
    data, _, x_star = problem("squared")
    args = data.oracle(), UPDATES, STEPS["mu"], STEPS["a"], STEPS["b"], mask(397, 0.1), 397
    bridged, responders = (fedhybrid_with_absence(*args, responders_only=only).x0 for only in (False, True))
    assert error(bridged[-1], x_star) <= 1e-14
    assert min(error(x0, x_star) for x0 in responders[300:]) > 1e-3


def test_the_same_seed_gives_the_same_bits_and_another_seed_or_rate_compiles_nothing():
    _, fleet, _ = problem("logistic")

    def x0(rate, seed):
        return fh.run(fh.fedhybrid(), fh.absent(rate, seed=seed)(fleet), 20)[1].x0

    first = x0(0.2, 1)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
    )
    assert same_bits(first, x0(0.2, 1))
    others = x0(0.2, 2), x0(0.3, 1)
    assert compiled == []
    assert not any(same_bits(first, other) for other in others)


@pytest.mark.parametrize("over", OVER)
def test_only_those_present_are_counted(over):
    _, fleet, _ = problem("squared")
    present = mask(8, 0.5, seed=3)
    whole = fh.run(fh.gd(step_size=0.1), over(fleet), 8)[1]
    clients = fh.absent(present=present, over=over)(fleet)
    state, trace = fh.run(fh.gd(step_size=0.1), clients, 8)
    count = np.append(6, present[1:].sum(axis=1))  # in the first round everyone answers
    assert np.diff(trace.rounds, prepend=0).tolist() == [1] * 8
    assert np.diff(trace.floats_up, prepend=0).tolist() == (5 * count).tolist()
    assert np.diff(trace.floats_down, prepend=0).tolist() == (5 * count).tolist()
    assert np.diff(trace.flops, prepend=0.0).tolist() == (whole.flops[0] / 6 * count).tolist()
    assert int(clients.missed(state.local)) == 6 - count[-1]
    assert int(over(fleet).missed(fh.run(fh.gd(step_size=0.1), over(fleet), 1)[0].local)) == 0


@pytest.mark.parametrize("over", OVER)
def test_a_round_that_waits_gets_everyone_and_keeps_the_last_replies(over):
    data, fleet, _ = problem("logistic")
    clients = fh.absent(present=np.eye(6, dtype=bool), over=over)(fleet)
    oracle = data.oracle()
    with jax.enable_x64(True):
        x, y = jnp.zeros(5), jnp.ones(5)
        local = clients.start(nothing, bridged=(gradient, x))
        local, first = clients.mean(gradient, local, x, stale=True)
        local, full = clients.mean(gradient, local, y)
        assert int(clients.missed(local)) == 0
        local, second = clients.mean(gradient, local, y, stale=True)  # of the table's second row
        assert int(clients.missed(local)) == 5
        _, renewed = clients.mean(gradient, clients.renew(local), y, stale=True)
    at_zero, at_one = (np.array([f.grad(point) for f in oracle]) for point in (np.zeros(5), np.ones(5)))
    assert error(first, at_zero.mean(axis=0)) <= 1e-13
    assert error(full, at_one.mean(axis=0)) <= 1e-13
    assert error(second, np.where(np.arange(6)[:, None] == 1, at_one, at_zero).mean(axis=0)) <= 1e-13
    assert error(renewed, at_one.mean(axis=0)) <= 1e-13


@pytest.mark.parametrize("make", [lambda: fh.admm(rho=0.1), lambda: fh.gd(step_size=0.5), lambda: fh.fedhybrid(**STEPS)])
def test_other_methods_that_bridge_reach_the_optimum_too(make):
    _, fleet, x_star = problem("logistic")
    result = fh.solve(fleet, make(), transport=fh.absent(0.2), tol=1e-9)
    assert result.status is fh.Status.SOLVED
    assert np.linalg.norm(result.x - x_star) <= 1e-9 * max(1.0, np.linalg.norm(x_star))


def test_a_method_that_needs_everyone_is_refused_and_told_which_do_not():
    _, fleet, _ = problem("logistic")
    for algorithm in (fh.krylov(), fh.lbfgs(), fh.newton()):
        with pytest.raises(fh.InvalidConfig, match="admm and gd"):
            fh.solve(fleet, algorithm, transport=fh.absent(0.1))


def test_a_run_with_absence_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path):
    _, fleet, _ = problem("logistic")
    whole = fh.solve(fleet, transport=fh.absent(0.3))
    cut = fh.solve(fleet, transport=fh.absent(0.3), checkpoint=fh.Checkpoint(tmp_path, every=1), max_rounds=25)
    assert cut.status is fh.Status.MAX_ROUNDS
    rest = fh.solve(fleet, transport=fh.absent(0.3), checkpoint=fh.Checkpoint(tmp_path, every=1))
    assert same_bits((whole.x, whole.trace.x0), (rest.x, rest.trace.x0))
    with pytest.raises(fh.status.CheckpointError, match="another transport"):
        fh.solve(fleet, transport=fh.absent(0.3, seed=1), checkpoint=tmp_path)


WRONG = {
    "nothing": {},
    "two": {"rate": 0.1, "every": 2},
    "always away": {"rate": 1.0},
    "nobody of this name": {"rate": {"z": 0.1}},
    "a wrong number": {"rate": [0.1, 0.2]},
    "half a round": {"every": 1.5},
    "a table of numbers": {"present": np.ones((2, 6))},
    "one who never comes": {"present": np.arange(6)[None] > 0},
    "a seed that is none": {"rate": 0.1, "seed": -1},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_schedule_is_refused(case):
    with pytest.raises(fh.InvalidConfig, match="absent"):
        fh.absent(**WRONG[case])(problem("squared")[1])


# ── deadlines, and acceleration ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.slow)])
def test_a_deadline_makes_late_clients_answer_later_rounds_and_time_shorter(loss):
    _, fleet, x_star = problem(loss)
    clock = fh.Clock(speed=[1e5, 1e5, 1e5, 1e5, 1e5, 2e3], latency=1e-3)
    method = fh.fedhybrid(**STEPS)
    waiting = fh.run(method, clock(fleet), 60)[1]
    clients = fh.absent(deadline=float(waiting.seconds[1] - waiting.seconds[0]) / 2.5, over=clock)(fleet)
    state, hurried = fh.run(method, clients, 1200)
    assert np.asarray(state.local.every).tolist() == [1, 1, 1, 1, 1, 3]  # only the slow one is late, and answers every third round
    assert error(hurried.x0[-1], x_star) <= 1e-10
    each, before = np.diff(hurried.seconds), waiting.seconds[1] - waiting.seconds[0]
    assert each[5:].max() == pytest.approx(before / 2.5)
    assert np.all(each[5:] <= before / 2.5 * (1 + 1e-12))


def test_a_deadline_without_a_clock_is_refused():
    with pytest.raises(fh.InvalidConfig, match="Clock"):
        fh.absent(deadline=1.0)(problem("squared")[1])


@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.slow)])
def test_acceleration_over_clients_that_are_away_reaches_the_same_answer(loss):
    _, fleet, x_star = problem(loss)
    table = np.ones((12, 6), bool)
    table[3, 1] = table[7, 4] = False
    trace = fh.run(fh.anderson(fh.fedhybrid(**STEPS)), fh.absent(present=table)(fleet), 400)[1]
    assert error(trace.x0[-1], x_star) <= 1e-10


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_acceleration_among_random_absence_is_no_slower_than_the_method_itself(rate):
    _, fleet, x_star = problem("squared")
    rounds = []
    for method in (fh.fedhybrid(**STEPS), fh.anderson(fh.fedhybrid(**STEPS))):
        trace = fh.run(method, fh.absent(rate)(fleet), 400)[1]
        late = np.linalg.norm(trace.x0 - x_star, axis=1) > 1e-10 * np.linalg.norm(x_star)
        assert not late[-1]
        rounds.append(np.flatnonzero(late)[-1])
    assert rounds[1] <= rounds[0]
