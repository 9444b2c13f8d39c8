"""What a server may ask of any client in one round, whatever the method: client functions that keep nothing, or only the point asked at."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..clients.base import Client
from .base import Array, Vec


def gradient(me: Client, local: Any, x0: Vec) -> tuple[Any, Vec]:
    return local, me.f.grad(x0)


def value(me: Client, local: Any, x: Vec) -> tuple[Any, Array]:
    return local, me.f.value(x)


def value_and_gradient(me: Client, local: Any, x: Vec) -> tuple[Any, tuple[Array, Vec]]:
    return local, (me.f.value(x), me.f.grad(x))


def hessian_vector(me: Client, local: Any, x0: Vec, v: Vec) -> tuple[Any, Vec]:
    return local, me.f.hvp(x0, v)


def hessian(me: Client, local: Any, x0: Vec) -> tuple[Any, Array]:
    return local, pack(me.f.hess(x0))


def expansion(me: Client, local: Any, x0: Vec) -> tuple[Any, tuple[Array, Vec, Array]]:
    """Value, gradient and packed Hessian."""
    return local, (me.f.value(x0), me.f.grad(x0), pack(me.f.hess(x0)))


class Kept(NamedTuple):
    """What a client keeps between the rounds of one step, so that no later round sends x₀ again; and parameters, which cost nothing."""

    x0: Vec
    g: Vec
    parameters: tuple


def keep(me: Client, x0: Vec, *parameters: Array) -> Kept:
    return Kept(x0, jnp.zeros_like(x0), parameters)


def gradient_kept(me: Client, local: Kept, x0: Vec) -> tuple[Kept, Vec]:
    g = me.f.grad(x0)
    return local._replace(x0=x0, g=g), g


def hessian_vector_kept(me: Client, local: Kept, v: Vec) -> tuple[Kept, Vec]:
    return local, me.f.hvp(local.x0, v)


def hessian_kept(me: Client, local: Kept) -> tuple[Kept, Array]:
    return local, pack(me.f.hess(local.x0))


def pack(H: Array) -> Array:
    """The upper triangle: a symmetric matrix is sent as d(d+1)/2 floats."""
    return H[jnp.triu_indices(H.shape[0])]


def unpack(packed: Array, d: int) -> Array:
    upper = jnp.zeros((d, d), packed.dtype).at[jnp.triu_indices(d)].set(packed)
    return upper + jnp.triu(upper, 1).T
