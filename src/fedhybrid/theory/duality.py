"""The augmented Lagrangian, its dual, and Lemmas 1 and 2.

    L̃(x₀, x, λ) = Σ fᵢ(xᵢ) + Σ λᵢ·(x₀ − xᵢ) + ½μ Σ‖x₀ − xᵢ‖²
    L(x, λ)     = L̃ at x₀ = mean(x) − mean(λ)/μ, its minimiser over x₀
    g(λ)        = min L̃ over x₀ and x, attained at x̃*(λ) = (x₀*, x*)

    Lemma 1   ∇g(λ) = Wx̃*(λ)        ∇²g(λ) = −W(∇²L̃(x̃*(λ)))⁻¹Wᵀ                    Wx̃ = (x₀ − xᵢ)ᵢ
    Lemma 2   WᵀΔλ̆ = ∇²L̃(1⊗y − x̃)   y = (Σ∇²fᵢ(xᵢ))⁻¹ Σ∇²fᵢ(xᵢ)xᵢ                  where −W(∇²L̃(x̃))⁻¹WᵀΔλ̆ = Wx̃

x and lam are (n, d) arrays, in site order. A problem is a Fleet, or a list of the core's Problems of one type and shape. Everything
is dense in nd, for small ones. The inner minimum is exact to rounding: one solve for quadratics, Newton's method otherwise.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import linalg
from ..arguments import positive
from ..fleet import Fleet, Group
from ..numerics import scope
from ..problem import Problem, Quadratic
from ..status import InvalidConfig

Array = Any
Problems = Fleet | Sequence[Problem]
SETTLED = 1e-9  # the gradient has fallen to this part of its first value …
POLISH = 2  # … so that after these further steps only rounding is left
MOST_NEWTON_STEPS = 100


class Dual(NamedTuple):
    """g(λ), and where the minimum is: the server's x0 and the clients' x."""

    value: float
    x0: np.ndarray
    x: np.ndarray


def lagrangian(problems: Problems, x: Any, lam: Any, mu: float, x0: Any = None) -> float:
    """L(x, λ); with x0 given, L̃(x₀, x, λ)."""
    f = stacked(problems)
    x, lam, mu = points(f, x), points(f, lam), positive("theory: mu", mu)
    x0 = x.mean(axis=0) - lam.mean(axis=0) / mu if x0 is None else np.asarray(x0, float)
    apart = x0 - x
    with scope():
        value = float(_value(f, jnp.asarray(x)))
    return value + float(np.sum(lam * apart) + 0.5 * mu * np.sum(apart**2))


def dual(problems: Problems, lam: Any, mu: float) -> Dual:
    """g(λ) and x̃*(λ)."""
    f = stacked(problems)
    lam, mu = points(f, lam), positive("theory: mu", mu)
    with scope():
        x, settled = (np.asarray(part) for part in _inner(f, jnp.asarray(lam), jnp.asarray(mu)))
    if not settled:
        raise InvalidConfig("the inner problem has no minimiser that Newton's method finds: Σfᵢ must be strongly convex; set reg > 0.")
    return Dual(lagrangian(problems, x, lam, mu), x.mean(axis=0) - lam.mean(axis=0) / mu, x)


def dual_gradient(problems: Problems, lam: Any, mu: float) -> np.ndarray:
    """∇g(λ) = Wx̃*(λ), (n, d)."""
    best = dual(problems, lam, mu)
    return best.x0 - best.x


def dual_hessian(problems: Problems, lam: Any, mu: float) -> np.ndarray:
    """∇²g(λ), (nd, nd), clients' blocks in order; −1/μ I ⪯ ∇²g ⪯ −1/(μ + ℓ) I."""
    f = stacked(problems)
    H = _hessians_at(f, dual(problems, lam, mu).x)
    n, d = H.shape[:2]
    W = np.kron(np.column_stack([np.ones(n), -np.eye(n)]), np.eye(d))
    full = mu * W.T @ W
    for i in range(n):
        block = slice((i + 1) * d, (i + 2) * d)
        full[block, block] += H[i]
    return -W @ np.linalg.solve(full, W.T)


def hessian_weighted_average(problems: Problems, x: Any) -> np.ndarray:
    """Lemma 2's y, (d,)."""
    f = stacked(problems)
    x = points(f, x)
    H = _hessians_at(f, x)
    return np.linalg.solve(H.sum(axis=0), np.einsum("icd,id->c", H, x))


def dual_newton_step(problems: Problems, x: Any, lam: Any, mu: float, x0: Any = None) -> np.ndarray:
    """Lemma 2's Δλ̆, (n, d): the clients' rows of WᵀΔλ̆ = ∇²L̃(1⊗y − x̃), which are Δλ̆ᵢ = ∇²fᵢ(xᵢ)(xᵢ − y) + μ(xᵢ − x₀).

    x0 is mean(x) − mean(λ)/μ where omitted. The paper's dual Newton update is λ − Δλ̆.
    """
    f = stacked(problems)
    x, lam, mu = points(f, x), points(f, lam), positive("theory: mu", mu)
    x0 = x.mean(axis=0) - lam.mean(axis=0) / mu if x0 is None else np.asarray(x0, float)
    y = hessian_weighted_average(problems, x)
    return np.einsum("icd,id->ic", _hessians_at(f, x), x - y) + mu * (x - x0)


# ── the clients as one stacked problem, in site order ─────────────────────────────────────────────────────────────────────────────


