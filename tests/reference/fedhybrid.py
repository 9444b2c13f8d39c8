"""Algorithm 1 of the paper, line by line.

    Dᵢ = I (gradient client), ∇²fᵢ(xᵢ) + μI (Newton client) or the diagonal of that (diagonal client), at the old xᵢ
    xᵢ⁺ = xᵢ − aᵢ Dᵢ⁻¹ (∇fᵢ(xᵢ) − λᵢ + μ(xᵢ − x₀))
    λᵢ⁺ = λᵢ + bᵢ Dᵢ (x₀ − xᵢ)                        with the old xᵢ too
    x₀⁺ = Σxᵢ⁺/n − Σλᵢ⁺/(μn)

The paper's loop runs over k = 1 … K−1; here `rounds` passes are made from the given start.
"""

from typing import NamedTuple

import numpy as np


class Trace(NamedTuple):
    """What holds after each round: z, x, lam of shape (rounds, n, d) and x0 of shape (rounds, d); z = x − λ/μ."""

    z: np.ndarray
    x: np.ndarray
    lam: np.ndarray
    x0: np.ndarray


def fedhybrid(clients, kinds, mu, a, b, x0, x, lam, rounds):
    """The trace of `rounds` rounds; kinds[i] is "gradient", "newton" or "diagonal"; x0=None is mean(x) − mean(lam)/mu."""
    n = len(clients)
    x = [np.array(x[i], dtype=float) for i in range(n)]
    lam = [np.array(lam[i], dtype=float) for i in range(n)]
    d = len(x[0])
    x0 = sum(x) / n - sum(lam) / (mu * n) if x0 is None else np.array(x0, dtype=float)
    trace = Trace(np.zeros((rounds, n, d)), np.zeros((rounds, n, d)), np.zeros((rounds, n, d)), np.zeros((rounds, d)))

    for k in range(rounds):
        x_next, lam_next = [None] * n, [None] * n
        for i in range(n):
            grad_L = clients[i].grad(x[i]) - lam[i] + mu * (x[i] - x0)
            if kinds[i] == "gradient":
                x_next[i] = x[i] - a[i] * grad_L
                lam_next[i] = lam[i] + b[i] * (x0 - x[i])
            elif kinds[i] in ("newton", "diagonal"):
                D = clients[i].hess(x[i]) + mu * np.eye(d)
                D = np.diag(np.diag(D)) if kinds[i] == "diagonal" else D
                x_next[i] = x[i] - a[i] * np.linalg.solve(D, grad_L)
                lam_next[i] = lam[i] + b[i] * (D @ (x0 - x[i]))
            else:
                raise ValueError(f"client {i} is of kind {kinds[i]!r}; give 'gradient', 'newton' or 'diagonal'")
        x, lam = x_next, lam_next
        x0 = sum(x) / n - sum(lam) / (mu * n)
        for i in range(n):
            trace.z[k, i] = x[i] - lam[i] / mu
            trace.x[k, i] = x[i]
            trace.lam[k, i] = lam[i]
        trace.x0[k] = x0
    return trace
