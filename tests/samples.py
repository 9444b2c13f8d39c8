"""Small fleets that the tests share, each with what tests/reference makes of the same data."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from reference import objective

import fedhybrid as fh
from fedhybrid.algorithms.fedhybrid import update

# an empty client, one of a single row, sizes far apart; every update at more than one size
SIZES = (7, 0, 1, 12, 5, 3)
UPDATES = ("gradient", "newton", "newton-cg", "newton", "gradient", "newton-cg")
DELTA = 0.7
LOSSES = {"squared": fh.squared, "logistic": fh.logistic, "poisson": fh.poisson, "huber": fh.huber(delta=DELTA), "softmax": fh.softmax}


class Sample(NamedTuple):
    """Sites as the library gets them, and with the intercept's column of ones, in full, as the reference does."""

    loss: str
    sites: list
    plain_sites: list
    reg: Any
    plain_reg: np.ndarray
    intercept: bool

    def fleet(self, weighting="row", update=UPDATES, **more):
        options = {"loss": LOSSES[self.loss], "reg": self.reg, "intercept": self.intercept, **more}
        return fh.Fleet(self.sites, weighting=weighting, update=update, **options)

    def oracle(self, weighting="row"):
        """The reference's clients."""
        classes = 3 if self.loss == "softmax" else None
        return objective.clients(self.plain_sites, self.loss, self.plain_reg, weighting, delta=DELTA, classes=classes)

    def permuted(self, order):
        return self._replace(sites=[self.sites[i] for i in order], plain_sites=[self.plain_sites[i] for i in order])


def response(loss, z, rng):
    N = len(z)
    return {
        "squared": lambda: z + rng.normal(size=N),
        "huber": lambda: z + 2 * rng.normal(size=N),
        "logistic": lambda: (z + rng.logistic(size=N) > 0).astype(float),
        "poisson": lambda: rng.poisson(np.exp(np.clip(z, -2, 2))).astype(float),
        "softmax": lambda: rng.permutation(np.arange(N) % 3).astype(float),
    }[loss]()


def sample(loss, *, sizes=SIZES, d=4, seed=0, reg=0.3, sparse=False, intercept=False, weights=True, offset=True):
    """Sites of the given sizes. `sparse` rows have three entries of the d."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=d)
    sites, plain_sites = [], []
    for N in sizes:
        A = (0.3 if loss == "poisson" else 0.7) * rng.normal(size=(N, d))
        if sparse:
            kept = np.argsort(rng.random(size=(N, d)), axis=1)[:, :3]
            A = A * (np.arange(d) == kept[:, :, None]).any(axis=1)
        z0 = 0.3 * rng.normal(size=N) if offset else np.zeros(N)
        y = response(loss, A @ truth + z0, rng)
        rest = ((rng.uniform(0.5, 2.0, size=N) if weights else np.ones(N)), z0)[: 2 if offset else int(weights)]
        sites.append((scipy.sparse.csr_array(A) if sparse else A, y, *rest))
        plain_sites.append((np.column_stack([A, np.ones(N)]) if intercept else A, y, *rest))
    plain_reg = np.append(np.broadcast_to(reg, d), [0.0] * intercept).astype(float)
    return Sample(loss, sites, plain_sites, reg, plain_reg, intercept)


def crossed(group, losses, serial=("logistic",)):
    """Pairs of a loss and a transport: every loss over Stacked, `serial` over Serial too, and the rest of them in the long tier.

    Every pair is a program to compile; but no transport knows a loss, and no loss a transport. Pairs of one loss share a `group`.
    """

    def marks(loss, transport):
        always = transport is fh.Stacked or loss in serial
        return [pytest.mark.xdist_group(f"{group} {loss}"), *([] if always else [pytest.mark.slow])]

    return [pytest.param(loss, transport, marks=marks(loss, transport)) for loss in losses for transport in (fh.Stacked, fh.Serial)]


def error(got, expected):
    """The largest difference, relative to the largest expected magnitude."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    scale = np.max(np.abs(expected), initial=0.0)
    return float(np.max(np.abs(got - expected), initial=0.0) / (scale or 1.0))


def same_bits(got, expected):
    got, expected = (jax.tree.map(np.asarray, tree) for tree in (got, expected))
    return jax.tree.structure(got) == jax.tree.structure(expected) and all(
        g.shape == e.shape and g.tobytes() == e.tobytes() for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    )


class Rounds(NamedTuple):
    """What every client holds, and what it sent, after each round: (rounds, n, d); x0 is (rounds, d), residual (rounds,)."""

    z: np.ndarray
    x: np.ndarray
    lam: np.ndarray
    x0: np.ndarray
    residual: np.ndarray


def _held(me, local):
    return local.x, local.lam


def _sent(me, local, x0):
    (z, *_) = update(me, local, x0)[1]
    return z


def _rounds(clients, step, length, state):
    def once(state):
        z = clients.observe(_sent, state.local, state.x0)
        state = step(clients, state)
        x, lam = clients.observe(_held, state.local)
        return state, Rounds(z, x, lam, state.x0, state.residual)

    return clients.scan(once, state, length)


def rounds_of(algorithm, clients, length=6, x0=None):
    """FedHybrid's rounds, seen from inside every client."""
    with jax.enable_x64(True):
        start = jnp.zeros(clients.d) if x0 is None else jnp.asarray(x0, jnp.float64)
        _, rounds = clients.call(_rounds, (algorithm.step, length), algorithm.init(clients, start))
        return Rounds(*(np.asarray(part) for part in rounds))
