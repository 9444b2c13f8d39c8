"""What the contract needs to know of each algorithm: one row a method."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import fedhybrid as fh


class Curvature(NamedTuple):
    """Of the problem at x*, by the reference: what step sizes are chosen from."""

    n: int
    ell: float  # of F
    own: np.ndarray  # of every fᵢ
    is_gradient: np.ndarray


class Row(NamedTuple):
    make: Callable[..., fh.Algorithm]  # make(curvature, factor): `factor` near 1 changes the values of its parameters, if it has any
    steps: int  # that take it to x*, or, if it is biased, to where it goes
    up: Callable[[int, int, int], int]  # floats that all clients together send in a step, from n, d and the step's rounds
    down: Callable[[int, int, int], int] = lambda n, d, rounds: n * d * rounds
    rounds: int | tuple[int, ...] | None = 1  # a step; several: one of them; None: as many as a loop needs, at least 2
    settled: int = 0  # steps that cost less, while there is less to say
    reach: float = 1e-11  # how near to x* it gets, relative to ‖x*‖ (of a biased one: how near it must not get)
    problems: tuple[str, ...] = ("squared", "logistic", "poisson", "softmax")  # that it is for


def mean(curvature):
    """Of the clients' own smoothness: the scale of one client's function."""
    return float(np.mean(curvature.own))


def largest(curvature):
    return float(np.max(curvature.own))


def fedhybrid(curvature, factor=1.0):
    mu = 2.0 * float(np.mean(curvature.own))
    a = np.where(curvature.is_gradient, 1.0 / (1.5 * curvature.own + mu), 1.0)
    b = np.where(curvature.is_gradient, 0.5 * mu**2 * a, 0.4)
    return fh.fedhybrid(mu=factor * mu, a=a, b=b)


TABLE = {
    "admm": Row(lambda curvature, factor=1.0: fh.admm(rho=factor * mean(curvature)), steps=100, up=lambda n, d, rounds: n * d),
    "aide": Row(
        lambda curvature, factor=1.0: fh.aide(
            tau=0.3 * mean(curvature), mu=factor * 0.2 * mean(curvature), m=0.3 * mean(curvature), inner=2
        ),
        steps=60,
        up=lambda n, d, rounds: 4 * n * d,
        rounds=4,
    ),
    "cocoa": Row(
        lambda curvature, factor=1.0: fh.cocoa(passes=3),
        steps=120,
        up=lambda n, d, rounds: n * (d + 1),
        problems=("squared", "logistic", "poisson"),
    ),
    "dane": Row(
        lambda curvature, factor=1.0: fh.dane(mu=factor * 0.2 * mean(curvature), eta=0.9),
        steps=60,
        up=lambda n, d, rounds: 2 * n * d,
        rounds=2,
    ),
    "dgd": Row(
        lambda curvature, factor=1.0: fh.dgd(step_size=factor * 0.5 / largest(curvature)),
        steps=60,
        up=lambda n, d, rounds: n * (d + 1),
        reach=1e-2,
    ),
    "dingo": Row(
        lambda curvature, factor=1.0: fh.dingo(theta=factor * 1.3, phi=0.1 * mean(curvature)),
        steps=50,
        up=lambda n, d, rounds: n * d * (rounds + 2),
        rounds=None,
    ),
    "disco": Row(
        lambda curvature, factor=1.0: fh.disco(mu=factor * 0.1 * mean(curvature), who=curvature.n // 2),
        steps=20,
        up=lambda n, d, rounds: n * d * (rounds - 1) + d * (d + 1) // 2,
        down=lambda n, d, rounds: n * d * (rounds - 1),
        rounds=None,
    ),
    "distributed_newton": Row(
        lambda curvature, factor=1.0: fh.distributed_newton(step_size=factor * 0.8),
        steps=25,
        up=lambda n, d, rounds: n * (d * (d + 1) // 2 + d),
    ),
    "esom": Row(
        lambda curvature, factor=1.0: fh.esom(alpha=factor * 2.0 * largest(curvature), eps=0.05 * largest(curvature), K=1),
        steps=120,
        up=lambda n, d, rounds: n * (2 * d + 1),
        rounds=2,
    ),
    "extra": Row(
        lambda curvature, factor=1.0: fh.extra(step_size=factor * 0.6 / largest(curvature)), steps=250, up=lambda n, d, rounds: n * (d + 1)
    ),
    "fedac": Row(
        lambda curvature, factor=1.0: fh.fedac(step_size=factor * 0.5 / largest(curvature), m=float(np.min(curvature.own)), local_steps=3),
        steps=60,
        up=lambda n, d, rounds: 2 * n * d,
        down=lambda n, d, rounds: 2 * n * d,
        reach=1e-2,
    ),
    "fedavg": Row(
        lambda curvature, factor=1.0: fh.fedavg(step_size=factor * 0.7 / largest(curvature), local_steps=3),
        steps=60,
        up=lambda n, d, rounds: n * d,
        reach=1e-2,
    ),
    "fedhybrid": Row(fedhybrid, steps=200, up=lambda n, d, rounds: n * (d + 2)),
    "fednew": Row(
        lambda curvature, factor=1.0: fh.fednew(alpha=0.2 * mean(curvature), rho=factor * mean(curvature)),
        steps=200,
        up=lambda n, d, rounds: n * (d + 1),
    ),
    "fednl": Row(
        lambda curvature, factor=1.0: fh.fednl(compressor="topk", k=4, alpha=factor * 0.9, first="zero"),
        steps=40,
        up=lambda n, d, rounds: n * (d + 1 + 8),
    ),
    "fedpd": Row(lambda curvature, factor=1.0: fh.fedpd(eta=factor / mean(curvature)), steps=100, up=lambda n, d, rounds: n * d),
    "fedprox": Row(
        lambda curvature, factor=1.0: fh.fedprox(rho=factor * mean(curvature)), steps=60, up=lambda n, d, rounds: n * d, reach=1e-2
    ),
    "gd": Row(lambda curvature, factor=1.0: fh.gd(step_size=factor * 0.7 / curvature.ell), steps=200, up=lambda n, d, rounds: n * d),
    "giant": Row(
        lambda curvature, factor=1.0: fh.giant(candidates=12),
        steps=60,
        up=lambda n, d, rounds: n * (2 * d + 2 * 12 + 1),
        rounds=3,
    ),
    "krylov": Row(
        lambda curvature, factor=1.0: fh.krylov(memory=3),
        steps=60,
        up=lambda n, d, rounds: n * (rounds * d + 3 * 4 // 2 + 3),
        down=lambda n, d, rounds: n * (d + (rounds - 1) * (d + 2)),
        rounds=(1, 2),
        settled=3,
    ),
    "lbfgs": Row(lambda curvature, factor=1.0: fh.lbfgs(memory=5), steps=60, up=lambda n, d, rounds: n * (d + 1), reach=1e-9),
    "multipliers": Row(
        lambda curvature, factor=1.0: fh.multipliers(mu=2.0 * mean(curvature), b=factor * 1.8 * mean(curvature)),
        steps=50,
        up=lambda n, d, rounds: n * ((rounds - 1) * (d * (d + 1) // 2 + d + 1) + 1),
        rounds=None,
    ),
    "network_newton": Row(
        lambda curvature, factor=1.0: fh.network_newton(alpha=factor * 0.5 / largest(curvature), eps=0.9, K=1),
        steps=60,
        up=lambda n, d, rounds: n * (2 * d + 1),
        rounds=2,
        reach=1e-2,
    ),
    "newton": Row(
        lambda curvature, factor=1.0: fh.newton(),
        steps=12,
        up=lambda n, d, rounds: n * (d * (d + 1) // 2 + d + 1 + (rounds - 1)),
        rounds=None,
    ),
    "pn_dg": Row(
        lambda curvature, factor=1.0: fh.pn_dg(mu=mean(curvature), b=factor * 0.5 * mean(curvature)),
        steps=120,
        up=lambda n, d, rounds: n * (d + 2),
    ),
    "scaffold": Row(
        lambda curvature, factor=1.0: fh.scaffold(step_size=factor * 0.5 / largest(curvature), local_steps=3, server_step_size=1.1),
        steps=120,
        up=lambda n, d, rounds: n * d,
        down=lambda n, d, rounds: 2 * n * d,
    ),
}