def stacked(problems: Problems) -> Any:
    """All clients' problems as one, with a leading axis; refused where curvature may bend without bound."""
    if isinstance(problems, Fleet):
        rows = max(1, *(len(site.y) for site in problems.sites))
        f = problems.stack(Group(tuple(range(problems.n)), rows)).f
    else:
        try:
            f = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *problems)
        except (TypeError, ValueError):
            raise InvalidConfig("give a Fleet, or a list of problems of one type and shape.") from None
    bend = 0.0 if isinstance(f, Quadratic) else getattr(getattr(f, "loss", None), "bend", None)
    if bend is None:
        raise InvalidConfig(
            "this loss has no known bound on how fast its curvature changes (|φ‴| ≤ c·φ″), which exact inner minima and gaps rest on: "
            "Huber's is not twice continuously differentiable, as Assumption 1 asks, and of a custom loss nothing is known."
        )
    return f


def points(f: Any, x: Any) -> np.ndarray:
    """One point per client, (n, d)."""
    own = np.asarray(f.c if isinstance(f, Quadratic) else f.reg)
    x = np.asarray(x, float)
    if x.shape != own.shape or not np.all(np.isfinite(x)):
        raise InvalidConfig(f"x and lam must be finite and have one row per client, shape {own.shape}, not {x.shape}.")
    return x


@jax.jit
def _value(f: Any, x: Array) -> Array:
    return jnp.sum(jax.vmap(lambda f, x: f.value(x))(f, x))


def gradients(f: Any, x: Array) -> Array:
    return jax.vmap(lambda f, x: f.grad(x))(f, x)


@jax.jit
def hessians(f: Any, x: Array) -> Array:
    return jax.vmap(lambda f, x: f.hess(x))(f, x)


def _hessians_at(f: Any, x: np.ndarray) -> np.ndarray:
    with scope():
        return np.asarray(hessians(f, jnp.asarray(x)))


def bending(f: Any, x: Array, p: Array) -> Array:
    """c·max‖Δz‖ over one client's rows: e to this power bounds how its Hessians at x and x + p differ."""
    if isinstance(f, Quadratic):
        return jnp.zeros(())
    moved = f.predict(x + p) - f.predict(x)
    size = jnp.abs(moved) if moved.ndim == 1 else jnp.linalg.norm(moved, axis=1)
    return f.loss.bend * jnp.max(size)


def inner_gradient(f: Any, x: Array, lam: Array, mu: Array) -> Array:
    """∇ₓL(x, λ), (n, d)."""
    return gradients(f, x) - _centred(lam) + mu * _centred(x)


def _centred(x: Array) -> Array:
    return x - jnp.mean(x, axis=0, keepdims=True)


@jax.jit
def _inner(f: Any, lam: Array, mu: Array) -> tuple[Array, Array]:
    return inner_minimum(f, lam, mu)


def inner_minimum(f: Any, lam: Array, mu: Array) -> tuple[Array, Array]:
    """x*(λ), and whether Newton's method settled."""
    n, d = lam.shape
    identity = jnp.eye(n, dtype=lam.dtype)
    coupling = jnp.einsum("ij,cd->icjd", identity - 1.0 / n, jnp.eye(d, dtype=lam.dtype))

    def hessian(x: Array) -> Array:
        return (jnp.einsum("ij,icd->icjd", identity, hessians(f, x)) + mu * coupling).reshape(n * d, n * d)

    def bent(x: Array, p: Array) -> Array:
        return jnp.max(jax.vmap(bending)(f, x, p))

    return _newton(functools.partial(inner_gradient, f, lam=lam, mu=mu), hessian, bent, jnp.zeros_like(lam))


@jax.jit
def optimum(f: Any, zero: Array) -> tuple[Array, Array]:
    """The minimiser of Σfᵢ, and whether Newton's method settled."""

    def each(x: Array) -> Array:
        return jax.vmap(lambda f: f.grad(x))(f)

    def hessian(x: Array) -> Array:
        return jnp.sum(jax.vmap(lambda f: f.hess(x))(f), axis=0)

    def bent(x: Array, p: Array) -> Array:
        return jnp.max(jax.vmap(lambda f: bending(f, x, p))(f))

    return _newton(lambda x: jnp.sum(each(x), axis=0), hessian, bent, zero)


def _newton(gradient: Callable, hessian: Callable, bent: Callable, x: Array) -> tuple[Array, Array]:
    """Newton's method, damped where curvature bends: the step log(1 + s)/s with s = c·max‖Δz‖ descends for |φ‴| ≤ c·φ″."""

    def move(x: Array) -> Array:
        p = -linalg.solve(hessian(x), gradient(x).reshape(-1)).reshape(x.shape)
        s = bent(x, p)
        return x + jnp.where(s > 0.0, jnp.log1p(s) / jnp.where(s > 0.0, s, 1.0), 1.0) * p

    goal = SETTLED * jnp.linalg.norm(gradient(x))

    def once(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, left, count = carry
        x = move(x)
        return x, jnp.where(jnp.linalg.norm(gradient(x)) <= goal, left - 1, left), count + 1

    def more(carry: tuple[Array, Array, Array]) -> Array:
        return (carry[1] > 0) & (carry[2] < MOST_NEWTON_STEPS)

    x, left, _ = lax.while_loop(more, once, (x, jnp.asarray(1 + POLISH, jnp.int64), jnp.zeros((), jnp.int64)))
    return x, left == 0
