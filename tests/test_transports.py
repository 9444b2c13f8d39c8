"""What a transport does beside the mean: one client alone, packed messages, and counting the clients' arithmetic."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.linalg import cho_factor, cho_solve
from jax.scipy.sparse.linalg import cg
from samples import SIZES, UPDATES, error, sample

import fedhybrid as fh
from fedhybrid.algorithms.base import nothing
from fedhybrid.clients.base import Packed
from fedhybrid.clients.work import with_flops

TRANSPORTS = [fh.Stacked, fh.Serial]
X = np.array([0.3, -0.2, 0.5, 0.1])


def started(transport, loss="logistic", start=nothing):
    clients = transport(sample(loss).fleet())
    with jax.enable_x64(True):
        return clients, clients.start(start)


# ── one client ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def count(me):
    return jnp.zeros(())


def counted_gradient(me, local, x):
    return local + 1.0, (me.f.grad(x), me.f.value(x))


def held(me, local):
    return local


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("who", range(len(SIZES)))
def test_one_client_alone_answers_and_only_its_state_moves(who, transport):
    clients, local = started(transport, start=count)
    with jax.enable_x64(True):
        local, (g, f) = clients.one(counted_gradient, local, who, jnp.asarray(X))
        moved = clients.observe(held, local)
    mine = sample("logistic").oracle()[who]
    assert error(g, mine.grad(X)) <= 1e-14
    assert error(f, mine.value(X)) <= 1e-14
    assert np.array_equal(moved, np.arange(len(SIZES)) == who)
    assert (int(local.meter.rounds), int(local.meter.floats_up), int(local.meter.floats_down)) == (1, 5, 4)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("who", [-1, len(SIZES)])
def test_a_client_that_does_not_exist_cannot_be_asked(who, transport):
    clients, local = started(transport, start=count)
    with pytest.raises(fh.InvalidConfig, match="numbered from 0 to 5"):
        clients.one(counted_gradient, local, who, X)


# ── packed messages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class Place:
    """A vector of which one entry is not zero, as its position and value."""

    d: int

    def __call__(self, payload):
        position, value = payload
        return jnp.zeros(self.d).at[position].set(value)


def largest_entry(me, local, x):
    g = me.f.grad(x)
    k = jnp.argmax(jnp.abs(g))
    return local, (Packed((k, g[k]), Place(x.shape[0])), me.f.value(x))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_packed_message_is_counted_by_its_payload_and_averaged_after_it_is_read(transport):
    clients, local = started(transport)
    with jax.enable_x64(True):
        local, (g, f) = clients.mean(largest_entry, local, jnp.asarray(X))
    expected = np.zeros(4)
    for client in sample("logistic").oracle():
        mine = client.grad(X)
        k = np.argmax(np.abs(mine))
        expected[k] += mine[k] / len(SIZES)
    assert error(g, expected) <= 1e-14
    assert error(f, sum(client.value(X) for client in sample("logistic").oracle()) / len(SIZES)) <= 1e-14
    assert int(local.meter.floats_up) == len(SIZES) * 3


# ── arithmetic ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def flops(fn, *args):
    with jax.enable_x64(True):
        return float(jax.jit(lambda *args: jnp.asarray(with_flops(fn, *args)[1], jnp.float64))(*args))


A, H, v = np.ones((5, 3)), np.eye(3) + 1.0, np.arange(3.0)


def powers(H, v, k):
    return lax.while_loop(lambda at: at[1] < k, lambda at: (H @ at[0], at[1] + 1), (v, jnp.zeros((), jnp.int64)))[0]


BY_HAND = {
    "a product with a vector": (lambda A, v: A @ v, (A, v), 2 * 5 * 3),
    "a product of matrices": (lambda A: A.T @ A, (A,), 2 * 3 * 3 * 5),
    "a sum of squares": (lambda v: jnp.sum(v**2), (v,), 3 + 3),
    "moving data": (lambda A: jnp.concatenate([A.T.reshape(-1), A[0]]), (A,), 0),
    "Cholesky and two triangular solves": (lambda H, v: cho_solve(cho_factor(H, lower=True), v), (H, v), 27 / 3 + 2 * 9),
    "a scan": (lambda H, v: lax.scan(lambda u, _: (H @ u, None), v, None, length=7)[0], (H, v), 7 * 18),
    "a loop that data end": (powers, (H, v, np.int64(4)), 4 * 18),
    "a scan over loops that data end": (
        lambda H, v, k: lax.scan(lambda u, _: (powers(H, u, k), None), v, None, length=3)[0],
        (H, v, np.int64(4)),
        3 * 4 * 18,
    ),
    "the branch that is taken": (lambda H, v: lax.cond(v[1] > 0, lambda: H @ (H @ v), lambda: v), (H, v), 2 * 18),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_flops_are_those_counted_by_hand(name):
    fn, args, expected = BY_HAND[name]
    assert flops(fn, *args) == pytest.approx(expected, rel=1e-15)


def test_every_client_of_a_group_is_counted_by_its_own_loop():
    with jax.enable_x64(True):
        each = jax.vmap(lambda k: with_flops(powers, jnp.asarray(H), jnp.asarray(v), k)[1])(jnp.arange(5))
    assert each.tolist() == [18.0 * k for k in range(5)]


def test_conjugate_gradients_are_counted_by_their_iterations():
    G = np.diag(np.arange(1.0, 9.0))

    def counted(iterations):
        return flops(lambda v: cg(lambda u: jnp.asarray(G) @ u, v, tol=1e-30, maxiter=iterations)[0], np.ones(8))

    three, four, five = counted(3), counted(4), counted(5)
    assert four - three == five - four
    assert 2 * 64 <= four - three <= 2 * 64 + 15 * 8


def test_a_gradient_on_statistics_costs_a_product_with_its_matrix():
    data = sample("squared")
    trace = fh.run(fh.gd(step_size=0.1), fh.Stacked(data.fleet(update=UPDATES)), 3)[1]
    assert np.diff(trace.flops, prepend=0.0).tolist() == [6 * (2 * 4 * 4 + 4)] * 3  # H·x and − c, at six clients
    serial = fh.run(fh.gd(step_size=0.1), fh.Serial(data.fleet(update=UPDATES)), 3)[1]
    assert np.array_equal(trace.flops, serial.flops)


def test_a_newton_client_does_more_arithmetic_than_a_gradient_client():
    data = sample("logistic", sizes=(40, 40), d=8)
    cost = {
        update: fh.run(fh.fedhybrid(mu=1.0, a=0.5, b=0.1), fh.Stacked(data.fleet(update=update)), 1)[1].flops[0]
        for update in ("gradient", "newton")
    }
    hessian = 2 * (2 * 40 * 8 * 8)
    assert hessian < cost["newton"] - cost["gradient"] < 2 * hessian
    assert math.isfinite(cost["gradient"])
