"""One client's fᵢ: value, gradient, Hessian, and products with it. Each is a pytree, so that n of them stack.

    GLM          Σⱼ wⱼ·loss(aⱼ·x + offsetⱼ, yⱼ) + ½ Σ_c reg_c x_c²       on rows, dense or sparse
    Multinomial  the same for softmax: a table of p × K coefficients, kept flat
    Quadratic    ½xᵀHx − cᵀx + constant                                  squared loss by its sufficient statistics: O(d²) for any N
    Custom       Σⱼ wⱼ·value(x, aⱼ, yⱼ) + ½ Σ_c reg_c x_c²               by autodiff

The weights w are already normalised and `reg` is already this client's share (fleet.py), so that the fᵢ just add up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .linalg import eigvalsh
from .losses import Loss
from .pytrees import pytree
from .rows import Dense, Sparse

Array = Any


class Problem(Protocol):
    def value(self, x: Array) -> Array: ...
    def grad(self, x: Array) -> Array: ...
    def hess(self, x: Array) -> Array: ...
    def hvp(self, x: Array, v: Array) -> Array: ...
    def hess_diag(self, x: Array) -> Array: ...
    def form(self, x: Array, S: Array) -> Array:
        """S·∇²f(x)·Sᵀ: the curvature along the rows of S and between them."""
        ...

    def bends_down(self, x: Array) -> Array:
        """Whether some row's loss is not convex at x. Only a loss of the caller's own can be."""
        ...

    def terms(self, x: Array) -> Array:
        """How large the terms are that add up to grad(x), their own sensitivity to rounding included: in units of eps its error."""
        ...


def _form_by_products(f: Problem, x: Array, S: Array) -> Array:
    return S @ jax.vmap(f.hvp, in_axes=(None, 0))(x, S).T


@pytree("rows", "y", "w", "offset", "reg", static=("loss",))
@dataclass(frozen=True)
class GLM:
    rows: Dense | Sparse
    y: Array
    w: Array
    offset: Array
    reg: Array
    loss: Loss

    def predict(self, x: Array) -> Array:
        return self.rows.dot(x) + self.offset

    def value(self, x: Array) -> Array:
        return jnp.sum(self.w * self.loss.value(self.predict(x), self.y)) + 0.5 * jnp.sum(self.reg * x**2)

    def grad(self, x: Array) -> Array:
        return self.rows.tdot(self.w * self.loss.d1(self.predict(x), self.y)) + self.reg * x

    def hess(self, x: Array) -> Array:
        return self.rows.gram(self.w * self.loss.d2(self.predict(x), self.y)) + jnp.diag(self.reg)

    def hvp(self, x: Array, v: Array) -> Array:
        d2 = self.loss.d2(self.predict(x), self.y)
        return self.rows.tdot(self.w * d2 * self.rows.dot(v)) + self.reg * v

    def hess_diag(self, x: Array) -> Array:
        return self.rows.squared().tdot(self.w * self.loss.d2(self.predict(x), self.y)) + self.reg

    def form(self, x: Array, S: Array) -> Array:
        Z = self.rows.dot(S.T)  # the predictions along each row of S: no second pass over the table
        return Z.T @ ((self.w * self.loss.d2(self.predict(x), self.y))[:, None] * Z) + (S * self.reg[None]) @ S.T

    def bends_down(self, x: Array) -> Array:
        return jnp.any((self.loss.d2(self.predict(x), self.y) < 0.0) & (self.w > 0.0))

    def terms(self, x: Array) -> Array:
        z, norms = self.predict(x), self.rows.norms()
        sensitivity = self.loss.d2(z, self.y) * (1.0 + norms * jnp.linalg.norm(x) + jnp.abs(self.offset))
        return jnp.sum(self.w * norms * (jnp.abs(self.loss.d1(z, self.y)) + sensitivity)) + jnp.linalg.norm(self.reg * x)

    def recedes(self, v: Array) -> tuple[Array, Array]:
        """Whether no row's loss rises along v, and whether some row's falls for ever (rows of weight zero do not count)."""
        never_rises, falls = self.loss.recedes(self._slope(v), self.y)
        return jnp.all(never_rises | (self.w == 0.0)), jnp.any(falls & (self.w > 0.0))

    def _slope(self, v: Array) -> Array:
        return self.rows.dot(v)


@pytree("rows", "y", "w", "offset", "reg", static=("loss", "p", "K", "pinned"))
@dataclass(frozen=True)
class Multinomial(GLM):
    """Softmax. x is the table of p × K coefficients, row by row, without the pinned entries.

    In a column without penalty only differences between classes matter: there class 0 is the reference, pinned at 0.
    """

    p: int
    K: int
    pinned: tuple[int, ...]

    @property
    def free(self) -> np.ndarray:
        return free_entries(self.p, self.K, self.pinned)

    def table(self, x: Array) -> Array:
        return jnp.zeros(self.p * self.K, x.dtype).at[self.free].set(x).reshape(self.p, self.K)

    def flat(self, table: Array) -> Array:
        return table.reshape(-1)[self.free]

    def _slope(self, v: Array) -> Array:
        return self.rows.dot(self.table(v))

    def predict(self, x: Array) -> Array:
        return self._slope(x) + self.offset[:, None]

    def grad(self, x: Array) -> Array:
        r = self.w[:, None] * self.loss.d1(self.predict(x), self.y)
        return self.flat(self.rows.tdot(r)) + self.reg * x

    def hess(self, x: Array) -> Array:
        W = self.w[:, None, None] * self.loss.d2(self.predict(x), self.y)
        pairs = lax.map(self.rows.gram, W.reshape(W.shape[0], -1).T).reshape(self.K, self.K, self.p, self.p)
        H = pairs.transpose(2, 0, 3, 1).reshape(self.p * self.K, self.p * self.K)
        return H[jnp.ix_(self.free, self.free)] + jnp.diag(self.reg)

    def hvp(self, x: Array, v: Array) -> Array:
        d2 = self.loss.d2(self.predict(x), self.y)
        s = jnp.einsum("jkl,jl->jk", d2, self._slope(v))
        return self.flat(self.rows.tdot(self.w[:, None] * s)) + self.reg * v

    def hess_diag(self, x: Array) -> Array:
        d2 = jnp.diagonal(self.loss.d2(self.predict(x), self.y), axis1=1, axis2=2)
        return self.flat(self.rows.squared().tdot(self.w[:, None] * d2)) + self.reg

    def form(self, x: Array, S: Array) -> Array:
        return _form_by_products(self, x, S)

    def bends_down(self, x: Array) -> Array:
        return jnp.zeros((), bool)

    def terms(self, x: Array) -> Array:
        norms = self.rows.norms()
        slopes = jnp.linalg.norm(self.loss.d1(self.predict(x), self.y), axis=1)
        sensitivity = 1.0 + norms * jnp.linalg.norm(x) + jnp.abs(self.offset)
        return jnp.sum(self.w * norms * (slopes + sensitivity)) + jnp.linalg.norm(self.reg * x)


def free_entries(p: int, K: int, pinned: tuple[int, ...]) -> np.ndarray:
    """Positions in the p × K table that x holds: all but class 0 of the pinned columns."""
    free = np.ones((p, K), bool)
    free[list(pinned), 0] = False
    return np.flatnonzero(free)


@pytree("H", "c", "constant")
@dataclass(frozen=True)
class Quadratic:
    H: Array
    c: Array
    constant: Array

    def value(self, x: Array) -> Array:
        return x @ (0.5 * (self.H @ x) - self.c) + self.constant

    def grad(self, x: Array) -> Array:
        return self.H @ x - self.c

    def hess(self, x: Array) -> Array:
        return self.H

    def hvp(self, x: Array, v: Array) -> Array:
        return self.H @ v

    def hess_diag(self, x: Array) -> Array:
        return jnp.diag(self.H)

    def form(self, x: Array, S: Array) -> Array:
        return S @ self.H @ S.T

    def bends_down(self, x: Array) -> Array:
        return jnp.zeros((), bool)

    def terms(self, x: Array) -> Array:
        # the rounding of H and c themselves counts too: Σ w‖a‖|y| ≤ √(Σ w‖a‖²)·√(Σ w y²), and both sums are at hand
        trace = jnp.trace(self.H)
        return trace * jnp.linalg.norm(x) + jnp.sqrt(trace) * jnp.sqrt(2.0 * self.constant)


@pytree("A", "y", "w", "reg", static=("row_value",))
@dataclass(frozen=True)
class Custom:
    A: Array
    y: Array
    w: Array
    reg: Array
    row_value: Callable[[Array, Array, Array], Array]

    def value(self, x: Array) -> Array:
        rows = jax.vmap(self.row_value, in_axes=(None, 0, 0))(x, self.A, self.y)
        return jnp.sum(self.w * rows) + 0.5 * jnp.sum(self.reg * x**2)

    def grad(self, x: Array) -> Array:
        return jax.grad(self.value)(x)

    def hess(self, x: Array) -> Array:
        return jax.hessian(self.value)(x)

    def hvp(self, x: Array, v: Array) -> Array:
        return jax.jvp(self.grad, (x,), (v,))[1]

    def hess_diag(self, x: Array) -> Array:
        return jnp.diag(self.hess(x))

    def form(self, x: Array, S: Array) -> Array:
        return _form_by_products(self, x, S)

    def bends_down(self, x: Array) -> Array:
        w = eigvalsh(self.hess(x) - jnp.diag(self.reg))
        return w[0] < -w.shape[0] * jnp.finfo(w.dtype).eps * jnp.max(jnp.abs(w))

    def terms(self, x: Array) -> Array:
        each = jax.vmap(jax.grad(self.row_value), in_axes=(None, 0, 0))(x, self.A, self.y)
        sensitivity = jnp.trace(jnp.abs(self.hess(x))) * (1.0 + jnp.linalg.norm(x))  # of the whole, as the rows' own is not known
        return jnp.sum(self.w * jnp.linalg.norm(each, axis=1)) + sensitivity
