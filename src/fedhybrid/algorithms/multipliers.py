"""The exact Method of Multipliers, which FedHybrid approximates: minimise the augmented Lagrangian to rounding, then move the multipliers.

    L̃(x̃, λ) = Σ fᵢ(xᵢ) + λᵢ·(x₀ − xᵢ) + ½μ‖x₀ − xᵢ‖²
    x̃⁺ = argmin L̃(x̃, λ)                                    over x₀ and every xᵢ together
    λᵢ⁺ = λᵢ + b·(x₀⁺ − xᵢ⁺)                               dual="gradient": the paper's U₁ = λ + b·∇g(λ)
    λᵢ⁺ = λᵢ + b·(μ(x₀⁺ − xᵢ⁺) + ∇²fᵢ(xᵢ⁺)(y − xᵢ⁺))       dual="newton":   the paper's U₂ = λ − b·(∇²g(λ))⁻¹∇g(λ), by its Lemma 2
           y = (Σ∇²fᵢ(xᵢ⁺))⁻¹ Σ∇²fᵢ(xᵢ⁺)xᵢ⁺

The joint minimum is found in rounds. For a given x₀ each client minimises over its own xᵢ, which leaves a convex function of x₀ alone,

    φ(x₀) = Σ min L̃ over xᵢ     ∇φ = Σ λᵢ + μ(x₀ − xᵢ)     ∇²φ = Σ μ(∇²fᵢ(xᵢ) + μI)⁻¹∇²fᵢ(xᵢ)

and the server takes Newton steps p on it, halved while φ does not fall by 10⁻⁴·t·pᵀ∇φ, until one would gain less than φ's rounding:
that step it takes as it is, and its error is the square of a step of √eps.

Cost of a step: as many rounds as the minimum needs (one near the end, two for quadratics), each d(d+1)/2 + d + 1 floats up a client and
d down; then, gradient: 1 round, 1 up, d down; newton: 2 rounds, d(d+1)/2 + d + 1 up in all, d down in each.
Converges to x*, whatever the data, for strongly convex F: gradient linearly for b < 2μ (∇g is 1/μ-Lipschitz; b = μ is the classical
choice); newton quadratically near x* with b = 1, and for quadratics in two steps.
X. Niu and E. Wei, "FedHybrid: A Hybrid Primal-Dual Algorithm Framework for Federated Optimization", arXiv:2106.01279, section 2, after
D. P. Bertsekas, "Constrained Optimization and Lagrange Multiplier Methods", 1982.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from .. import linalg
from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number
from .oracle import pack, unpack
from .subproblem import minimise

ARMIJO = 1e-4
MOST_ROUNDS = 100


class Local(NamedTuple):
    x: Vec
    lam: Vec
    mu: Array
    b: Array


def start(me: Client, x0: Vec, mu: Array, b: Array) -> Local:
    return Local(x0, jnp.zeros_like(x0), mu, b)


def envelope(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Array, Vec, Array]]:
    """This client's part of φ(x₀), its gradient and its Hessian."""
    _, lam, mu, _ = local
    x = _nearest(me, local, x0)
    H = me.f.hess(x)
    curvature = mu * linalg.solve(H + mu * jnp.eye(x.shape[0]), H)
    value = me.f.value(x) + lam @ (x0 - x) + 0.5 * mu * jnp.sum((x0 - x) ** 2)
    return local._replace(x=x), (value, lam + mu * (x0 - x), pack(curvature))


def ascend(me: Client, local: Local, x0: Vec) -> tuple[Local, Array]:
    """The gradient-type dual step."""
    x = _nearest(me, local, x0)
    return local._replace(x=x, lam=local.lam + local.b * (x0 - x)), jnp.sum((x0 - x) ** 2)


def curve(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Array, Array, Vec]]:
    """The Newton-type dual step without y, and what the server needs for it."""
    x = _nearest(me, local, x0)
    H = me.f.hess(x)
    lam = local.lam + local.b * local.mu * (x0 - x)
    return local._replace(x=x, lam=lam), (jnp.sum((x0 - x) ** 2), pack(H), H @ (x - x0))


