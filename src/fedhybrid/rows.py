"""A client's rows: a table that is multiplied from both sides, stored dense or sparse. What a loss does with it is not known here.

Sparse rows are padded to one width of (column, value) pairs; a pad is column 0 with value 0. A Gram matrix is formed from blocks of
rows: weighting all of them at once would double the memory, and scattering into d² places is serial on a CPU.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from .pytrees import pytree

Array = Any
BLOCK = 1024  # rows of a Gram block: large enough for a fast matrix product, small beside any table worth splitting


def _sum_over_blocks(n_rows: int, term: Any) -> Array:
    """Σ term(start, size) over blocks of rows; `size` is static, `start` may be traced."""
    whole, rest = divmod(n_rows, BLOCK)
    if whole <= 1:
        return term(0, n_rows)
    total = lax.fori_loop(1, whole, lambda k, sofar: sofar + term(k * BLOCK, BLOCK), term(0, BLOCK))
    return total if rest == 0 else total + term(whole * BLOCK, rest)


@pytree("A")
@dataclass(frozen=True)
class Dense:
    """Rows as an array A of shape (N, p)."""

    A: Array

    def dot(self, x: Array) -> Array:
        return self.A @ x

    def tdot(self, r: Array) -> Array:
        return (r.T @ self.A).T  # A.T @ r would make XLA copy the transposed table

    def norms(self) -> Array:
        """‖aⱼ‖ of every row."""
        return jnp.sqrt(jnp.einsum("jc,jc->j", self.A, self.A))

    def squared(self) -> "Dense":
        return Dense(self.A**2)

    def gram(self, w: Array) -> Array:
        """Σⱼ wⱼ aⱼ aⱼᵀ."""

        def term(start: Array, size: int) -> Array:
            block = lax.dynamic_slice_in_dim(self.A, start, size)
            return (block * lax.dynamic_slice_in_dim(w, start, size)[:, None]).T @ block

        return _sum_over_blocks(self.A.shape[0], term)


@pytree("column", "value", static=("p",))
@dataclass(frozen=True)
class Sparse:
    """Rows as (column, value) pairs, both of shape (N, width), in a table of p columns."""

    column: Array
    value: Array
    p: int

    def dot(self, x: Array) -> Array:
        if x.ndim == 1:
            return jnp.sum(self.value * x[self.column], axis=1)
        return jnp.einsum("jk,jkc->jc", self.value, x[self.column])

    def tdot(self, r: Array) -> Array:
        if r.ndim == 1:
            return jnp.zeros(self.p, r.dtype).at[self.column].add(self.value * r[:, None])
        return jnp.zeros((self.p, r.shape[1]), r.dtype).at[self.column].add(self.value[:, :, None] * r[:, None, :])

    def norms(self) -> Array:
        return jnp.sqrt(jnp.einsum("jk,jk->j", self.value, self.value))

    def squared(self) -> "Sparse":
        return replace(self, value=self.value**2)

    def gram(self, w: Array) -> Array:
        def term(start: Array, size: int) -> Array:
            column = lax.dynamic_slice_in_dim(self.column, start, size)
            value = lax.dynamic_slice_in_dim(self.value, start, size)
            row = jnp.arange(size, dtype=column.dtype)[:, None]
            block = Dense(jnp.zeros((size, self.p), value.dtype).at[row, column].add(value))
            return block.gram(lax.dynamic_slice_in_dim(w, start, size))

        return _sum_over_blocks(self.value.shape[0], term)
