"""FedHybrid where some clients are away, by the last known reply of each; and, to show what is wrong with it, by those who answered alone.

A client that is away does nothing: its xᵢ and λᵢ stay, and so does zᵢ = xᵢ − λᵢ/μ, which the server remembers. In round 0 all answer.
"""

from typing import NamedTuple

import numpy as np


class Trace(NamedTuple):
    """After each round: x, lam of shape (rounds, n, d) and x0 of shape (rounds, d)."""

    x: np.ndarray
    lam: np.ndarray
    x0: np.ndarray


def fedhybrid_with_absence(clients, kinds, mu, a, b, present, rounds, responders_only=False):
    """From x = 0, λ = 0; present[k % len(present)][i] says whether client i answers in round k."""
    n, d = len(clients), len(clients[0].reg)
    x, lam, replies = np.zeros((n, d)), np.zeros((n, d)), [None] * n
    x0 = np.zeros(d)
    xs, lams, x0s = [], [], []
    for k in range(rounds):
        answered = [i for i in range(n) if k == 0 or present[k % len(present)][i]]
        for i in answered:
            r = clients[i].grad(x[i]) - lam[i] + mu * (x[i] - x0)
            if kinds[i] == "gradient":
                x_next, lam_next = x[i] - a[i] * r, lam[i] + b[i] * (x0 - x[i])
            else:
                D = clients[i].hess(x[i]) + mu * np.eye(d)
                x_next, lam_next = x[i] - a[i] * np.linalg.solve(D, r), lam[i] + b[i] * (D @ (x0 - x[i]))
            x[i], lam[i] = x_next, lam_next
            replies[i] = x_next - lam_next / mu
        heard = answered if responders_only else range(n)
        x0 = sum(replies[i] for i in heard) / len(heard) if heard else x0
        xs.append(x.copy())
        lams.append(lam.copy())
        x0s.append(x0.copy())
    return Trace(np.array(xs), np.array(lams), np.array(x0s))
