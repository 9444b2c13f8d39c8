"""Losses of one row: value, first and second derivative in the prediction z. Everything else is derived from these three.

    squared   ½(z − y)²              logistic  log(1 + eᶻ) − y·z,  y ∈ {0, 1}
    poisson   eᶻ − y·z,  y ≥ 0       huber     ½r² if |r| ≤ δ else δ(|r| − ½δ),  r = z − y
    softmax   log Σₖ exp zₖ − z_y,   y ∈ {0, …, K−1}: z has one entry per class

All are stable for predictions of ±1e4 (Poisson's eᶻ then overflows to inf, its true value being larger than any float; never to NaN).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.scipy.special import expit

from .arguments import positive, whole
from .status import InvalidConfig, refuse_unknown_keywords

Array = Any


def _never_recedes(slope: Array, y: Array) -> tuple[Array, Array]:
    return slope == 0.0, jnp.zeros(y.shape, bool)


@dataclass(frozen=True, eq=False)  # eq=False: compared and hashed by identity, so that a loss can be static under jit
class Loss:
    """One row's loss as a function of its prediction z and response y.

    `ell` bounds d2 from above (None: unbounded). `bend` is the constant c of |φ‴| ≤ c·φ″, which turns a gradient norm into an error
    bound (0: quadratic; None: none known). `recedes(s, y)` says for a direction along which z changes by s whether the loss never
    rises, and whether it falls for ever: the test for a problem without a minimiser.
    """

    name: str
    value: Callable[[Array, Array], Array]
    d1: Callable[[Array, Array], Array]
    d2: Callable[[Array, Array], Array]
    response: Literal["real", "binary", "count", "class"] = "real"
    ell: float | None = None
    bend: float | None = None
    recedes: Callable[[Array, Array], tuple[Array, Array]] = _never_recedes
    given: Callable[[Array, Array], Array] | None = None  # the caller's own function of one row, where there is one
    can_recede: bool = False  # whether some data leave it without a minimiser, and `recedes` can show it

    @property
    def own(self) -> bool:
        """Whether the caller wrote it, and with it promised that it is convex."""
        return self.given is not None

    def __repr__(self) -> str:
        return f"fedhybrid.{self.name}"


def _logistic_recedes(slope: Array, y: Array) -> tuple[Array, Array]:
    margin = (2.0 * y - 1.0) * slope
    return margin >= 0.0, margin > 0.0


def _poisson_recedes(slope: Array, y: Array) -> tuple[Array, Array]:
    return jnp.where(y > 0.0, slope == 0.0, slope <= 0.0), (y == 0.0) & (slope < 0.0)


squared = Loss(
    "squared",
    value=lambda z, y: 0.5 * (z - y) ** 2,
    d1=lambda z, y: z - y,
    d2=lambda z, y: jnp.ones_like(z),
    ell=1.0,
    bend=0.0,
)

logistic = Loss(
    "logistic",  # written in (1−2y)z, so that nothing cancels on either side
    value=lambda z, y: jnp.logaddexp(0.0, (1.0 - 2.0 * y) * z),
    d1=lambda z, y: (1.0 - 2.0 * y) * expit((1.0 - 2.0 * y) * z),
    d2=lambda z, y: expit(z) * expit(-z),
    response="binary",
    ell=0.25,
    bend=1.0,
    recedes=_logistic_recedes,
    can_recede=True,
)

poisson = Loss(
    "poisson",
    value=lambda z, y: jnp.exp(z) - y * z,
    d1=lambda z, y: jnp.exp(z) - y,
    d2=lambda z, y: jnp.exp(z),
    response="count",
    bend=1.0,
    recedes=_poisson_recedes,
    can_recede=True,
)


@dataclass(frozen=True, eq=False, repr=False)
class Huber(Loss):
    """Huber's loss. `fh.huber` has δ = 1; `fh.huber(delta=1.35)` is the same loss with another."""

    @refuse_unknown_keywords
    def __call__(self, delta: float) -> "Huber":
        return _huber(positive("huber: delta", delta))


