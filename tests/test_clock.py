"""Simulated seconds: a round lasts as long as its slowest client, by its own speed and link, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import SIZES, UPDATES, same_bits, sample

import fedhybrid as fh
from fedhybrid import checkpoint
from fedhybrid.algorithms.base import nothing
from fedhybrid.measure import measure, optimum
from fedhybrid.status import CheckpointError

N, D = len(SIZES), 4
SPEED = np.array([3e3, 5e2, 7e3, 2e3, 9e2, 4e3])
LATENCY = np.array([0.01, 0.2, 0.3, 0.02, 0.05, 0.1])
BANDWIDTH = np.array([50.0, 90.0, 70.0, 300.0, 20.0, 400.0])
CLOCK = fh.Clock(speed=SPEED, latency=LATENCY, bandwidth=BANDWIDTH)
TRANSPORTS = {"Stacked": CLOCK, "Serial": lambda fleet: fh.Serial(fleet, clock=CLOCK)}
GRADIENT = 2 * D * D + D  # flops of H·x − c


def by_hand(flops, sent, who=slice(None)):
    return flops / SPEED[who] + 2 * LATENCY[who] + sent / BANDWIDTH[who]


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return TRANSPORTS[request.param]


def test_a_round_of_gradients_takes_what_a_calculation_by_hand_says(transport):
    clients = transport(sample("squared").fleet())
    seconds = fh.run(fh.gd(step_size=0.1), clients, 3)[1].seconds
    assert seconds == pytest.approx(by_hand(GRADIENT, D + D).max() * np.arange(1, 4), rel=1e-14)


def test_the_slowest_client_rules_by_its_own_update(transport):
    """FedHybrid on statistics, by hand: H·x − c, r and the rest of a step; Newton-type clients also invert once and multiply twice."""
    updates = ["gradient", "newton"] * 3
    clients = transport(sample("squared").fleet(update=updates))
    trace = fh.run(fh.fedhybrid(mu=1.0, a=0.5, b=0.1), clients, 2)[1]
    vectors = {"gradient": 17, "newton": 17 + 2 * 2}  # sums and products of d numbers; D.mul and D.solve add μ·v and + to them
    extra = {"gradient": 0, "newton": 2 * 2 * D * D}
    each = np.array([GRADIENT + extra[update] for update in updates], float)
    upper = by_hand(each + np.array([vectors[update] * D + 2 for update in updates]), 2 * D + 2).max()
    lower = by_hand(each, 2 * D + 2).max()
    assert lower < np.diff(trace.seconds)[0] < upper
    invert = D**3 / 3 + D**3 + 2 * D**3 + 4 * D * D  # Cholesky, a triangular solve with D columns, a product; H + μI, made symmetric
    assert trace.seconds[0] - np.diff(trace.seconds)[0] == pytest.approx((invert / SPEED[1::2]).max(), rel=1e-14)


def gradient(me, local, x):
    return local, me.f.grad(x)


@pytest.mark.parametrize("who", range(N))
def test_one_client_alone_takes_its_own_time(who, transport):
    clients = transport(sample("squared").fleet())
    with jax.enable_x64(True):
        local = clients.one(gradient, clients.start(nothing), who, jnp.ones(D))[0]
    assert float(local.meter.seconds) == pytest.approx(by_hand(GRADIENT, 2 * D, who), rel=1e-14)


def test_durations_are_in_site_order_and_the_longest_is_the_round(transport):
    clients = transport(sample("squared").fleet())
    with jax.enable_x64(True):
        local, x = clients.start(nothing), jnp.ones(D)
        each = clients.durations(gradient, local, x)
        each, seconds = np.asarray(each), float(clients.mean(gradient, local, x)[0].meter.seconds)
    assert each == pytest.approx(by_hand(GRADIENT, 2 * D), rel=1e-14)
    assert seconds == each.max()


def test_clients_are_not_stacked_as_they_are_listed():
    assert list(sample("squared").fleet().order) != list(range(N))


def test_in_any_order_of_the_sites_the_seconds_are_the_same(transport):
    data, order = sample("squared"), np.array([3, 5, 1, 0, 4, 2])
    clock = fh.Clock(speed=SPEED[order], latency=LATENCY[order], bandwidth=BANDWIDTH[order])
    shuffled = data.permuted(order).fleet(update=[UPDATES[i] for i in order])
    expected = fh.run(fh.krylov(), transport(data.fleet()), 5)[1].seconds
    assert np.array_equal(fh.run(fh.krylov(), clock(shuffled), 5)[1].seconds, expected)


def test_stacked_and_serial_keep_the_same_time_where_they_pad_alike():
    sizes = (8, 8, 8, 12, 12, 12)
    fleet = sample("logistic", sizes=sizes).fleet(update=["gradient"] * 3 + ["newton"] * 3)
    stacked, serial = (fh.run(fh.krylov(), make(fleet), 6)[1] for make in TRANSPORTS.values())
    assert np.array_equal(stacked.seconds, serial.seconds)
    assert stacked.seconds.min() > 0


@pytest.mark.parametrize("algorithm", [fh.krylov(), fh.fedhybrid(mu=1.0, a=0.5, b=0.1)], ids=lambda algorithm: algorithm.spec.name)
def test_a_clock_changes_no_other_bit(algorithm):
    fleet = sample("logistic").fleet()
    timed, plain = (fh.run(algorithm, make(fleet), 6)[1] for make in (CLOCK, fh.Stacked))
    assert not plain.seconds.any()
    assert timed.seconds.all()
    assert all(same_bits(getattr(timed, name), getattr(plain, name)) for name in ("x0", "residual", *plain.columns()) if name != "seconds")


def test_other_speeds_compile_nothing():
    fleet = sample("logistic").fleet()
    fh.run(fh.gd(step_size=0.1), fh.Clock(speed=1e6)(fleet), 3)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
    )
    other = fh.run(fh.gd(step_size=0.1), CLOCK(fleet), 3)[1]
    assert not compiled
    assert other.seconds.all()


def test_a_result_and_its_files_tell_the_seconds(tmp_path):
    result = fh.solve(sample("logistic").fleet(), transport=CLOCK)
    assert result.seconds > result.trace.seconds[-1] > 0  # a certificate takes rounds as well
    assert result.to_dict()["seconds"] == result.seconds
    result.trace.to_csv(tmp_path / "trace.csv")
    names, *rows = (line.split(",") for line in (tmp_path / "trace.csv").read_text().splitlines())
    assert [float(row[names.index("seconds")]) for row in rows] == result.trace.seconds.tolist()


def test_a_measured_curve_has_seconds():
    fleet = sample("squared").fleet()
    curve, _ = measure(fh.gd(step_size=0.1), CLOCK(fleet), optimum(fleet), rounds=40)
    assert curve.first_below(1.0, "seconds") == curve.seconds[0] > 0


class Killed(BaseException):
    pass


def test_a_resumed_run_goes_on_with_its_seconds(tmp_path, monkeypatch):
    fleet = sample("logistic").fleet()
    algorithm, place = fh.fedhybrid(mu=1.0, a=0.5, b=0.1), fh.Checkpoint(tmp_path / "run", every=1)
    whole = fh.solve(fleet, algorithm, transport=CLOCK)
    save, saves = checkpoint.save, []

    def killing(*args):
        save(*args)
        saves.append(args)
        if len(saves) == 7:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", killing)
        with pytest.raises(Killed):
            fh.solve(fleet, algorithm, transport=CLOCK, checkpoint=place)
    resumed = fh.solve(fleet, algorithm, transport=CLOCK, checkpoint=place)
    assert len(saves) == 7
    assert same_bits(resumed.trace.seconds, whole.trace.seconds)
    assert resumed.seconds == whole.seconds


def test_a_run_is_not_resumed_by_another_clock(tmp_path):
    fleet = sample("logistic").fleet()
    fh.solve(fleet, transport=CLOCK, max_rounds=2, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match="of another transport"):
        fh.solve(fleet, transport=fh.Clock(speed=1.0), max_rounds=2, checkpoint=tmp_path / "run")


MISTAKES = [
    ({"speed": 0.0}, "speed must be positive"),
    ({"speed": [1.0, np.nan]}, "speed must be positive"),
    ({"speed": "fast"}, "speed must be a number"),
    ({"speed": 1.0, "latency": -1.0}, "latency must be not negative"),
    ({"speed": 1.0, "latency": np.inf}, "latency must be not negative"),
    ({"speed": 1.0, "bandwidth": [[1.0]]}, "bandwidth must be positive"),
    ({"speed": []}, "speed must be positive"),
]


@pytest.mark.parametrize(("options", "says"), MISTAKES)
def test_a_clock_that_cannot_be_is_refused(options, says):
    with pytest.raises(fh.InvalidConfig, match=says):
        fh.Clock(**options)


def test_a_clock_for_another_number_of_clients_is_refused():
    with pytest.raises(fh.InvalidConfig, match="2 entries for 6 clients"):
        fh.solve(sample("squared").fleet(), transport=fh.Clock(speed=[1.0, 2.0]))


@pytest.mark.parametrize("make", [fh.Stacked, fh.Serial])
def test_durations_need_a_clock(make):
    clients = make(sample("squared").fleet())
    with jax.enable_x64(True), pytest.raises(fh.InvalidConfig, match="no clock"):
        clients.durations(gradient, clients.start(nothing), jnp.ones(D))
