"""Random problems in a dozen shapes, some of them unkind: one-label sites, sites of one row and of thousands, columns a million times as
large as others, near-singular tables. Sizes belong to the shape, so that a shape is compiled once; everything else to the seed.
"""

from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
    loss: str
    sites: list
    reg: float
    weighting: str
    updates: list
    intercept: bool


class Shape(NamedTuple):
    loss: str
    sizes: tuple
    d: int
    reg: tuple  # from, to: log-uniform; (0, 0) is none
    kappa: float = 1e2  # of the rows' covariance, at most
    unscaled: float = 0.0  # decades that the columns' scales may differ by, either way
    alike: bool = True  # whether sites hold the same kind of rows
    one_label: bool = False
    weighting: str = "row"
    intercept: bool = False


SHAPES = {
    "one site": Shape("logistic", (60,), 5, (1e-4, 1.0)),
    "one column": Shape("poisson", (9, 30, 1), 1, (1e-3, 1.0)),
    "least squares": Shape("squared", (50, 7, 120, 30), 12, (0, 0), kappa=1e4),
    "near singular": Shape("squared", (60, 60, 60), 20, (1e-8, 1e-6), kappa=1e6),
    "unscaled columns": Shape("squared", (40, 80, 25, 60), 8, (1e-3, 1e-1), unscaled=3.0, intercept=True),
    "wide": Shape("squared", (20, 10, 25, 5, 30), 100, (1e-3, 1.0), kappa=1e2, alike=False),
    "one label each": Shape("logistic", (30, 45, 20, 60, 15, 33), 10, (1e-3, 1e-1), one_label=True, weighting="client", alike=False),
    "tiny and huge": Shape("logistic", (1, 3000, 2, 40, 1, 0, 500), 15, (1e-4, 1e-2), kappa=1e3, intercept=True),
    "unscaled labels": Shape("logistic", (60, 30, 90), 6, (1e-4, 1e-2), unscaled=2.0, one_label=True),
    "fifty sites": Shape("huber", (20,) * 50, 8, (1e-3, 1e-1), alike=False),
    "counts": Shape("poisson", (50, 80, 20, 35), 10, (1e-4, 1e-1), kappa=1e3, alike=False, intercept=True),
    "maybe separable": Shape("logistic", (12, 9, 14), 6, (0, 0)),
}


def problem(name: str, seed: int) -> Problem:
    shape = SHAPES[name]
    rng = np.random.default_rng([seed, *name.encode()])
    d = shape.d
    truth = rng.normal(size=d)
    scales = 10.0 ** rng.uniform(-shape.unscaled, shape.unscaled, size=d)
    basis = _basis(rng, d, shape.kappa)
    sites = []
    for k, rows in enumerate(shape.sizes):
        own = basis if shape.alike else rng.uniform(0.2, 2.0) * _basis(rng, d, shape.kappa)
        A = rng.normal(size=(rows, d)) @ own + (0.0 if shape.alike else 0.5 * rng.normal(size=d))
        y = _response(shape, A @ truth, rng)
        if shape.one_label and rows > 1:
            y = np.full(rows, float(k % 2)) if k else y
        sites.append((A * scales, y))
    low, high = shape.reg
    reg = 0.0 if high == 0 else float(np.exp(rng.uniform(np.log(low), np.log(high))))
    updates = ["newton" if k % 2 else "gradient" for k in range(len(shape.sizes))]
    return Problem(shape.loss, sites, reg, shape.weighting, updates, shape.intercept)


def _basis(rng, d, kappa):
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return np.sqrt(np.logspace(0, -rng.uniform(0, np.log10(kappa)), d))[:, None] * Q


def _response(shape, z, rng):
    if shape.loss == "logistic":
        return (2 * z + rng.logistic(size=len(z)) > 0).astype(float)
    if shape.loss == "poisson":
        return rng.poisson(np.exp(np.clip(z, -3, 3))).astype(float)
    noise = rng.standard_t(2, size=len(z)) if shape.loss == "huber" else rng.normal(size=len(z))
    return z + 0.3 * noise
