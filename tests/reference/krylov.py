"""Krylov steps as slow NumPy loops, from the iteration in words: every matrix is formed, every pair is a list entry, nothing is masked.

Follows the text of the method, and shares no code with the library. `newton[i]`: whether client i can precondition.
"""

import itertools

import numpy as np


def solve_scaled(G, v):
    """G⁻¹v with a ridge of 1e-10 on G scaled to a unit diagonal."""
    scale = np.sqrt(np.diag(G))
    return np.linalg.solve(G / np.outer(scale, scale) + 1e-10 * np.eye(len(v)), v / scale) / scale


def krylov(oracle, x0, steps, memory, newton):
    """x₀ after every step, the rounds that each took, and whether its point was accepted."""
    n, d = len(oracle), len(x0)
    memory = min(memory, d)
    first = [f.grad(x0) for f in oracle]
    scale = [g @ f.hess(x0) @ g / (g @ g) for f, g in zip(oracle, first, strict=True)]
    mean_scale = sum(scale) / n
    gamma, radius = mean_scale, np.inf
    x, F, g, u = np.array(x0), None, None, np.array(x0)
    seen, visited, rounds, accepted = [], [], [], []
    preconditioned, mark, since, wait, plain_rate = False, np.inf, 0, 10, 1.0

    for _ in range(steps):
        F_u = sum(f.value(u) for f in oracle) / n
        g_u = sum(f.grad(u) for f in oracle) / n
        seen = [*seen, (u, g_u)][-(memory + 1) :]
        move = u - x
        if F is None:
            accept = True
        elif abs(F_u - F) <= 1e-9 * max(abs(F_u), abs(F)):
            accept = (g_u + g) @ move <= 0 or g_u @ move <= 0
        else:
            accept = F_u < F
        if accept:
            radius = max(radius, 2 * np.linalg.norm(move))
            x, F, g = u, F_u, g_u
        else:
            radius = 0.25 * np.linalg.norm(move)
        size = np.linalg.norm(g)

        known, left = np.zeros(d), g
        if len(seen) > 1:
            S, Y = [], []
            for (u_old, g_old), (u_new, g_new) in itertools.pairwise(seen):
                length = np.linalg.norm(u_new - u_old)
                S.append((u_new - u_old) / length)
                Y.append((g_new - g_old) / length)
            S, Y = np.array(S), np.array(Y)
            beta = solve_scaled(Y @ Y.T, Y @ g)
            alpha = beta
            if accept:
                M = S @ (sum(f.hess(x) for f in oracle) / n) @ S.T
                alpha = beta + solve_scaled(M, (S @ Y.T - M) @ beta)
            known, left = -S.T @ alpha, g - Y.T @ beta
            gamma = (Y[-1] @ Y[-1]) / (S[-1] @ Y[-1])

        since += 1
        if preconditioned:
            if since >= 12:
                if (size / mark) ** (1 / since) >= min(plain_rate, 0.98):
                    preconditioned, wait = False, 2 * wait
                mark, since = size, 0
        elif size < 0.1 * mark:
            mark, since = size, 0
        elif since >= wait and accept and any(newton):
            plain_rate = (size / mark) ** (1 / since)
            preconditioned, mark, since = True, size, 0

        new, took = left / gamma, 1
        if preconditioned and accept:
            new, took = np.zeros(d), 2
            since += 1
            for i, f in enumerate(oracle):
                part = scale[i] / mean_scale
                if newton[i]:
                    new = new + part**2 * np.linalg.solve(f.hess(x) + 1e-7 * scale[i] * np.eye(d), left) / n
                else:
                    new = new + part * left / gamma / n
        p = known - new
        if not p @ g < -1e-10 * np.linalg.norm(p) * size:
            p = -new if new @ g > 0 else -g / gamma
        if np.linalg.norm(p) > radius:
            p = p * radius / np.linalg.norm(p)
        u = x + p
        visited.append(x)
        rounds.append(took)
        accepted.append(accept)
    return np.array(visited), np.array(rounds), accepted
