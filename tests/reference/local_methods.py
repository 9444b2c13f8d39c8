"""Methods whose clients work on their own between two averages, as their papers print them, one client after another.

fedavg    McMahan et al. 2017, Algorithm 1, with full gradients and everybody
fedprox   Li et al. 2018, Algorithm 2, with exact minimisers and everybody
scaffold  Karimireddy et al. 2020, Algorithm 1, option II, with full gradients and everybody
fedac     Yuan and Ma 2020, Algorithm 1 with the choice FedAC-I, with full gradients
fedpd     Zhang et al. 2020, Algorithm 1 with p = 0 and exact minimisers
admm      Boyd et al. 2011, (7.3) to (7.5)

A client has value(x), grad(x) and hess(x). Each gives the server's points after each round, (rounds, d), and what else it names.
"""

import numpy as np


def argmin(grad, hess, start):
    """The zero of the gradient of a strictly convex function, by Newton's method; a step is halved while the gradient grows."""
    x = np.array(start, dtype=float)
    for _ in range(60):
        g = grad(x)
        p = -np.linalg.solve(hess(x), g)
        t = 1.0
        while t > 1e-6 and not np.linalg.norm(grad(x + t * p)) < np.linalg.norm(g):
            t = t / 2
        if t <= 1e-6:  # at the rounding of the gradient
            return x + p if np.linalg.norm(p) < 1e-10 * (1 + np.linalg.norm(x)) else x
        x = x + t * p
    return x


def fedavg(clients, x0, eta, E, rounds):
    """Also every round's gradients, summed over clients, (rounds, E, d)."""
    w = np.array(x0, dtype=float)
    trace, trace_g = [], []
    for _ in range(rounds):
        models, g = [], np.zeros((E, len(w)))
        for client in clients:
            w_k = w
            for t in range(E):
                g[t] += client.grad(w_k)
                w_k = w_k - eta * client.grad(w_k)
            models.append(w_k)
        w = sum(models) / len(models)
        trace.append(w)
        trace_g.append(g)
    return np.array(trace), np.array(trace_g)


def fedprox(clients, x0, mu, rounds):
    """Also every client's minimiser, (rounds, n, d)."""
    w = np.array(x0, dtype=float)
    trace, trace_own = [], []
    for _ in range(rounds):
        models = []
        for client in clients:

            def grad(v, client=client, w=w):
                return client.grad(v) + mu * (v - w)

            def hess(v, client=client):
                return client.hess(v) + mu * np.eye(len(v))

            models.append(argmin(grad, hess, w))
        w = sum(models) / len(models)
        trace.append(w)
        trace_own.append(np.array(models))
    return np.array(trace), np.array(trace_own)


def scaffold(clients, x0, eta_l, eta_g, K, rounds):
    """Also the server's c after each round, (rounds, d), and every client's, (rounds, n, d)."""
    N = len(clients)
    x = np.array(x0, dtype=float)
    c, c_own = np.zeros_like(x), [np.zeros_like(x) for _ in clients]
    trace, trace_c, trace_own = [], [], []
    for _ in range(rounds):
        delta_y, delta_c = [], []
        for i, client in enumerate(clients):
            y = x
            for _ in range(K):
                y = y - eta_l * (client.grad(y) - c_own[i] + c)
            c_plus = c_own[i] - c + (x - y) / (K * eta_l)
            delta_y.append(y - x)
            delta_c.append(c_plus - c_own[i])
            c_own[i] = c_plus
        x = x + eta_g / N * sum(delta_y)
        c = c + sum(delta_c) / N
        trace.append(x)
        trace_c.append(c)
        trace_own.append(np.array(c_own))
    return np.array(trace), np.array(trace_c), np.array(trace_own)


def fedac_one(eta, mu, K):
    """γ, α, β of FedAC-I."""
    gamma = max((eta / (mu * K)) ** 0.5, eta)
    alpha = 1 / (gamma * mu)
    return gamma, alpha, alpha + 1


def fedac(clients, x0, eta, mu, K, rounds):
    """The points are w^ag; also w after each round, (rounds, d), and its gradients, summed over clients, (rounds, K, d)."""
    gamma, alpha, beta = fedac_one(eta, mu, K)
    M = len(clients)
    w = [np.array(x0, dtype=float)] * M
    w_ag = [np.array(x0, dtype=float)] * M
    trace, trace_w, trace_g = [], [], []
    for t in range(rounds * K):
        v, v_ag, total = [], [], 0.0
        for m in range(M):
            w_md = beta**-1 * w[m] + (1 - beta**-1) * w_ag[m]
            g = clients[m].grad(w_md)
            total = total + g
            v_ag.append(w_md - eta * g)
            v.append((1 - alpha**-1) * w[m] + alpha**-1 * w_md - gamma * g)
        trace_g.append(total)
        if (t + 1) % K == 0:
            w, w_ag = [sum(v) / M] * M, [sum(v_ag) / M] * M
            trace.append(w_ag[0])
            trace_w.append(w[0])
        else:
            w, w_ag = v, v_ag
    return np.array(trace), np.array(trace_w), np.array(trace_g).reshape(rounds, K, -1)


def fedpd(clients, x0, eta, rounds):
    """Also xᵢ and the paper's λᵢ after each round, (rounds, n, d)."""
    N = len(clients)
    x_0 = np.array(x0, dtype=float)
    x, lam = [x_0] * N, [np.zeros_like(x_0)] * N
    trace, trace_x, trace_lam = [], [], []
    for _ in range(rounds):
        x_plus = []
        for i, client in enumerate(clients):

            def grad(v, client=client, lam_i=lam[i], x_0=x_0):
                return client.grad(v) + lam_i + (v - x_0) / eta

            def hess(v, client=client):
                return client.hess(v) + np.eye(len(v)) / eta

            x[i] = argmin(grad, hess, x[i])
            lam[i] = lam[i] + (x[i] - x_0) / eta
            x_plus.append(x[i] + eta * lam[i])
        x_0 = sum(x_plus) / N
        trace.append(x_0)
        trace_x.append(np.array(x))
        trace_lam.append(np.array(lam))
    return np.array(trace), np.array(trace_x), np.array(trace_lam)


def admm(clients, x0, rho, rounds):
    """The points are z; also xᵢ and yᵢ after each round, (rounds, n, d)."""
    N = len(clients)
    z = np.array(x0, dtype=float)
    x, y = [z] * N, [np.zeros_like(z)] * N
    trace, trace_x, trace_y = [], [], []
    for _ in range(rounds):
        for i, client in enumerate(clients):

            def grad(v, client=client, y_i=y[i], z=z):
                return client.grad(v) + y_i + rho * (v - z)

            def hess(v, client=client):
                return client.hess(v) + rho * np.eye(len(v))

            x[i] = argmin(grad, hess, x[i])
        z = sum(x[i] + y[i] / rho for i in range(N)) / N
        for i in range(N):
            y[i] = y[i] + rho * (x[i] - z)
        trace.append(z)
        trace_x.append(np.array(x))
        trace_y.append(np.array(y))
    return np.array(trace), np.array(trace_x), np.array(trace_y)
