"""Anderson acceleration: its rounds against slow NumPy, the contract of every method, mixes that go wrong, and clients that leave."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.anderson import anderson as reference
from reference.pooled import least_squares_exact, logistic_high_precision, poisson_high_precision
from samples import SIZES, UPDATES, error, same_bits, sample

import fedhybrid as fh
from fedhybrid.algorithms.anderson import Local
from fedhybrid.clients import serial as serial_module
from fedhybrid.clients.base import Local as Parts
from fedhybrid.status import CheckpointError

TRANSPORTS = [fh.Stacked, fh.Serial]
EXACT = {"squared": least_squares_exact, "logistic": logistic_high_precision, "poisson": poisson_high_precision}
KINDS = [update.replace("-cg", "") for update in UPDATES]
N, D, MU, MEMORY = len(SIZES), 4, 0.8, 5
A = np.array([0.31, 0.9, 0.8, 0.7, 0.22, 0.6])
B = np.array([0.2, 0.31, 0.42, 0.24, 0.35, 0.17])
X, LAM = 0.5 * np.random.default_rng(7).normal(size=(2, N, D))

every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
SERIAL_LATER = pytest.param(fh.Serial, marks=pytest.mark.slow)
ALWAYS = [("squared", fh.Stacked), ("logistic", fh.Stacked), ("logistic", fh.Serial)]
LATER = [("squared", fh.Serial), ("poisson", fh.Stacked), ("poisson", fh.Serial)]


def accelerated(memory=MEMORY, mu=MU, a=A, b=B, x=X, lam=LAM, **more):
    return fh.anderson(fh.fedhybrid(mu=mu, a=a, b=b, x=x, lam=lam, **more), memory=memory)


def plain_start(mu=MU, memory=MEMORY):
    return fh.anderson(fh.fedhybrid(mu=mu, a=A, b=B), memory=memory)


def images(me, local):
    return local.x, local.lam


def _rounds(clients, step, length, state):
    def once(state):
        state = step(clients, state)
        return state, (*clients.observe(images, state.local), state.x0, state.gamma, state.epoch)

    return clients.scan(once, state, length)


def rounds_of(algorithm, clients, length):
    with jax.enable_x64(True):
        _, rows = clients.call(_rounds, (algorithm.step, length), algorithm.init(clients, jnp.zeros(clients.d)))
        return [np.asarray(column) for column in rows]


@functools.cache
def trace(loss, transport, steps=10):
    return fh.run(accelerated(), transport(sample(loss).fleet()), steps)[1]


# ── the rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("start", ["x0 omitted", "x0 given"])
@pytest.mark.parametrize(("loss", "transport"), [*ALWAYS, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in LATER)])
def test_eight_rounds_of_mixed_clients_are_the_references(loss, start, transport):
    data = sample(loss)
    x0 = None if start == "x0 omitted" else 0.5 * np.random.default_rng(8).normal(size=D)
    expected = reference(data.oracle(), KINDS, MU, A, B, x0, X, LAM, 8, MEMORY)
    x, lam, x0_got, gamma, epoch = rounds_of(accelerated(x0=x0), transport(data.fleet()), 8)
    for k in range(8):
        assert error(x[k], expected.x[k]) <= 1e-9, k
        assert error(lam[k], expected.lam[k]) <= 1e-9, k
        assert error(x0_got[k], expected.x0[k]) <= 1e-9, k
    assert error(gamma[:4], expected.gamma[:4]) <= 1e-9
    assert np.array_equal(np.diff(epoch, prepend=0), expected.dropped)


@every_transport
def test_the_first_two_images_are_the_methods_own(transport):
    clients = transport(sample("logistic").fleet())
    method = fh.run(fh.fedhybrid(mu=MU, a=A, b=B, x=X, lam=LAM), clients, 1)[1]
    assert same_bits(trace("logistic", transport).x0[0], method.x0[0])
    assert same_bits(trace("logistic", transport).residual[0], method.residual[0])


@pytest.mark.parametrize("loss", ["logistic", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("squared", "poisson"))])
def test_the_first_ten_rounds_are_the_same_on_both_transports(loss):
    stacked, serial = (trace(loss, transport) for transport in TRANSPORTS)
    for k in range(10):
        assert error(stacked.x0[k], serial.x0[k]) <= 1e-12, k
    assert error(stacked.residual, serial.residual) <= 1e-12


@every_transport
def test_a_run_repeated_gives_the_same_bits(transport):
    first, again = trace("logistic", transport), trace.__wrapped__("logistic", transport)
    assert same_bits((first.x0, first.residual), (again.x0, again.residual))


METHODS = {
    "fedhybrid": (lambda mu: fh.fedhybrid(mu=mu, a=A, b=B), 2),
    "pn_dg": (lambda mu: fh.pn_dg(mu=mu, b=0.4), 2),
    "admm": (lambda mu: fh.admm(rho=mu), 0),
    "fedpd": (lambda mu: fh.fedpd(eta=1 / mu), 0),
}


@pytest.mark.parametrize("loss", ["squared", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("logistic", "poisson"))])
@pytest.mark.parametrize("method", METHODS)
def test_it_reaches_the_methods_fixed_point_in_fewer_rounds(method, loss):
    data = sample(loss)
    x_star = EXACT[loss](data.plain_sites, data.plain_reg)
    clients, make = fh.Stacked(data.fleet()), METHODS[method][0]

    def rounds(algorithm):
        away = [error(x0, x_star) for x0 in fh.run(algorithm, clients, 250)[1].x0]
        return next((k for k, e in enumerate(away) if e <= 1e-8), 250), away[-1]

    (before, _), (after, floor) = rounds(make(MU)), rounds(fh.anderson(make(MU)))
    assert floor <= 1e-11
    assert after < before


@pytest.mark.parametrize(
    ("method", "transport"),
    [*((method, fh.Stacked) for method in METHODS), ("fedhybrid", fh.Serial)]
    + [pytest.param(method, fh.Serial, marks=pytest.mark.slow) for method in METHODS if method != "fedhybrid"],
)
def test_it_sends_the_methods_floats_and_one_more_than_its_memory_each_way(method, transport):
    make, more = METHODS[method]
    got = fh.run(fh.anderson(make(MU), memory=3), transport(sample("logistic").fleet()), 4)[1]
    assert np.diff(got.rounds, prepend=0).tolist() == [1] * 4
    assert np.diff(got.floats_up, prepend=0).tolist() == [N * (D + more + 3 + 1)] * 4
    assert np.diff(got.floats_down, prepend=0).tolist() == [N * (D + 3 + 1)] * 4


@every_transport
def test_the_servers_mix_is_the_mean_of_the_clients_mixes(transport):
    clients = transport(sample("logistic").fleet())
    state, _ = fh.run(accelerated(), clients, 6)

    def z(me, local, gamma):
        x, lam = local.images[-1] - jnp.tensordot(gamma, jnp.diff(local.images, axis=0), axes=1)
        return x - lam / local.method.mu

    with jax.enable_x64(True):
        mixed = np.asarray(clients.observe(z, state.local, state.gamma))
    assert error(np.mean(mixed, axis=0), state.x0) <= 1e-13


@pytest.mark.parametrize("transport", [fh.Stacked, SERIAL_LATER])
def test_the_mean_of_the_multipliers_that_fedpds_server_follows_is_mixed_too(transport):
    clients = transport(sample("logistic").fleet())
    state, _ = fh.run(fh.anderson(fh.fedpd(eta=1.0), memory=4), clients, 6)

    def mixed(me, local, gamma):
        return (local.images[-1] - jnp.tensordot(gamma, jnp.diff(local.images, axis=0), axes=1))[1]

    with jax.enable_x64(True):
        lam = np.asarray(clients.observe(mixed, state.local, state.gamma))
    assert error(state.method.lam, np.mean(lam, axis=0)) <= 1e-10


# ── one program, any order, any size ──────────────────────────────────────────────────────────────────────────────────────────

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: COMPILED.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
)


@every_transport
def test_nothing_is_compiled_for_other_data_and_other_parameters(transport):
    fh.run(plain_start(), transport(sample("logistic").fleet()), 5)
    before = len(COMPILED)
    fh.run(plain_start(mu=1.1 * MU), transport(sample("logistic", seed=1).fleet()), 5)
    assert COMPILED[before:] == []
    assert plain_start().step == plain_start(mu=1.1 * MU).step
    assert plain_start().on_client == plain_start(mu=1.1 * MU).on_client
    assert plain_start().step != fh.anderson(fh.admm(rho=1.0)).step


def test_it_can_be_vmapped_over_the_penalty():
    clients = fh.Stacked(sample("logistic").fleet())

    def x0(mu):
        return fh.run(plain_start(mu=mu), clients, 5)[1].x0

    mus = np.array([0.7, 0.8, 1.0])
    with jax.enable_x64(True):
        together = jax.vmap(x0)(mus)
    assert error(together, np.array([x0(mu) for mu in mus])) <= 1e-12


@every_transport
def test_the_order_of_the_clients_does_not_change_a_bit(transport):
    order = np.random.default_rng(1).permutation(N)
    fleet = sample("logistic").permuted(order).fleet(update=[UPDATES[i] for i in order])
    got = fh.run(accelerated(a=A[order], b=B[order], x=X[order], lam=LAM[order]), transport(fleet), 10)[1]
    assert same_bits(got.x0, trace("logistic", transport).x0)


TINY = {
    "one client, one column, one row": {"sizes": (1,), "d": 1},
    "one client": {"sizes": (8,), "d": 4},
    "one column, with an empty client and a client of one row": {"sizes": (5, 0, 1), "d": 1},
    "more columns than rows": {"sizes": (1, 1, 0), "d": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("shape", TINY)
def test_it_survives_the_smallest_fleets(shape, loss):
    data = sample(loss, **TINY[shape], reg=0.5)
    updates = ("newton", "gradient", "newton")[: len(TINY[shape]["sizes"])]
    algorithm = fh.anderson(fh.fedhybrid(mu=1.5, a=(0.2, 1.0), b=(0.3, 0.3)))
    got = fh.run(algorithm, fh.Stacked(data.fleet(update=updates)), 150)[1]
    assert error(got.x0[-1], EXACT[loss](data.plain_sites, data.plain_reg)) <= 1e-11


# ── solving ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_transport
def test_solve_ends_with_a_certificate_and_the_clients_own_values(transport):
    data = sample("logistic")
    result = fh.solve(data.fleet(), plain_start(), transport=transport, tol=1e-9)
    assert result.status is fh.Status.SOLVED
    assert error(result.x_clients, np.tile(result.x, (N, 1))) <= 1e-7
    assert error(result.lam_clients, np.array([f.grad(result.x) for f in data.oracle()])) <= 1e-7
    assert result.algorithm.startswith("anderson(algorithm='fedhybrid', mu=0.8, a=")


@pytest.mark.parametrize("transport", [fh.Stacked, SERIAL_LATER])
def test_a_run_goes_on_from_its_checkpoint_with_the_same_bits(transport, tmp_path):
    fleet = sample("logistic").fleet()
    options = {"transport": transport, "tol": 1e-9}
    unbroken = fh.solve(fleet, plain_start(), **options)
    place = fh.Checkpoint(tmp_path, every=1)
    early = fh.solve(fleet, plain_start(), max_rounds=9, checkpoint=place, **options)
    assert early.status is fh.Status.MAX_ROUNDS
    late = fh.solve(fleet, plain_start(), checkpoint=place, **options)
    assert same_bits((late.x, late.trace.x0, late.x_clients), (unbroken.x, unbroken.trace.x0, unbroken.x_clients))


@pytest.mark.parametrize(
    "other",
    [plain_start(mu=1.1 * MU), plain_start(memory=4), fh.fedhybrid(mu=MU, a=A, b=B), fh.anderson(fh.pn_dg(mu=MU, a=A, b=B), memory=5)],
    ids=str,
)
def test_the_checkpoint_of_another_method_is_refused(other, tmp_path):
    fleet = sample("logistic").fleet()
    fh.solve(fleet, plain_start(), max_rounds=3, checkpoint=fh.Checkpoint(tmp_path, every=1))
    with pytest.raises(CheckpointError, match="of another algorithm"):
        fh.solve(fleet, other, checkpoint=tmp_path)


REFUSED = {
    "accelerated already": plain_start,
    "keep nothing that is declared": lambda: fh.gd(step_size=0.1),
    "x0, y, lam, alpha, rho; it needs x": lambda: fh.fednew(alpha=1.0, rho=1.0),
    "kinds of question": lambda: fh.multipliers(mu=1.0, b=1.0),
    "made by a call": lambda: fh.fedhybrid,
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_mixed_is_refused(why):
    with pytest.raises(fh.InvalidConfig, match=why):
        fh.anderson(REFUSED[why]())


def test_a_memory_is_a_positive_whole_number():
    for memory in (0, -1, 2.0, True):
        with pytest.raises(fh.InvalidConfig, match="memory"):
            plain_start(memory=memory)


# ── going back ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def one_step(algorithm, clients, state):
    with jax.enable_x64(True):
        return clients.call(_once, (algorithm.step,), state)


def _once(clients, step, state):
    return step(clients, state)


def held(clients, state):
    with jax.enable_x64(True):
        return [np.asarray(part) for part in clients.observe(images, state.local)]


@every_transport
@pytest.mark.parametrize("wrong", [1e6, np.nan, *(pytest.param(wrong, marks=pytest.mark.slow) for wrong in (-30.0, np.inf))])
def test_a_mix_that_goes_wrong_is_undone_by_everyone(wrong, transport):
    clients, algorithm = transport(sample("logistic").fleet()), accelerated()
    state, _ = fh.run(algorithm, clients, 5)
    safe, x0_safe = held(clients, state), np.asarray(state.images[-1, 0])
    after = one_step(algorithm, clients, state._replace(gamma=jnp.full_like(state.gamma, wrong)))
    assert int(after.epoch) == 1
    assert int(after.count) == 0
    assert same_bits(after.x0, x0_safe)
    assert not np.any(after.gamma)
    assert float(after.residual) == float(state.residual)

    again = one_step(algorithm, clients, after)
    method = fh.run(fh.fedhybrid(mu=MU, a=A, b=B, x=safe[0], lam=safe[1], x0=x0_safe), clients, 1)[1]
    assert error(again.x0, method.x0[0]) <= 1e-14
    assert (int(again.epoch), int(again.count)) == (1, 1)


# mixes that go wrong by themselves: dropped at rounds 6 and none better at 22; dropped at 8 and 17
ROUGH = {"a memory of two": (0.1, 2, [6], [22, 23]), "a memory of five": (0.3, 5, [8, 17], [])}


@pytest.mark.slow
@every_transport
@pytest.mark.parametrize("name", ROUGH)
def test_rounds_that_are_dropped_are_the_references(name, transport):
    b_newton, memory, dropped, idle = ROUGH[name]
    data, gradient = sample("poisson"), np.array(KINDS) == "gradient"
    a, b = np.where(gradient, 0.5, 1.0), np.where(gradient, 0.3 * 0.05, b_newton)
    expected = reference(data.oracle("client"), KINDS, 0.05, a, b, None, X, LAM, 25, memory)
    got = rounds_of(accelerated(memory, mu=0.05, a=a, b=b), transport(data.fleet("client")), 25)
    assert np.flatnonzero(expected.dropped).tolist() == dropped
    assert np.flatnonzero(np.diff(got[4], prepend=0)).tolist() == dropped
    plain = [0, *(k + more for k in dropped for more in (0, 1)), *idle]
    assert [k for k in range(25) if not np.any(got[3][k])] == sorted(plain)
    for k in set(range(25)) - set(dropped):
        assert error(got[0][k], expected.x[k]) <= 1e-7, k
        assert error(got[2][k], expected.x0[k]) <= 1e-7, k


def test_after_going_back_it_is_as_fast_as_a_fresh_start():
    data = sample("logistic")
    clients, algorithm = fh.Stacked(data.fleet()), accelerated()
    state, _ = fh.run(algorithm, clients, 5)
    state = state._replace(gamma=jnp.full_like(state.gamma, np.nan))
    for _ in range(250):
        state = one_step(algorithm, clients, state)
    assert error(state.x0, EXACT["logistic"](data.plain_sites, data.plain_reg)) <= 1e-11


# ── absence ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Patchy(fh.Serial):
    """Clients that are away in some rounds: their state stays, and their last reply counts."""

    def __init__(self, fleet, away):
        super().__init__(fleet)
        self.away, self.round, self.replies, self.absent = away, 0, {}, 0

    def mean(self, fn, local, *down, stale=False, implied=None):
        here = [int(me.id) not in self.away(self.round) for me in self.clients]
        parts = list(local.parts)
        for k, (me, present) in enumerate(zip(self.clients, here, strict=True)):
            if present:
                parts[k], self.replies[k], _ = serial_module._round(fn, me, parts[k], *down)
        self.round, self.absent = self.round + 1, here.count(False)
        up = jax.tree.map(lambda *leaves: sum(leaves) / self.n, *(self.replies[k] for k in range(self.n)))
        return Parts(parts, local.meter), up

    def missed(self, local):
        return jnp.asarray(self.absent, jnp.int64)


def two_leave(k):
    return {4: (1,), 5: (1, 3), 10: (0,)}.get(k, ())


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_acceleration_pauses_while_somebody_is_away(loss):
    data = sample(loss)
    clients, algorithm = Patchy(data.fleet(), two_leave), accelerated()
    expected = reference(data.oracle(), KINDS, MU, A, B, None, X, LAM, 13, MEMORY, two_leave)
    x, lam, x0, gamma, epoch = rounds_of(algorithm, clients, 13)
    for k in range(13):
        assert error(x[k], expected.x[k]) <= 1e-8, k
        assert error(lam[k], expected.lam[k]) <= 1e-8, k
        assert error(x0[k], expected.x0[k]) <= 1e-8, k
    assert [bool(np.any(row)) for row in gamma] == [k in (1, 2, 3, 7, 8, 9, 12) for k in range(13)]
    assert not epoch.any()


def test_with_absences_it_still_reaches_the_optimum():
    data = sample("logistic")
    clients = Patchy(data.fleet(), lambda k: (k % 5,) if k % 7 == 6 else ())
    x0 = rounds_of(accelerated(), clients, 500)[2]
    assert error(x0[-1], EXACT["logistic"](data.plain_sites, data.plain_reg)) <= 1e-10


@pytest.mark.parametrize("wrong", [1e6, np.nan])
@pytest.mark.parametrize(
    "when", ["both", *(pytest.param(when, marks=pytest.mark.slow) for when in ("the round that was dropped", "the round that told so"))]
)
def test_whoever_was_away_when_a_step_was_dropped_does_not_go_on_from_it(when, wrong):
    data, algorithm = sample("logistic"), accelerated()
    rounds = {"the round that was dropped": (5,), "the round that told so": (6,), "both": (5, 6)}[when]
    clients = Patchy(data.fleet(), lambda k: (2,) if k in rounds else ())
    state, _ = fh.run(algorithm, clients, 5)
    good = held(clients, state)
    with jax.enable_x64(True):
        state = algorithm.step(clients, state._replace(gamma=jnp.full_like(state.gamma, wrong)))
        assert int(state.epoch) == 1
        for _ in range(2):
            state = algorithm.step(clients, state)
        x, lam = held(clients, state)
        assert np.abs(x[2] - good[0][2]).max() < 1.0
        assert np.abs(lam[2] - good[1][2]).max() < 10.0
        for _ in range(250):
            state = algorithm.step(clients, state)
    assert error(state.x0, EXACT["logistic"](data.plain_sites, data.plain_reg)) <= 1e-10


def test_a_local_state_shows_its_newest_image():
    clients = fh.Serial(sample("logistic").fleet())
    state, _ = fh.run(accelerated(), clients, 3)
    for part in state.local.parts:
        assert isinstance(part, Local)
        assert same_bits(part.x, part.images[-1, 0])
        assert same_bits(part.lam, part.images[-1, 1])
