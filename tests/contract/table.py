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
    rounds: int | None = 1  # a step; None: as many as a loop needs, at least 2
    reach: float = 1e-11  # how near to x* it gets, relative to ‖x*‖ (of a biased one: how near it must not get)
    problems: tuple[str, ...] = ("squared", "logistic", "poisson", "softmax")  # that it is for; the first two are run in CI


def fedhybrid(curvature, factor=1.0):
    mu = 2.0 * float(np.mean(curvature.own))
    a = np.where(curvature.is_gradient, 1.0 / (1.5 * curvature.own + mu), 1.0)
    b = np.where(curvature.is_gradient, 0.5 * mu**2 * a, 0.4)
    return fh.fedhybrid(mu=factor * mu, a=a, b=b)


TABLE = {
    "fedhybrid": Row(fedhybrid, steps=200, up=lambda n, d, rounds: n * (d + 2)),
    "gd": Row(lambda curvature, factor=1.0: fh.gd(step_size=factor * 0.7 / curvature.ell), steps=200, up=lambda n, d, rounds: n * d),
    "lbfgs": Row(lambda curvature, factor=1.0: fh.lbfgs(memory=5), steps=60, up=lambda n, d, rounds: n * (d + 1), reach=1e-9),
    "newton": Row(
        lambda curvature, factor=1.0: fh.newton(),
        steps=12,
        up=lambda n, d, rounds: n * (d * (d + 1) // 2 + d + 1 + (rounds - 1)),
        rounds=None,
    ),
}
