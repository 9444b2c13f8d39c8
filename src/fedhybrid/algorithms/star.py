"""The star graph that a server and its clients form, for methods made for networks: the server is the hub, node 0, with f₀ ≡ 0.

    W:  w₀ᵢ = wᵢ₀ = 1/(n+1),  wᵢᵢ = n/(n+1),  w₀₀ = 1/(n+1),  else 0          for n leaves
    leaf i:  (a(I − W)x)ᵢ = bond·(xᵢ − x₀)                                    bond = a/(n+1)
    hub:     (a(I − W)x)₀ = n·bond·(x₀ − mean(x))                             mean: over the leaves

These are the Metropolis weights, 1/(1 + the larger of two neighbours' degrees): symmetric, rows and columns add up to 1, and no node needs
to know more than its neighbours' degrees. The eigenvalues of W are 1, n/(n+1) and 0, so that one exchange brings the leaves only 1/(n+1)
nearer to one another: that is the price of a method that treats its server as one node of many.
The hub needs the leaves' mean, a leaf the hub's value: both at once are one round.

A Newton step on this graph, −H⁻¹g with H = C + a(I − W), C block-diagonal (C₀ = c₀·I), splits H = D − B and cuts a Neumann series:

    D = C + 2a(I − diag W),  B = a(I − 2·diag W + W),  H⁻¹ ≈ Σ_{k≤K} (D⁻¹B)ᵏD⁻¹
    t⁽⁰⁾ = −D⁻¹g,  t⁽ᵏ⁺¹⁾ = D⁻¹B·t⁽ᵏ⁾,  x⁺ = x + Σ_{k≤K} t⁽ᵏ⁾
    leaf i:  Dᵢ = Cᵢ + 2·bond·I,          (Bt)ᵢ = bond·(tᵢ + t₀)
    hub:     D₀ = (c₀ + 2n·bond)·I,       (Bt)₀ = n·bond·(t₀ + mean(t))

A. Mokhtari, Q. Ling and A. Ribeiro, "Network Newton Distributed Optimization Methods", 2017.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import linalg
from ..clients.base import Client, Clients
from ..curvature import Derived
from ..status import InvalidConfig
from .base import Array, Vec


def first_term(C: Array, bond: Array, g: Vec) -> tuple[Vec, Derived]:
    """A leaf's t⁽⁰⁾, and its factored D for the terms that follow."""
    L = linalg.cholesky(C + 2.0 * bond * jnp.eye(g.shape[0]))
    return -linalg.factored_solve(L, g), Derived(L)


def next_term(me: Client, local: Any, t0: Vec) -> tuple[Any, Vec]:
    """A leaf's t⁽ᵏ⁺¹⁾, for a local state with x, t, D and bond; it sends t⁽ᵏ⁾."""
    t_next = linalg.factored_solve(local.D.value, local.bond * (local.t + t0))
    return local._replace(x=local.x + t_next, t=t_next), local.t


def further_terms(clients: Clients, local: Any, x0: Vec, t0: Vec, c0: Any, bond: Array, K: int) -> tuple[Any, Vec]:
    """The terms 1 … K, one round each, added to the leaves' x and to the hub's. Gives the local states and x₀⁺."""
    pull = clients.n * bond
    for _ in range(K):
        local, t = clients.mean(next_term, local, t0)
        t0 = pull * (t0 + t) / (c0 + 2.0 * pull)
        x0 = x0 + t0
    return local, x0


def terms(name: str, K: Any) -> int:
    if isinstance(K, bool) or not isinstance(K, int | np.integer) or K < 0:
        raise InvalidConfig(f"{name} must be a whole number, 0 or more, not {K!r}.")
    return int(K)