@functools.cache
def _huber(delta: float) -> Huber:
    def value(z: Array, y: Array) -> Array:
        size = jnp.abs(z - y)
        inner = jnp.minimum(size, delta)
        return inner * (size - 0.5 * inner)

    return Huber(
        "huber" if delta == 1.0 else f"huber(delta={delta!r})",
        value=value,
        d1=lambda z, y: jnp.clip(z - y, -delta, delta),
        d2=lambda z, y: (jnp.abs(z - y) <= delta).astype(z.dtype),
        ell=1.0,
    )


huber = _huber(1.0)


def _one_hot(z: Array, y: Array) -> Array:
    return jax.nn.one_hot(y.astype(jnp.int32), z.shape[-1], dtype=z.dtype)


def _softmax_value(z: Array, y: Array) -> Array:
    """log Σ exp(zₖ − z_y). The label's own term is 1 and goes into log1p: a well classified row keeps its small loss in full."""
    own = _one_hot(z, y)
    lead = z - jnp.sum(z * own, axis=-1, keepdims=True)
    top = jnp.max(lead, axis=-1, keepdims=True)  # ≥ 0, the label's own
    others = jnp.sum((1.0 - own) * jnp.exp(lead - top), axis=-1)
    top = top[..., 0]
    return top + jnp.log1p(others + jnp.expm1(-top))


def _softmax_d2(z: Array, y: Array) -> Array:
    p = jax.nn.softmax(z)
    return jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]


def _softmax_recedes(slope: Array, y: Array) -> tuple[Array, Array]:
    lead = jnp.sum(slope * _one_hot(slope, y), axis=-1)
    return lead >= jnp.max(slope, axis=-1), lead > jnp.min(slope, axis=-1)


@dataclass(frozen=True, eq=False, repr=False)
class Softmax(Loss):
    """`fh.softmax` counts the classes in the data; `fh.softmax(classes=3)` is told, and some may have no row."""

    classes: int | None = None

    @refuse_unknown_keywords
    def __call__(self, classes: int) -> "Softmax":
        if whole("softmax: classes", classes) < 2:
            raise InvalidConfig("softmax: classes must be at least 2; with one there is nothing to tell apart.")
        return _softmax(classes)


@functools.cache
def _softmax(classes: int | None) -> Softmax:
    return Softmax(
        "softmax" if classes is None else f"softmax(classes={classes})",
        value=_softmax_value,
        d1=lambda z, y: jax.nn.softmax(z) - _one_hot(z, y),
        d2=_softmax_d2,
        response="class",
        ell=0.5,
        bend=math.sqrt(2.0),  # the third moment of K values is at most their range, and the range at most √2·norm, times their variance
        recedes=_softmax_recedes,
        can_recede=True,
        classes=classes,
    )


softmax = _softmax(None)


@functools.cache
def from_value(value: Callable[[Array, Array], Array]) -> Loss:
    """A loss from one JAX function (z, y) ↦ number, convex and twice differentiable in z; derivatives by autodiff."""
    d1 = jax.grad(value)
    d2 = jax.grad(d1)

    def rowwise(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
        return jax.vmap(function)

    name = getattr(value, "__name__", type(value).__name__)
    return Loss(f"custom:{name}", rowwise(value), rowwise(d1), rowwise(d2), given=value)


@dataclass(frozen=True, eq=False)
class RowLoss:
    """A loss that is not a function of one linear prediction: see `custom`."""

    value: Callable[[Array, Array, Array], Array]
    d: int
    ell: None = None
    bend: None = None
    response: str = "real"
    can_recede: bool = False

    @property
    def own(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return f"custom:{getattr(self.value, '__name__', type(self.value).__name__)}"


@refuse_unknown_keywords
def custom(value: Callable[[Array, Array, Array], Array], d: int) -> RowLoss:
    """Any convex, twice differentiable JAX function (x, a, y) ↦ number of the whole x and one row; d is the length of x.

    Gradients, Hessians and Hessian–vector products come by autodiff. It is called on rows of zeros too (padding, of weight zero):
    it must be finite there.
    """
    if not callable(value):
        raise InvalidConfig("custom: the first argument must be a function (x, a, y) of x and one row.")
    return RowLoss(value, whole("custom: d, the length of x,", d))
