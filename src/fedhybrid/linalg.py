"""Factorisations, safe to run side by side.

On a CPU, jaxlib's LAPACK calls split a batch of matrices over the very threads that they run on, and wait for them: as many such calls at
once as there are threads wait for ever (jaxlib 0.10; two groups of clients on two cores are enough). A call for one matrix waits for
nobody. So on a CPU, and only there, a batch is a loop; what else a client computes stays batched.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.scipy.linalg import cho_solve, solve_triangular

Array = Any


def _one_at_a_time(fn: Callable[..., Any]) -> Callable[..., Any]:
    looped = sequential_vmap(fn)

    def call(*matrices: Array) -> Any:
        return (looped if jax.default_backend() == "cpu" else fn)(*matrices)

    return call


def _inverse(H: Array) -> Array:
    inverse_factor = solve_triangular(jnp.linalg.cholesky(H), jnp.eye(H.shape[0], dtype=H.dtype), lower=True)
    return inverse_factor.T @ inverse_factor


# H is positive definite; where it is not, they give NaN
cholesky = _one_at_a_time(lambda H: jnp.linalg.cholesky(H))  # noqa: PLW0108 (its options are no matrices)
factored_solve = _one_at_a_time(lambda L, v: cho_solve((L, True), v))
solve = _one_at_a_time(lambda H, v: cho_solve((jnp.linalg.cholesky(H), True), v))
inverse = _one_at_a_time(_inverse)
# H is symmetric; eigenvalues in ascending order
eigh = _one_at_a_time(lambda H: tuple(jnp.linalg.eigh(H)))
eigvalsh = _one_at_a_time(lambda H: jnp.linalg.eigvalsh(H))  # noqa: PLW0108 (as for cholesky)
