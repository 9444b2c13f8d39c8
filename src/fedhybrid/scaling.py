"""Federated standardisation: the same problem in coordinates that suit it, z for x = T·z, found from sums over rows and nothing else.

    two rounds of sums     Σv, Σv·a   and, about the mean m₀ that they give,   Σv(a − m₀), Σv(a − m₀)²      v: the rows' weights
    m = m₀ + Σv(a − m₀)/Σv                  the mean; 0 where columns stay where they are
    s² = Σv(a − m)² + reg, to a power of 2  so that squared loss has a Hessian with a diagonal of about 1, whatever the units
    rows (a − m)/s,  penalty reg·s⁻²        x = z/s,  and x's intercept is z's less m·(z/s)

It is a change of variables and nothing more: the objective, its optimum and every prediction are what they were. Dividing by powers of 2 is
exact, and a difference a − m is rounded once, so that no digit of the data is lost; sums are about the mean, so that none is cancelled.
Columns are moved only where a free intercept can take up the shift, and only where every site's rows are dense: sparse ones stay sparse.
In softmax regression the intercept of class 0 is pinned at 0, and the shift is told relative to it.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from .fleet import Fleet, expect_fleet
from .losses import RowLoss
from .problem import free_entries
from .result import Result, Trace
from .status import InvalidConfig
from .validation import Site

Array = np.ndarray
LARGEST_EXPONENT = 500  # of a scale: its square is still a float
CONSTANT = 8.0  # a deviation of so many units of rounding of the mean is no deviation
CONSTANT_COLUMNS = "constant at all sites, so that the intercept alone can tell them"
UNITS = (
    "Tolerance, gradient_norm, rounding, m_hat and kappa_hat are those of the standardised problem; x, error_bound and error_bounds "
    "(one per coordinate) are in the units of the data."
)


class Moments(NamedTuple):
    """What one site sends: sums over its rows, d numbers each."""

    weight: float
    first: Array  # Σv(a − m)
    second: Array  # Σv(a − m)²


def moments(site: Site, v: Array, about: Array | None) -> Moments:
    """Of one site's rows with weights v, about a point that all sites were told; None: about 0, where zeros need not be looked at."""
    if about is None:
        square = site.A.multiply(site.A) if scipy.sparse.issparse(site.A) else site.A**2
        return Moments(math.fsum(v), np.asarray(site.A.T @ v), np.asarray(square.T @ v))
    off = site.A - about
    return Moments(math.fsum(v), v @ off, v @ off**2)


def _total(parts: list[Moments]) -> Moments:
    """The sum over sites, the same in every order."""
    sums = (np.array([math.fsum(column) for column in np.stack(rows).T]) for rows in ([p.first for p in parts], [p.second for p in parts]))
    return Moments(math.fsum(part.weight for part in parts), *sums)


