"""What a server may ask of any client in one round, whatever the method: client functions that keep nothing."""

from typing import Any

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


def pack(H: Array) -> Array:
    """The upper triangle: a symmetric matrix is sent as d(d+1)/2 floats."""
    return H[jnp.triu_indices(H.shape[0])]


def unpack(packed: Array, d: int) -> Array:
    upper = jnp.zeros((d, d), packed.dtype).at[jnp.triu_indices(d)].set(packed)
    return upper + jnp.triu(upper, 1).T
