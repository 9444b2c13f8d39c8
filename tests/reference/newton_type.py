"""DANE, AIDE, GIANT, DiSCO, DINGO and FedNew as their papers print them: every client in turn, f = (1/n)Σfᵢ unless it says otherwise.

Each returns the points after every step, (steps, d), and what a test may want to know of the steps: step sizes, rounds, cases.
"""

import numpy as np


def mean(vectors):
    return sum(vectors) / len(vectors)


def minimise(gradient, hessian, start):
    """By Newton's method, its step halved until the gradient shrinks; to rounding."""
    x = np.array(start, dtype=float)
    for _ in range(100):
        g = gradient(x)
        p = np.linalg.solve(hessian(x), g)
        t = 1.0
        while t > 1e-10 and np.linalg.norm(gradient(x - t * p)) > np.linalg.norm(g):
            t /= 2
        if t <= 1e-10:
            break
        x = x - t * p
    return x


def dane_step(clients, w, mu, eta):
    """Shamir, Srebro and Zhang, figure 1."""
    g = mean([client.grad(w) for client in clients])
    solutions = []
    for client in clients:
        shift = client.grad(w) - eta * g
        solutions.append(
            minimise(
                lambda x, client=client, shift=shift: client.grad(x) - shift + mu * (x - w),
                lambda x, client=client: client.hess(x) + mu * np.eye(len(w)),
                w,
            )
        )
    return mean(solutions)


def dane(clients, x0, steps, mu, eta):
    points = [np.array(x0, dtype=float)]
    for _ in range(steps):
        points.append(dane_step(clients, points[-1], mu, eta))
    return np.array(points[1:])


class Proximal:
    """f(x) + ½τ‖x − y‖²."""

    def __init__(self, client, tau, y):
        self.client, self.tau, self.y = client, tau, y

    def grad(self, x):
        return self.client.grad(x) + self.tau * (x - self.y)

    def hess(self, x):
        return self.client.hess(x) + self.tau * np.eye(len(x))


def aide(clients, x0, steps, tau, mu, m, eta, inner):
    """Reddi et al.: catalyst around DANE, ζ from the quadratic equation of every step."""
    w = y = np.array(x0, dtype=float)
    q = m / (m + tau)
    zeta = np.sqrt(q)
    points = []
    for _ in range(steps):
        w_next = w
        for _ in range(inner):
            w_next = dane_step([Proximal(client, tau, y) for client in clients], w_next, mu, eta)
        # the root in (0, 1) of ζ₊² = (1 − ζ₊)ζ² + qζ₊
        zeta_next = max(np.roots([1.0, zeta**2 - q, -(zeta**2)]).real)
        beta = zeta * (1 - zeta) / (zeta**2 + zeta_next)
        y = w_next + beta * (w_next - w)
        w, zeta = w_next, zeta_next
        points.append(w)
    return np.array(points)


def giant(clients, x0, steps, candidates, c=0.1):
    """Wang et al. Also the step sizes."""
    w = np.array(x0, dtype=float)
    points, sizes = [], []
    for _ in range(steps):
        g = mean([client.grad(w) for client in clients])
        p = mean([np.linalg.solve(client.hess(w), g) for client in clients])
        here = mean([client.value(w) for client in clients])
        for k in range(candidates):
            alpha = 2.0**-k
            if mean([client.value(w - alpha * p) for client in clients]) <= here - c * alpha * (p @ g):
                break
        w = w - alpha * p
        points.append(w)
        sizes.append(alpha)
    return np.array(points), np.array(sizes)


def disco(clients, x0, steps, mu, accuracy, who, damped, most):
    """Zhang and Xiao, algorithms 1 and 2, on f = Σfᵢ, where their P is n times that of one client. Also PCG's iterations."""
    n, w = len(clients), np.array(x0, dtype=float)
    points, iterations = [], []
    for _ in range(steps):
        g = sum(client.grad(w) for client in clients)
        P = n * (clients[who].hess(w) + mu * np.eye(len(w)))
        v, r, s = np.zeros(len(w)), g, np.linalg.solve(P, g)
        u, k = s, 0
        while np.linalg.norm(r) > accuracy * np.linalg.norm(g) and k < most:
            Hu = sum(client.hess(w) @ u for client in clients)
            alpha = (r @ s) / (u @ Hu)
            v, r_next = v + alpha * u, r - alpha * Hu
            s_next = np.linalg.solve(P, r_next)
            u = s_next + (r_next @ s_next) / (r @ s) * u
            r, s, k = r_next, s_next, k + 1
        delta = np.sqrt(v @ sum(client.hess(w) @ v for client in clients))
        w = w - (v / (1 + delta) if damped else v)
        points.append(w)
        iterations.append(k)
    return np.array(points), np.array(iterations)


def dingo(clients, x0, steps, theta, phi, rho=1e-4):
    """Crane and Roosta, algorithm 1. Also the case of every step, and its step size."""
    w = np.array(x0, dtype=float)
    d = len(w)
    points, cases, sizes = [], [], []

    def gradient(x):
        return mean([client.grad(x) for client in clients])

    for _ in range(steps):
        g = gradient(w)
        hessians = [client.hess(w) for client in clients]
        stacks = [np.vstack([H, phi * np.eye(d)]) for H in hessians]
        Hg = mean([H @ g for H in hessians])
        newton = mean([np.linalg.pinv(H) @ g for H in hessians])
        own = [np.linalg.pinv(stack) @ np.concatenate([g, np.zeros(d)]) for stack in stacks]
        if newton @ Hg >= theta * (g @ g):
            p, case = -newton, 1
        elif mean(own) @ Hg >= theta * (g @ g):
            p, case = -mean(own), 2
        else:
            directions = []
            for stack, v in zip(stacks, own, strict=True):
                p = -v
                if v @ Hg < theta * (g @ g):
                    correction = np.linalg.solve(stack.T @ stack, Hg)
                    p = p - (theta * (g @ g) - v @ Hg) / (Hg @ correction) * correction
                directions.append(p)
            p, case = mean(directions), 3
        alpha = 1.0
        while alpha > 2.0**-50 and np.sum(gradient(w + alpha * p) ** 2) > g @ g + 2 * alpha * rho * (p @ Hg):
            alpha /= 2
        w = w + alpha * p
        points.append(w)
        cases.append(case)
        sizes.append(alpha)
    return np.array(points), np.array(cases), np.array(sizes)


def fednew(clients, x0, steps, alpha, rho):
    """Elgabli et al., algorithm 1, with the Hessian of every iteration."""
    x = np.array(x0, dtype=float)
    y, lam = np.zeros(len(x)), [np.zeros(len(x)) for _ in clients]
    points = []
    for _ in range(steps):
        own = []
        for client, lam_own in zip(clients, lam, strict=True):
            D = client.hess(x) + (alpha + rho) * np.eye(len(x))
            own.append(np.linalg.solve(D, client.grad(x) - lam_own + rho * y))
        y = mean(own)
        lam = [lam_own + rho * (y_own - y) for lam_own, y_own in zip(lam, own, strict=True)]
        x = x - y
        points.append(x)
    return np.array(points)