@dataclass(frozen=True, eq=False)
class Scaling:
    """x = T·z. `centre` and `scale` have one entry per column, that of the intercept (0 and 1) included."""

    centre: Array
    scale: Array
    constant: tuple[int, ...]  # columns that have one value everywhere and leave the intercept alone with it
    K: int  # classes of softmax; else 0
    pinned: tuple[int, ...]

    @functools.cached_property
    def _free(self) -> Array:
        return free_entries(len(self.scale), self.K, self.pinned) if self.K else np.arange(len(self.scale))

    @property
    def d(self) -> int:
        return len(self._free)

    @property
    def centred(self) -> bool:
        return bool(np.any(self.centre))

    def _change(self, values: Any, change: Callable[[Array], Array]) -> Array:
        """Apply a change of p × K tables to arrays whose last axis is flat."""
        values = np.asarray(values, float)
        if values.shape[-1:] != (self.d,):
            raise InvalidConfig(f"scaling: an array of shape {values.shape}; its last axis must have length {self.d}.")
        p, K = len(self.scale), max(1, self.K)
        table = np.zeros((*values.shape[:-1], p * K))
        table[..., self._free] = values
        return change(table.reshape(*values.shape[:-1], p, K)).reshape(*values.shape[:-1], p * K)[..., self._free]

    def _relative(self, table: Array) -> Array:
        return table - table[..., :1] if self.K else table

    def _shift(self, table: Array) -> Array:
        """Σ m·x over columns, relative to class 0: what the intercept has to take up."""
        return np.einsum("c,...ck->...k", self.centre, self._relative(table))

    def original(self, z: Any) -> Array:
        """x = T·z; of several z at once, along the last axis."""

        def change(table: Array) -> Array:
            x = table / self.scale[:, None]
            if self.centred:
                x[..., -1, :] -= self._shift(x)
            return x

        return self._change(z, change)

    def scaled(self, x: Any) -> Array:
        """z = T⁻¹·x; of several x at once, along the last axis."""

        def change(table: Array) -> Array:
            z = table * self.scale[:, None]
            if self.centred:
                z[..., -1, :] += self._shift(table)
            return z

        return self._change(x, change)

    def _transposed_inverse(self, slopes: Array) -> Array:
        """T⁻ᵀ·g: what was a gradient in z, as one in x."""

        def change(table: Array) -> Array:
            x = table * self.scale[:, None]
            if self.centred:
                last = table[..., -1:, :]
                x[..., :-1, :] += self.centre[:-1, None] * last
                if self.K:
                    x[..., :-1, 0] -= self.centre[:-1] * np.sum(last[..., 0, :], axis=-1, keepdims=True)
            return x

        return self._change(slopes, change)

    @functools.cached_property
    def matrix(self) -> Array:
        """T, d × d; made when it is asked for."""
        return self.original(np.eye(self.d)).T

    def covariance(self, C: Any) -> Array:
        """T·C·Tᵀ: the covariance of x, where C is that of z."""
        return self.original(self.original(C).T)

    @functools.cached_property
    def sizes(self) -> Array:
        """‖T[c, :]‖ for every coordinate c: how far x_c can move while z moves by 1."""
        own = np.repeat(1.0 / self.scale, max(1, self.K))[self._free]
        if not self.centred:
            return own
        taken = (self.centre / self.scale) ** 2
        if self.K:
            taken = np.where(np.isin(np.arange(len(taken)), self.pinned), taken, 2.0 * taken)  # z of the class, and that of class 0
        last = self._free // max(1, self.K) == len(self.scale) - 1
        return np.where(last, math.sqrt(1.0 + float(np.sum(taken))), own)

    def bounds(self, bound: float) -> Array:
        """‖z − z*‖ ≤ bound, as a bound on every |x_c − x*_c|."""
        return self.sizes * bound

    def bound(self, bound: float) -> float:
        """‖z − z*‖ ≤ bound, as a bound on ‖x − x*‖: T is a diagonal and the rows of the intercepts."""
        last = self._free // max(1, self.K) == len(self.scale) - 1
        diagonal, rows = self.sizes[~last], self.sizes[last]
        return bound * (math.hypot(float(diagonal.max(initial=0.0)), *rows) if self.centred else float(self.sizes.max()))

    def result(self, result: Result) -> Result:
        """A result of the standardised problem, told in x. Status and rounds are as they were; bounds are x's, one per coordinate."""
        trace = result.trace
        points = None if trace.x0 is None else self.original(trace.x0)
        columns = {name: getattr(trace, name) for name in ("residual", "rounds", "floats_up", "floats_down", "flops", "seconds")}
        return replace(
            result,
            x=self.original(result.x),
            error_bound=self.bound(result.error_bound),
            error_bounds=self.bounds(result.error_bound),
            direction=None if result.direction is None else self.original(result.direction),
            x_clients=None if result.x_clients is None else self.original(result.x_clients),
            lam_clients=None if result.lam_clients is None else self._transposed_inverse(result.lam_clients),
            trace=Trace(start=self.original(trace.start), x0=points, **columns),
            notes=(*result.notes, UNITS),
        )

    def __repr__(self) -> str:
        return f"<Scaling: d={self.d}, {'centred and scaled' if self.centred else 'scaled'}>"


def standardised(fleet: Fleet) -> tuple[Fleet, Scaling]:
    """The fleet in standardised coordinates, and the way back: `scaling.original(z)` or, for a whole result, `scaling.result(result)`."""
    expect_fleet("standardised", fleet)
    if isinstance(fleet.loss, RowLoss):
        raise InvalidConfig("standardised: a custom loss of the whole x has no linear prediction whose columns could be scaled.")
    weights = [fleet.row_weights(i) for i in range(fleet.n)]
    reg = fleet.column_penalty
    moves = fleet.intercept and reg[-1] == 0 and not any(scipy.sparse.issparse(site.A) for site in fleet.sites)
    found = _total([moments(site, v, None) for site, v in zip(fleet.sites, weights, strict=True)])
    centre, constant = np.zeros(fleet.n_features), np.zeros(fleet.n_features, bool)
    if moves:
        about = found.first / found.weight
        found = _total([moments(site, v, about) for site, v in zip(fleet.sites, weights, strict=True)])
        centre = about + found.first / found.weight
        spread = np.maximum(found.second - found.first**2 / found.weight, 0.0)
        constant = spread <= found.weight * (CONSTANT * np.finfo(float).eps * centre) ** 2
    else:
        spread = found.second
    curvature = np.where(constant, 0.0, spread) + reg[: fleet.n_features]
    scale = _power_of_two(np.sqrt(np.where(curvature > 0, curvature, 1.0)))
    notes = (_about_constant(constant),) if constant.any() else ()
    sites = [site._replace(A=_changed(site.A, centre if moves else None, scale)) for site in fleet.sites]
    if fleet.intercept:
        centre, scale = np.append(centre, 0.0), np.append(scale, 1.0)
    penalty = np.where(reg > 0, np.maximum(reg / scale**2, np.finfo(float).tiny), 0.0)
    scaling = Scaling(centre, scale, tuple(int(c) for c in np.flatnonzero(constant)), fleet.K, fleet.pinned)
    return fleet.in_coordinates(tuple(sites), penalty, notes), scaling


def _power_of_two(size: Array) -> Array:
    return np.exp2(np.clip(np.rint(np.log2(size)), -LARGEST_EXPONENT, LARGEST_EXPONENT))


def _changed(A: Any, centre: Array | None, scale: Array) -> Any:
    if scipy.sparse.issparse(A):
        return scipy.sparse.csr_array((A.data / scale[A.indices], A.indices, A.indptr), shape=A.shape)
    return (A if centre is None else A - centre) / scale


def _about_constant(constant: Array) -> str:
    columns = ", ".join(str(c) for c in np.flatnonzero(constant))
    return f"{CONSTANT_COLUMNS}: column {columns} (from 0)."
