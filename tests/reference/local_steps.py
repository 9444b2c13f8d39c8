"""FedHybrid with local steps, one client after another: the dual step first, then a step of Newton's method on the client's own augmented
Lagrangian, exact or by a few preconditioned conjugate gradients, and over-relaxed where it left little of its residual.
"""

from typing import NamedTuple

import numpy as np


class Trace(NamedTuple):
    """After each round: x, lam of shape (rounds, n, d) and x0 of shape (rounds, d)."""

    x: np.ndarray
    lam: np.ndarray
    x0: np.ndarray


def conjugate_gradients(A, r, C, steps, enough):
    """A⁻¹r, begun at 0, in the metric of the diagonal C, until rᵀC⁻¹r is enough² of its start."""
    p, v = np.zeros_like(r), r / C
    size = first = r @ v
    for _ in range(steps):
        if size <= enough**2 * first:
            break
        u = A @ v
        t = size / (v @ u)
        p, r = p + t * v, r - t * u
        before, size = size, r @ (r / C)
        v = r / C + size / before * v
    return p


def local_steps(clients, kinds, mu, steps, rounds, *, relaxation, solved=0.1, enough=1e-2):
    """From x = 0, λ = 0. `relaxation`: 1.8 for least squares, else 1."""
    n, d = len(clients), len(clients[0].reg)
    x, lam, x0 = np.zeros((n, d)), np.zeros((n, d)), np.zeros(d)
    xs, lams, x0s = [], [], []
    for _ in range(rounds):
        for i in range(n):
            lam[i] += mu * (x0 - x[i])

            def slope(y, i=i, x0=x0):
                return clients[i].grad(y) - lam[i] + mu * (y - x0)

            r, D = slope(x[i]), clients[i].hess(x[i]) + mu * np.eye(d)
            if kinds[i] == "newton":
                p = np.linalg.solve(D, r)
            else:
                p = conjugate_gradients(D, r, np.diag(D) if kinds[i] == "diagonal" else np.ones(d), steps, enough)
            while np.linalg.norm(slope(x[i] - p)) > np.linalg.norm(r):
                p = p / 2
            good = np.linalg.norm(slope(x[i] - p)) <= solved * np.linalg.norm(r)
            x[i] = x0 + (relaxation if good else 1.0) * (x[i] - p - x0)
        x0 = np.mean(x - lam / mu, axis=0)
        xs.append(x.copy())
        lams.append(lam.copy())
        x0s.append(x0)
    return Trace(np.array(xs), np.array(lams), np.array(x0s))
