"""Distributed Newton on the star graph: Newton's method on the dual of the consensus problem.

    max_λ  Σ min_x (fᵢ(x) − λᵢᵀx)   where Σλᵢ = 0           the λᵢ are the paper's dual variables times the graph's Laplacian
    xᵢ  = argmin_x fᵢ(x) − λᵢᵀx,   Hᵢ = ∇²fᵢ(xᵢ)             the dual's gradient is −x, its Hessian −diag(Hᵢ⁻¹)
    x₀  = (ΣHᵢ)⁻¹ Σ(Hᵢxᵢ − λᵢ)                              where all would agree if each fᵢ were its quadratic model at xᵢ
    λᵢ⁺ = λᵢ + s·Hᵢ(x₀ − xᵢ)                                Newton's direction on the dual, for any graph

The paper finds this direction by iterating on systems with the graph's Laplacian. On a star one exchange solves them: all that they have
to give is x₀, and the hub has the sums. A hub with f₀ ≡ 0 has the dual value −∞ except at λ₀ = 0: so it has no multiplier of its own, and
its Laplacian is the star's with the hub eliminated, I − 11ᵀ/n.
The start is λᵢ = ∇fᵢ(x₀), xᵢ = x₀ for the x₀ that is given, not the paper's λᵢ = 0: the first x₀⁺ is then Newton's point for F, and a good
x₀ helps. There Σλᵢ ≠ 0; the term −λᵢ in x₀ makes up for it, and for rounding later: this is Newton's method from an infeasible start.

Cost of a step: 1 round; up d(d+1)/2 + d floats a client (Hᵢ and Hᵢxᵢ − λᵢ), down d. Needs strongly convex fᵢ: reg > 0 in every coordinate.
Converges to x* for s small enough; quadratically at the end with s = 1, which on quadratics takes one step. Where a model says little of
its fᵢ a little further on (Huber's loss, non-IID data), s = 1 can go round in circles. Fixed point: xᵢ = x₀ = x*, λᵢ = ∇fᵢ(x*).
The residual is the gradient at x₀ of those models, ‖ΣHᵢ(x₀ − x₀⁺)‖.
R. Tutunov, H. Bou-Ammar and A. Jadbabaie, "Distributed Newton Method for Large-Scale Consensus Optimization", 2019; infeasible start:
S. Boyd and L. Vandenberghe, "Convex Optimization", 2004, section 10.3.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import linalg
from ..arguments import positive
from ..clients.base import Client, Clients
from ..status import refuse_unknown_keywords
from .base import Algorithm, Array, Spec, State, Vec, number
from .oracle import pack, unpack
from .subproblem import minimise


class Local(NamedTuple):
    x: Vec
    lam: Vec
    s: Array


def start(me: Client, x0: Vec, s: Array) -> Local:
    return Local(x0, me.f.grad(x0), s)


def update(me: Client, local: Local, x0: Vec) -> tuple[Local, tuple[Array, Vec]]:
    x, lam, s = local
    lam_next = lam + s * me.f.hvp(x, x0 - x)
    x_next = minimise(me.f, x, lam_next, 0.0, x0)
    H = me.f.hess(x_next)
    return Local(x_next, lam_next, s), (pack(H), H @ x_next - lam_next)


def step(clients: Clients, state: State) -> State:
    local, (packed, v) = clients.mean(update, state.local, state.x0)
    H = unpack(packed, clients.d)
    x0_next = linalg.solve(H, v)
    return State(x0_next, local, clients.n * jnp.linalg.norm(H @ state.x0 - v))


@refuse_unknown_keywords
def distributed_newton(*, step_size: Any = 1.0) -> Algorithm:
    """Newton's method on the dual of the consensus problem, with a fixed step size."""
    s = positive("distributed_newton: step_size", step_size)

    def init(clients: Clients, x0: Vec) -> State:
        return State(x0, clients.start(start, x0, number(s)), number(jnp.inf))

    return Algorithm(init, step, (start, update), Spec("distributed_newton", {"step_size": s}))
