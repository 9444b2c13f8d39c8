"""FedNL: Newton's method whose Hessians are learned, each client sending only a compressed part of what it has learned since.

Client i, with its own estimate Hᵢ of ∇²fᵢ:

    Sᵢ = C(∇²fᵢ(x₀) − Hᵢ),   lᵢ = ‖∇²fᵢ(x₀) − Hᵢ‖_F        sends ∇fᵢ(x₀), C's few numbers for Sᵢ, and lᵢ
    Hᵢ⁺ = Hᵢ + α·Sᵢ
Server:
    x₀⁺ = x₀ − (H + l·I)⁻¹ mean(∇fᵢ(x₀)),  l = mean(lᵢ)      the paper's option 2: H + l·I ⪰ mean(∇²fᵢ(x₀))
    H⁺  = H + α·mean(Sᵢ)                                     so that H = mean(Hᵢ) throughout

A symmetric matrix is its upper triangle, N = d(d+1)/2 entries. The compressor C, and what it sends:

    identity   everything                                                                            N floats
    topk       the k entries of largest magnitude: k values and k positions, each counted as one     2k
    randk      k entries drawn at random, the same for all clients in a round: k values; the         k
               positions both sides know, from a common seed and the number of rounds
    rank1      w·uuᵀ, w the eigenvalue of largest magnitude and u its eigenvector; of several u      d + 1
               (an empty client's ∇²f is a multiple of I) one nearest to a coordinate axis, the first

randk is not scaled up by N/k to be unbiased: α here is α·N/k there, so that α = 1 suits all four.
The first Hᵢ are ∇²fᵢ(x₀⁰), which costs one round more in the first step, N up and nothing down (first="hessian", the paper's practice);
or zero, which costs none and begins as gradient descent (first="zero").

Cost of a step: 1 round; up d + 1 floats a client and what C sends, down d. The fixed point is x* whatever the data, and near x* the rate
does not depend on the conditioning; for a quadratic F every step descends, from anywhere. Otherwise it is a local method: nothing
guards a step from far away, where it can go astray as Newton's method without a line search does.
M. Safaryan, R. Islamov, X. Qian and P. Richtárik, "FedNL: Making Newton-Type Methods Applicable to Federated Learning", 2021,
Algorithm 1.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import linalg
from ..arguments import positive, whole
from ..clients.base import Client, Clients, Packed
from ..pytrees import pytree
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .oracle import pack, unpack

TIE = 1e-8  # eigenvalues so close are equal

# ── compressors: of the upper triangle M of a d × d matrix, with a random key that both sides have ────────────────────────────────


@pytree()
@dataclass(frozen=True)
class Identity:
    def encode(self, M: Array, d: int, key: Array) -> Any:
        return M

    def decode(self, mean: Array, d: int, key: Array) -> Array:
        """The mean of what was sent, as an upper triangle."""
        return mean


@dataclass(frozen=True)
class Scatter:
    """k entries at k positions → N entries."""

    N: int

    def __call__(self, payload: tuple[Array, Array]) -> Array:
        values, positions = payload
        return jnp.zeros(self.N, values.dtype).at[positions].set(values)


@pytree(static=("k",))
@dataclass(frozen=True)
class TopK(Identity):
    k: int

    def encode(self, M: Array, d: int, key: Array) -> Packed:
        _, positions = lax.top_k(jnp.abs(M), min(self.k, M.size))
        return Packed((M[positions], positions), Scatter(M.size))


@pytree(static=("k",))
@dataclass(frozen=True)
class RandK:
    k: int

    def encode(self, M: Array, d: int, key: Array) -> Array:
        return M[self._positions(d, key)]

    def decode(self, mean: Array, d: int, key: Array) -> Array:
        return Scatter(d * (d + 1) // 2)((mean, self._positions(d, key)))

    def _positions(self, d: int, key: Array) -> Array:
        N = d * (d + 1) // 2
        return jax.random.permutation(key, N)[: min(self.k, N)]


def outer(payload: tuple[Array, Vec]) -> Array:
    """w·uuᵀ"""
    w, u = payload
    return pack(w * jnp.outer(u, u))


@pytree()
@dataclass(frozen=True)
class Rank1(Identity):
    def encode(self, M: Array, d: int, key: Array) -> Packed:
        w, U = linalg.eigh(unpack(M, d))
        largest = (1.0 - TIE) * jnp.max(jnp.abs(w))
        tied = jnp.where(w[-1] >= largest, w >= largest, w <= -largest)
        # Equal eigenvalues leave u open, and LAPACK's choice is chance: project the coordinate axis that is nearest to their space on it.
        space = (U * tied.astype(U.dtype)[None, :]) @ U.T
        lengths = jnp.diag(space)
        axis = jnp.argmax(lengths >= (1.0 - TIE) * jnp.max(lengths))
        return Packed((w[jnp.argmax(tied)], space[axis] / jnp.sqrt(lengths[axis])), outer)


Compressor = Identity | TopK | RandK | Rank1

# ── the method ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Local(NamedTuple):
    H: Array  # upper triangle
    key: Array
    alpha: Array
    compressor: Compressor


def from_zero(me: Client, x0: Vec, key: Array, alpha: Array, compressor: Compressor) -> Local:
    return Local(jnp.zeros_like(pack(jnp.outer(x0, x0))), key, alpha, compressor)


def from_hessian(me: Client, x0: Vec, key: Array, alpha: Array, compressor: Compressor) -> Local:
    return Local(pack(me.f.hess(x0)), key, alpha, compressor)


def tell(me: Client, local: Local) -> tuple[Local, Array]:
    return local, local.H


def learn(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Vec, Any, Array]]:
    H, key, alpha, C = local
    d = x0.shape[0]
    difference = pack(me.f.hess(x0)) - H
    sent = C.encode(difference, d, key)
    S = C.decode(sent.decode(sent.payload) if isinstance(sent, Packed) else sent, d, key)
    local_next = local._replace(H=H + alpha * S, key=next_key(key))
    return local_next, (me.f.grad(x0), sent, jnp.linalg.norm(unpack(difference, d)))


def next_key(key: Array) -> Array:
    return jax.random.fold_in(key, 1)


class FednlState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    H: Array
    told: Array  # whether the server knows H
    key: Array
    alpha: Array
    compressor: Compressor


def step(clients: Clients, state: FednlState) -> FednlState:
    d, x0, key, alpha, C = clients.d, state.x0, state.key, state.alpha, state.compressor
    local, H = clients.cond(state.told, lambda known: known, lambda known: clients.mean(tell, known[0]), (state.local, state.H))
    local, (g, S, distance) = clients.mean(learn, local, x0)
    x0_next = x0 - linalg.solve(unpack(H, d) + distance * jnp.eye(d), g)
    H_next = H + alpha * C.decode(S, d, key)
    return FednlState(x0_next, local, clients.n * jnp.linalg.norm(g), H_next, jnp.ones((), bool), next_key(key), alpha, C)


@refuse_unknown_keywords
def fednl(
    *,
    compressor: Literal["identity", "topk", "randk", "rank1"] = "rank1",
    k: int | None = None,
    alpha: Any = 1.0,
    first: Literal["hessian", "zero"] = "hessian",
    seed: int = 1,
) -> Algorithm:
    """FedNL. k is the number of entries that topk and randk send, of the d(d+1)/2 there are; alpha is the learning rate of the Hessians."""
    alpha, seed = positive("fednl: alpha", alpha), whole("fednl: seed", seed)
    chosen = _compressor(compressor, k)
    if first not in ("hessian", "zero"):
        raise InvalidConfig(f"fednl: first must be 'hessian' or 'zero', not {first!r}.")
    start = from_hessian if first == "hessian" else from_zero

    def init(clients: Clients, x0: Vec) -> FednlState:
        key = jax.random.PRNGKey(seed)
        local = clients.start(start, x0, key, number(alpha), chosen)
        H = jnp.zeros(clients.d * (clients.d + 1) // 2)
        return FednlState(x0, local, number(jnp.inf), H, jnp.asarray(first == "zero"), key, number(alpha), chosen)

    parameters = {"compressor": compressor, "k": k, "alpha": alpha, "first": first, "seed": seed}
    return Algorithm(init, step, (start, tell, learn), Spec("fednl", parameters), residual_is_gradient=True)


def _compressor(name: str, k: int | None) -> Compressor:
    if name in ("topk", "randk"):
        if k is None:
            raise InvalidConfig(f"fednl: compressor={name!r} needs k, the number of entries of the Hessian to send.")
        k = whole("fednl: k", k)
        return TopK(k) if name == "topk" else RandK(k)
    if name not in ("identity", "rank1"):
        raise InvalidConfig(f"fednl: compressor must be 'identity', 'topk', 'randk' or 'rank1', not {name!r}.")
    if k is not None:
        raise InvalidConfig(f"fednl: compressor={name!r} takes no k.")
    return Identity() if name == "identity" else Rank1()
