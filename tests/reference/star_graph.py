"""Methods for networks, on the star graph with the server as node 0: the papers' matrix forms over all n + 1 nodes at once.

metropolis           W, from the graph's degrees
penalised_minimiser  argmin of Σfᵢ(xᵢ) + 1/(2s)·xᵀ((I − W) ⊗ I)x, where DGD and Network Newton go
dgd                  x⁺ = (W ⊗ I)x − s·∇f(x)
extra                x²⁺ = (I + W)x⁺ − W̃x − s·(∇f(x⁺) − ∇f(x))
network_newton       d⁽⁰⁾ = −D⁻¹g, d⁽ᵏ⁺¹⁾ = D⁻¹(B·d⁽ᵏ⁾ − g), x⁺ = x + ε·d⁽ᴷ⁾
esom                 the same direction for the augmented Lagrangian; v⁺ = v + α(I − W)^½ x⁺
distributed_newton   Newton's method on the dual, Σλᵢ = 0 by a KKT system
laplacian_newton     the same from a feasible λ, as its paper has it: λ = Mν, ν⁺ = ν + s·(M·H⁻¹·M)⁺(−M·x)

A client is an object with grad(x) and hess(x). Node 0 holds f₀ ≡ 0. Points of all nodes are (n + 1, d) and start alike, at x0.
"""

import numpy as np


def metropolis(n):
    neighbours = np.zeros((n + 1, n + 1), dtype=bool)
    neighbours[0, 1:] = neighbours[1:, 0] = True
    degree = neighbours.sum(axis=1)
    W = np.zeros((n + 1, n + 1))
    for i in range(n + 1):
        for j in range(n + 1):
            if neighbours[i, j]:
                W[i, j] = 1 / (1 + max(degree[i], degree[j]))
    for i in range(n + 1):
        W[i, i] = 1 - W[i].sum()
    return W


def everywhere(clients, x0):
    return np.tile(np.array(x0, dtype=float), len(clients) + 1)


def gradient(clients, x):
    parts = x.reshape(len(clients) + 1, -1)
    return np.concatenate([0 * parts[0], *(f.grad(x_i) for f, x_i in zip(clients, parts[1:], strict=True))])


def block_diagonal(blocks):
    d = len(blocks[0])
    out = np.zeros((d * len(blocks), d * len(blocks)))
    for i, block in enumerate(blocks):
        out[i * d : (i + 1) * d, i * d : (i + 1) * d] = block
    return out


def hessian(clients, x):
    parts = x.reshape(len(clients) + 1, -1)
    d = parts.shape[1]
    return block_diagonal([np.zeros((d, d)), *(f.hess(x_i) for f, x_i in zip(clients, parts[1:], strict=True))])


def over_nodes(trace, clients):
    """(steps, n + 1, d)"""
    return np.array(trace).reshape(len(trace), len(clients) + 1, -1)


def penalised_minimiser(clients, x0, s, steps=60):
    """By Newton's method with full steps: (n + 1, d)."""
    x = everywhere(clients, x0)
    Z = np.kron(metropolis(len(clients)), np.eye(len(x0)))
    penalty = (np.eye(len(x)) - Z) / s
    for _ in range(steps):
        x = x - np.linalg.solve(hessian(clients, x) + penalty, gradient(clients, x) + penalty @ x)
    return x.reshape(len(clients) + 1, -1)


def dgd(clients, x0, s, steps):
    x = everywhere(clients, x0)
    Z = np.kron(metropolis(len(clients)), np.eye(len(x0)))
    trace = []
    for _ in range(steps):
        x = Z @ x - s * gradient(clients, x)
        trace.append(x)
    return over_nodes(trace, clients)


def extra(clients, x0, s, steps):
    before = everywhere(clients, x0)
    identity = np.eye(len(before))
    Z = np.kron(metropolis(len(clients)), np.eye(len(x0)))
    Z_tilde = (identity + Z) / 2
    x = Z @ before - s * gradient(clients, before)
    trace = [x]
    for _ in range(steps - 1):
        x, before = (identity + Z) @ x - Z_tilde @ before - s * (gradient(clients, x) - gradient(clients, before)), x
        trace.append(x)
    return over_nodes(trace, clients)


def direction(D, B, g, K):
    d = -np.linalg.solve(D, g)
    for _ in range(K):
        d = np.linalg.solve(D, B @ d - g)
    return d


