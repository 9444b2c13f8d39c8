"""What an algorithm is: two pure functions, the client functions that they call, and a name with parameters."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..clients.base import Client, Clients, Local
from ..curvature import Derived

Vec = Any
Array = Any


class State(NamedTuple):
    """What an algorithm carries from step to step. One that keeps more defines its own, with these first three fields."""

    x0: Vec
    local: Local
    residual: Array  # how far from solved, as far as the server can see: an estimate of ‖Σ∇fᵢ‖ before the step


class Spec(NamedTuple):
    """Identity for checkpoints, wire and reports."""

    name: str
    parameters: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.parameters.items() if value is not None)})"

    def digest(self) -> str:
        digest = hashlib.sha256(self.name.encode())
        for key, value in self.parameters.items():
            digest.update(f"{key} {jax.tree.map(np.shape, value)}".encode())  # a pair is not an array of two
            for leaf in jax.tree.leaves(value):
                digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()


class Algorithm(NamedTuple):
    """init(clients, x0) → state; step(clients, state) → state.

    Parameters are data: init puts them into the state, so that `step` and the client functions are the same functions for every
    value of them, and nothing is compiled twice.
    """

    init: Callable[[Clients, Vec], Any]
    step: Callable[[Clients, Any], Any]
    on_client: tuple[Callable[..., Any], ...]  # (start, *rounds): the only code a client will ever run, by name
    spec: Spec
    residual_is_gradient: bool = False  # state.residual is ‖Σ∇fᵢ‖ itself, not an estimate that may be far above it
    descends: bool = False  # F falls in every step, so that a larger gradient on the way is no sign of divergence
    bridges: bool = False  # still reaches x* where the last known reply of a missing client stands in for it
    warm: Callable[[Clients, Vec], Any] | None = None  # init where x0 solves a problem like this one; None: as any other start

    def __repr__(self) -> str:
        return str(self.spec)


def number(value: Any) -> Array:
    """A parameter as data: float64 whatever it was given as, so that 1, 1.0 and an array's entry run the same program."""
    return jnp.asarray(value, jnp.float64)


def nothing(me: Client) -> tuple[()]:
    """The first local state of a client that keeps nothing between rounds."""
    return ()


def _is_derived(node: Any) -> bool:
    return isinstance(node, Derived)


def durable_leaves(state: Any) -> list[np.ndarray]:
    """The arrays of a state that must outlive the process: all but what can be computed again."""
    leaves = jax.tree.leaves(state, is_leaf=_is_derived)
    return [np.asarray(leaf) for leaf in leaves if not _is_derived(leaf)]


def with_durable_leaves(state: Any, saved: list[np.ndarray]) -> Any:
    """`state` with its durable arrays replaced by the saved ones."""
    leaves, structure = jax.tree.flatten(state, is_leaf=_is_derived)
    rest = iter(saved)
    return jax.tree.unflatten(structure, [leaf if _is_derived(leaf) else jnp.asarray(next(rest)) for leaf in leaves])


def residual_of(n: int, mu: Array, disagreement: Array, stationarity: Array) -> Array:
    """From the means of squares. What a server has of them by secure sums of rounded changes may lie a little below zero."""
    return n * (jnp.sqrt(jnp.maximum(stationarity, 0.0)) + mu * jnp.sqrt(jnp.maximum(disagreement, 0.0)))
