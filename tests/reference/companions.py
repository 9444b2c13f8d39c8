"""The methods FedHybrid is compared with, on F = Σfᵢ, as a textbook prints them.

gradient_descent   x⁺ = x − step · Σ∇fᵢ(x): the paper's "non-stochastic FedAvg" of one full step a round
newton             x⁺ = x + t·p, p = −(Σ∇²fᵢ)⁻¹ Σ∇fᵢ, t the first of 1, ½, ¼, … with F(x + tp) ≤ F(x) + c·t·∇F(x)·p
lbfgs_direction    the two-loop recursion (Nocedal & Wright, Algorithm 7.4)
"""

import numpy as np


def gradient_descent(clients, x0, step, rounds):
    """The points after each step, (rounds, d)."""
    x = np.array(x0, dtype=float)
    trace = []
    for _ in range(rounds):
        g = sum(client.grad(x) for client in clients)
        x = x - step * g
        trace.append(x)
    return np.array(trace)


def newton(clients, x0, rounds, c=1e-4, halvings=60):
    """The points after each step, (rounds, d), and the steps t taken, (rounds,).

    At the minimum, rounding may leave no t that passes: after `halvings` halvings the point stays and t is 0.
    """
    x = np.array(x0, dtype=float)
    trace, steps = [], []
    for _ in range(rounds):
        value = sum(client.value(x) for client in clients)
        g = sum(client.grad(x) for client in clients)
        H = sum(client.hess(x) for client in clients)
        p = -np.linalg.solve(H, g)
        t = 1.0
        for _ in range(halvings):
            if sum(client.value(x + t * p) for client in clients) <= value + c * t * (g @ p):
                break
            t = t / 2
        else:
            t = 0.0
        x = x + t * p
        trace.append(x)
        steps.append(t)
    return np.array(trace), np.array(steps)


def lbfgs_direction(s, y, g):
    """The descent direction −Hg from the pairs s = x⁺ − x, y = g⁺ − g, oldest first; −g where there is none yet."""
    q = np.array(g, dtype=float)
    m = len(s)
    alpha = [0.0] * m
    for i in reversed(range(m)):
        alpha[i] = (s[i] @ q) / (y[i] @ s[i])
        q = q - alpha[i] * y[i]
    r = (s[-1] @ y[-1]) / (y[-1] @ y[-1]) * q if m > 0 else q
    for i in range(m):
        beta = (y[i] @ r) / (y[i] @ s[i])
        r = r + s[i] * (alpha[i] - beta)
    return -r