def network_newton(clients, x0, alpha, eps, K, steps):
    x = everywhere(clients, x0)
    identity = np.eye(len(x))
    Z = np.kron(metropolis(len(clients)), np.eye(len(x0)))
    Z_d = np.diag(np.diag(Z))
    trace = []
    for _ in range(steps):
        g = (identity - Z) @ x + alpha * gradient(clients, x)
        D = alpha * hessian(clients, x) + 2 * (identity - Z_d)
        B = identity - 2 * Z_d + Z
        x = x + eps * direction(D, B, g, K)
        trace.append(x)
    return over_nodes(trace, clients)


def esom(clients, x0, alpha, eps, K, steps):
    """The points, and q = (I − W)^½ v as each step found it: what the last dual step made of it stands in the next row."""
    x = everywhere(clients, x0)
    identity = np.eye(len(x))
    Z = np.kron(metropolis(len(clients)), np.eye(len(x0)))
    Z_d = np.diag(np.diag(Z))
    values, vectors = np.linalg.eigh(identity - Z)
    root = vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T
    v = np.zeros(len(x))
    trace, q = [], []
    for _ in range(steps):
        q.append(root @ v)
        g = gradient(clients, x) + root @ v + alpha * (identity - Z) @ x
        D = hessian(clients, x) + eps * identity + 2 * alpha * (identity - Z_d)
        B = alpha * (identity - 2 * Z_d + Z)
        x = x + direction(D, B, g, K)
        v = v + alpha * root @ x
        trace.append(x)
    return over_nodes(trace, clients), over_nodes(q, clients)


def own_minimiser(f, lam, x, steps=100):
    """argmin f(x) − λ·x by Newton's method, halving where the gradient does not fall, until rounding stops it."""
    r = f.grad(x) - lam
    for _ in range(steps):
        p = -np.linalg.solve(f.hess(x), r)
        t = 1.0
        while t > 1e-10 and np.linalg.norm(f.grad(x + t * p) - lam) >= np.linalg.norm(r):
            t = t / 2
        if t <= 1e-10:
            break
        x = x + t * p
        r = f.grad(x) - lam
    return x


def distributed_newton(clients, x0, s, steps):
    """From λᵢ = ∇fᵢ(x₀). The agreed points (steps, d), and the clients' x and λ at the end, (n, d) each."""
    n, d = len(clients), len(x0)
    x = np.array([x0] * n, dtype=float)
    lam = np.array([f.grad(np.array(x0, dtype=float)) for f in clients])
    sums = np.kron(np.ones((n, 1)), np.eye(d))

    def newton_direction():
        """Of max −x·Δ − ½Δᵀ H⁻¹ Δ where Σ(λ + Δ) = 0; and the constraint's multiplier, which is the agreed point."""
        inverse = block_diagonal([np.linalg.inv(f.hess(x_i)) for f, x_i in zip(clients, x, strict=True)])
        KKT = np.block([[inverse, -sums], [sums.T, np.zeros((d, d))]])
        solution = np.linalg.solve(KKT, np.concatenate([-x.ravel(), -lam.sum(axis=0)]))
        return solution[: n * d].reshape(n, d), solution[n * d :]

    trace = []
    for k in range(steps):
        if k > 0:
            lam = lam + s * newton_direction()[0]
            x = np.array([own_minimiser(f, lam_i, x_i) for f, lam_i, x_i in zip(clients, lam, x, strict=True)])
        trace.append(newton_direction()[1])
    return np.array(trace), x, lam


def laplacian_newton(clients, lam, x, s, steps):
    """From λ with Σλᵢ = 0. M is the star's Laplacian with the hub eliminated; the clients' x after each step, (steps, n, d)."""
    n, d = lam.shape
    star = np.diag([float(n)] + [1.0] * n)
    star[0, 1:] = star[1:, 0] = -1
    M = np.kron(star[1:, 1:] - np.outer(star[1:, 0], star[0, 1:]) / star[0, 0], np.eye(d))
    nu = np.linalg.pinv(M) @ lam.ravel()
    trace = []
    for _ in range(steps):
        inverse = block_diagonal([np.linalg.inv(f.hess(x_i)) for f, x_i in zip(clients, x, strict=True)])
        nu = nu - s * np.linalg.pinv(M @ inverse @ M, rcond=1e-10, hermitian=True) @ (M @ x.ravel())
        lam = (M @ nu).reshape(n, d)
        x = np.array([own_minimiser(f, lam_i, x_i) for f, lam_i, x_i in zip(clients, lam, x, strict=True)])
        trace.append(x)
    return np.array(trace)
