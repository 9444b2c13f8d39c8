"""What a response is drawn from: the loss that fits it, and what statistics need besides. NumPy, row by row.

eta     the linear predictions, (N, m): one column, or for classes one for each but the first
−log p  losses(eta, y) + constants(y), at dispersion 1
slopes, bends   first and second derivatives of the losses in eta
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, gammaln, logsumexp, softmax, xlogy

from .. import losses
from ..losses import Loss
from ..status import InvalidConfig

Array = Any


class Family(NamedTuple):
    name: str
    loss: Loss
    link: str
    estimates_dispersion: bool  # then t and F take the place of z and χ²
    ratio: str  # what exp(coefficient) is; "" where it means nothing
    mean: Callable[[Array], Array]
    losses: Callable[[Array, Array], Array]
    slopes: Callable[[Array, Array], Array]
    bends: Callable[[Array, Array], Array]
    deviances: Callable[[Array, Array], Array]
    squares: Callable[[Array, Array], Array]  # Pearson's: (y − mean)² / variance
    constants: Callable[[Array], Array]
    links: Callable[[Array], Array]  # from the mean of all targets to the eta of a model with an intercept alone
    has_events: bool = False
    classes: int = 0

    @property
    def m(self) -> int:
        return max(1, self.classes - 1)

    def targets(self, y: Array) -> Array:
        """(N, m): the responses as means are; of classes, 1 for a row's own."""
        return np.eye(self.classes)[y.astype(int)][:, 1:] if self.classes else y[:, None]

    def __repr__(self) -> str:
        return f"<Family: {self.name}, {self.link} link>"


def _column(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """A function of one prediction, for predictions in a matrix of one column."""
    return lambda eta, y: function(eta[:, 0], y)


def _slope(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda eta, y: function(eta[:, 0], y)[:, None]


def _bend(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda eta, y: function(eta[:, 0], y)[:, None, None]


def _none(y: Array) -> Array:
    return np.zeros(len(y))


gaussian = Family(
    "gaussian",
    losses.squared,
    "identity",
    estimates_dispersion=True,
    ratio="",
    mean=lambda eta: eta,
    losses=_column(lambda z, y: 0.5 * (z - y) ** 2),
    slopes=_slope(lambda z, y: z - y),
    bends=_bend(lambda z, y: np.ones_like(z)),
    deviances=_column(lambda z, y: (z - y) ** 2),
    squares=_column(lambda z, y: (z - y) ** 2),
    constants=_none,
    links=lambda mean: mean,
)


def _logistic_slope(z: Array, y: Array) -> Array:
    return (1.0 - 2.0 * y) * expit((1.0 - 2.0 * y) * z)


binomial = Family(
    "binomial",
    losses.logistic,
    "logit",
    estimates_dispersion=False,
    ratio="odds ratio",
    mean=expit,
    losses=_column(lambda z, y: np.logaddexp(0.0, (1.0 - 2.0 * y) * z)),
    slopes=_slope(_logistic_slope),
    bends=_bend(lambda z, y: expit(z) * expit(-z)),
    deviances=_column(lambda z, y: 2.0 * np.logaddexp(0.0, (1.0 - 2.0 * y) * z)),
    squares=_column(lambda z, y: np.exp((1.0 - 2.0 * y) * z)),  # (y − p)²/(p(1 − p)), written so that nothing cancels
    constants=_none,
    links=lambda mean: np.log(mean / (1.0 - mean)),
    has_events=True,
)

poisson = Family(
    "poisson",
    losses.poisson,
    "log",
    estimates_dispersion=False,
    ratio="rate ratio",
    mean=np.exp,
    losses=_column(lambda z, y: np.exp(z) - y * z),
    slopes=_slope(lambda z, y: np.exp(z) - y),
    bends=_bend(lambda z, y: np.exp(z)),
    deviances=_column(lambda z, y: 2.0 * (xlogy(y, y) - y * z - y + np.exp(z))),
    squares=_column(lambda z, y: (np.exp(z) - y) ** 2 * np.exp(-z)),
    constants=lambda y: gammaln(y + 1.0),
    links=np.log,
    has_events=True,
)


def multinomial(classes: int) -> Family:
    """Labels 0 … classes − 1; class 0 is the reference."""

    def full(eta: Array) -> Array:
        return np.concatenate([np.zeros((len(eta), 1)), eta], axis=1)

    def own(y: Array) -> Array:
        return np.eye(classes)[y.astype(int)][:, 1:]

    def value(eta: Array, y: Array) -> Array:
        lead = full(eta)
        return logsumexp(lead - lead[np.arange(len(lead)), y.astype(int), None], axis=1)

    def shares(eta: Array) -> Array:
        return softmax(full(eta), axis=1)[:, 1:]

    def bends(eta: Array, y: Array) -> Array:
        p = shares(eta)
        return p[:, :, None] * np.eye(classes - 1) - p[:, :, None] * p[:, None, :]

    def squares(eta: Array, y: Array) -> Array:
        """Σ over classes of (1 or 0 − p)²/p, which is 1/p − 1 of a row's own class."""
        return np.expm1(value(eta, y))

    return Family(
        "multinomial",
        losses.softmax(classes),
        "logit",
        estimates_dispersion=False,
        ratio="odds ratio",
        mean=lambda eta: softmax(full(eta), axis=1),
        losses=value,
        slopes=lambda eta, y: shares(eta) - own(y),
        bends=bends,
        deviances=lambda eta, y: 2.0 * value(eta, y),
        squares=squares,
        constants=_none,
        links=lambda mean: np.log(mean / (1.0 - mean.sum())),
        classes=classes,
    )


FAMILIES = {"gaussian": gaussian, "binomial": binomial, "poisson": poisson}
NAMES = (*FAMILIES, "multinomial")


def family_of(name: Any, classes: int = 0) -> Family:
    """By name. Of a multinomial one the number of classes may not be known yet, and is then taken for two."""
    if not isinstance(name, str) or name not in NAMES:
        raise InvalidConfig(f"family must be one of {', '.join(NAMES)}, not {name!r}.")
    return FAMILIES[name] if name in FAMILIES else multinomial(max(2, classes))