def correct(me: Client, local: Local, y: Vec) -> tuple[Local, tuple[()]]:
    """The rest of it."""
    return local._replace(lam=local.lam + local.b * me.f.hvp(local.x, y - local.x)), ()


def _nearest(me: Client, local: Local, x0: Vec) -> Vec:
    return minimise(me.f, local.x, local.lam, local.mu, x0)


class Search(NamedTuple):
    """The joint minimum, on the way: φ, its gradient and Newton's step at x0; a step t·p is tried next."""

    local: Any
    x0: Vec
    phi: Array
    g: Vec
    p: Vec
    t: Array
    rounds: Array


def minimum(clients: Clients, local: Any, x0: Vec) -> tuple[Any, Vec]:
    """The server's part of argmin L̃(x̃, λ)."""

    def at(local: Any, x0: Vec, rounds: Array) -> Search:
        local, (phi, g, M) = clients.mean(envelope, local, x0)
        p = -_solve(M, g)
        return Search(local, x0, phi, g, p, jnp.ones_like(phi), rounds)

    def noise(search: Search) -> Array:
        return 10.0 * jnp.finfo(x0.dtype).eps * jnp.abs(search.phi)

    def unfinished(search: Search) -> Array:
        return (-(search.g @ search.p) > noise(search)) & (search.rounds < MOST_ROUNDS)

    def advance(search: Search) -> Search:
        trial = at(search.local, search.x0 + search.t * search.p, search.rounds + 1)
        falls = trial.phi <= search.phi + ARMIJO * search.t * (search.g @ search.p) + noise(search)
        shorter = search._replace(local=(), t=0.5 * search.t, rounds=trial.rounds)
        chosen = jax.tree.map(lambda yes, no: jnp.where(falls, yes, no), trial._replace(local=()), shorter)
        return chosen._replace(local=trial.local)

    search = clients.while_loop(unfinished, advance, at(local, x0, jnp.zeros((), jnp.int64)))
    return search.local, search.x0 + search.p


def _solve(packed: Array, v: Vec) -> Vec:
    return linalg.solve(unpack(packed, v.shape[0]), v)


class MultipliersState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array
    mu: Array


def gradient_step(clients: Clients, state: MultipliersState) -> MultipliersState:
    local, x0 = minimum(clients, state.local, state.x0)
    local, disagreement = clients.mean(ascend, local, x0)
    return MultipliersState(x0, local, clients.n * state.mu * jnp.sqrt(disagreement), state.mu)


def newton_step(clients: Clients, state: MultipliersState) -> MultipliersState:
    local, x0 = minimum(clients, state.local, state.x0)
    local, (disagreement, H, Hx) = clients.mean(curve, local, x0)
    local, _ = clients.mean(correct, local, x0 + _solve(H, Hx))
    return MultipliersState(x0, local, clients.n * state.mu * jnp.sqrt(disagreement), state.mu)


@refuse_unknown_keywords
def multipliers(*, mu: Any, b: Any, dual: Literal["gradient", "newton"] = "gradient") -> Algorithm:
    """The Method of Multipliers with penalty mu, dual step size b, and gradient-type or Newton-type dual steps."""
    mu, b = positive("multipliers: mu", mu), positive("multipliers: b", b)
    if dual not in ("gradient", "newton"):
        raise InvalidConfig(f"multipliers: dual must be 'gradient' or 'newton', not {dual!r}.")
    step, rounds = (gradient_step, (ascend,)) if dual == "gradient" else (newton_step, (curve, correct))

    def init(clients: Clients, x0: Vec) -> MultipliersState:
        return MultipliersState(x0, clients.start(start, x0, number(mu), number(b)), number(jnp.inf), number(mu))

    return Algorithm(init, step, (start, envelope, *rounds), Spec("multipliers", {"mu": mu, "b": b, "dual": dual}))
