"""D, a client's choice of work, as a value: what it divides its primal step by and multiplies its dual step with.

    gradient    D = I
    diagonal    D = diag(∇²f(x)) + μI     as cheap as a gradient; for columns of very different scales
    newton      D = ∇²f(x) + μI     by Cholesky
    newton-cg   D = ∇²f(x) + μI     matrix-free, by Hessian–vector products, for large d

A loss of the caller's own may bend down: there D is shifted by the least eigenvalue, so that it is positive definite.

`curvature.prepare(f, mu)` does once what does not depend on x; `curvature(f, x, mu, ready)` gives D at x.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg

from . import linalg
from .problem import GLM, Custom, Problem, Quadratic
from .pytrees import pytree

Array = Any


class Derived(NamedTuple):
    """Something kept in a state that can be computed again from the rest: a checkpoint leaves it out."""

    value: Any


class Identity(NamedTuple):
    def solve(self, v: Array) -> Array:
        return v

    def mul(self, v: Array) -> Array:
        return v


class Factored(NamedTuple):
    H: Array
    mu: Array
    D: Array

    def solve(self, v: Array) -> Array:
        return linalg.solve(self.D, v)

    def mul(self, v: Array) -> Array:
        return self.H @ v + self.mu * v


class Inverted(NamedTuple):
    H: Array
    mu: Array
    inverse: Array

    def solve(self, v: Array) -> Array:
        return self.inverse @ v

    def mul(self, v: Array) -> Array:
        return self.H @ v + self.mu * v


class Entries(NamedTuple):
    D: Array

    def solve(self, v: Array) -> Array:
        return v / self.D

    def mul(self, v: Array) -> Array:
        return self.D * v


class MatrixFree(NamedTuple):
    f: Problem
    x: Array
    mu: Array

    def solve(self, v: Array) -> Array:
        return cg(self.mul, v, tol=1e-13, maxiter=10 * v.shape[0])[0]

    def mul(self, v: Array) -> Array:
        return self.f.hvp(self.x, v) + self.mu * v


@pytree()
@dataclass(frozen=True)
class Gradient:
    name = "gradient"

    def prepare(self, f: Problem, mu: Array) -> Derived:
        return Derived(())

    def __call__(self, f: Problem, x: Array, mu: Array, ready: Derived) -> Identity:
        return Identity()


@pytree()
@dataclass(frozen=True)
class Diagonal:
    name = "diagonal"

    def prepare(self, f: Problem, mu: Array) -> Derived:
        return Derived(())

    def __call__(self, f: Problem, x: Array, mu: Array, ready: Derived) -> Entries:
        return Entries(jnp.maximum(f.hess_diag(x), 0.0) + mu)


@pytree()
@dataclass(frozen=True)
class Newton:
    name = "newton"

    def prepare(self, f: Problem, mu: Array) -> Derived:
        if not isinstance(f, Quadratic):
            return Derived(())
        # D is constant: its inverse, from the Cholesky factor, makes a step one product instead of two triangular solves.
        # An error in it costs speed only: at the fixed point the vector it multiplies is zero.
        return Derived(linalg.inverse(_shifted(f.H, mu)))

    def __call__(self, f: Problem, x: Array, mu: Array, ready: Derived) -> Inverted | Factored:
        H = f.hess(x)
        if isinstance(f, Quadratic):
            return Inverted(H, mu, ready.value)
        if may_bend_down(f):
            H = _shifted(H, jnp.maximum(0.0, -2.0 * linalg.eigvalsh(H)[0]))
        return Factored(H, mu, _shifted(H, mu))


@pytree()
@dataclass(frozen=True)
class NewtonCG:
    name = "newton-cg"

    def prepare(self, f: Problem, mu: Array) -> Derived:
        return Derived(())

    def __call__(self, f: Problem, x: Array, mu: Array, ready: Derived) -> MatrixFree:
        return MatrixFree(f, x, mu)


def may_bend_down(f: Problem) -> bool:
    return isinstance(f, Custom) or (isinstance(f, GLM) and f.loss.own)


def _shifted(H: Array, mu: Array) -> Array:
    return H + mu * jnp.eye(H.shape[0], dtype=H.dtype)


Curvature = Gradient | Diagonal | Newton | NewtonCG
UPDATES: dict[str, Curvature] = {choice.name: choice for choice in (Gradient(), Diagonal(), Newton(), NewtonCG())}
