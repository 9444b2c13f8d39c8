"""FedHybrid where every client works on the rows that are drawn for it: rows[k][i], positions in its table, with repetition.

A drawn row counts as the client's whole weight over how many were drawn. With `reduced`, the gradient on them is corrected by what they
say, and what all rows say, at the x̃ᵢ of the last round whose number is a multiple of ten.
"""

import copy

import numpy as np


def on_rows(client, chosen):
    part = copy.copy(client)
    part.A, part.y, part.offset = client.A[chosen], client.y[chosen], client.offset[chosen]
    part.v = np.full(len(chosen), sum(client.v) / len(chosen))
    return part


def fedhybrid_on_samples(clients, kinds, mu, a, b, rows, reduced):
    """x0 after each round, from x = 0, λ = 0."""
    n, d = len(clients), len(clients[0].reg)
    x, lam, x0 = np.zeros((n, d)), np.zeros((n, d)), np.zeros(d)
    anchor, full, x0s = [None] * n, [None] * n, []
    for k, drawn in enumerate(rows):
        x_next, lam_next = x.copy(), lam.copy()
        for i in range(n):
            f = on_rows(clients[i], drawn[i])
            g = f.grad(x[i])
            if reduced:
                if k % 10 == 0:
                    anchor[i], full[i] = x[i].copy(), clients[i].grad(x[i])
                g = g - f.grad(anchor[i]) + full[i]
            D = np.eye(d) if kinds[i] == "gradient" else f.hess(x[i]) + mu * np.eye(d)
            x_next[i] = x[i] - a[i] * np.linalg.solve(D, g - lam[i] + mu * (x[i] - x0))
            lam_next[i] = lam[i] + b[i] * (D @ (x0 - x[i]))
        x, lam = x_next, lam_next
        x0 = np.mean(x - lam / mu, axis=0)
        x0s.append(x0)
    return np.array(x0s)
