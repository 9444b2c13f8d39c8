"""Methods on the dual, and methods that learn the Hessian, as their papers print them: dense algebra, one client and one row at a time.

multipliers   Niu & Wei, section 2: x̃ = argmin L̃(x̃, λ) by Newton's method on all (n+1)d unknowns; λ + b∇g or λ − b(∇²g)⁻¹∇g by Lemma 1
pn_dg         Niu & Wei, Algorithm 1, with the Newton-type x and the gradient-type λ
cocoa         Ma et al. 2015, Algorithm 1, every coordinate's maximum from the conjugate of its loss
fednl         Safaryan et al. 2021, Algorithm 1, option 2, on full matrices
"""

import numpy as np


def multipliers(clients, x0, mu, b, dual, steps):
    """x₀ (steps, d), x (steps, n, d), λ (steps, n, d) after each step."""
    n, d = len(clients), len(x0)
    W = np.kron(np.column_stack([np.ones(n), -np.eye(n)]), np.eye(d))
    tilde, lam = np.tile(np.asarray(x0, dtype=float), n + 1), np.zeros(n * d)
    trace = []
    for _ in range(steps):
        for _ in range(40):
            g, H = _lagrangian_derivatives(clients, W, tilde, lam, mu)
            tilde = tilde - np.linalg.solve(H, g)
        g, H = _lagrangian_derivatives(clients, W, tilde, lam, mu)
        assert np.linalg.norm(g) < 1e-13 * n * d
        gradient = W @ tilde
        hessian = -W @ np.linalg.solve(H, W.T)
        lam = lam + b * gradient if dual == "gradient" else lam - b * np.linalg.solve(hessian, gradient)
        trace.append((tilde[:d], tilde[d:].reshape(n, d), lam.reshape(n, d)))
    return tuple(np.array(part) for part in zip(*trace, strict=True))


def _lagrangian_derivatives(clients, W, tilde, lam, mu):
    d = len(tilde) // (len(clients) + 1)
    g, H = W.T @ lam + mu * W.T @ (W @ tilde), mu * W.T @ W
    for i, f in enumerate(clients):
        block = slice((i + 1) * d, (i + 2) * d)
        g[block] += f.grad(tilde[block])
        H[block, block] += f.hess(tilde[block])
    return g, H


def pn_dg(clients, x0, mu, a, b, steps):
    """With one a and one b a client. x₀ (steps, d), x (steps, n, d), λ (steps, n, d) after each step."""
    n, d = len(clients), len(x0)
    x0 = np.array(x0, dtype=float)
    x, lam = [x0] * n, [np.zeros(d)] * n
    trace = []
    for _ in range(steps):
        x_next, lam_next = [], []
        for i in range(n):
            D = clients[i].hess(x[i]) + mu * np.eye(d)
            x_next.append(x[i] - a[i] * np.linalg.solve(D, clients[i].grad(x[i]) - lam[i] + mu * (x[i] - x0)))
            lam_next.append(lam[i] + b[i] * (x0 - x[i]))
        x, lam = x_next, lam_next
        x0 = sum(x) / n - sum(lam) / (mu * n)
        trace.append((x0, np.array(x), np.array(lam)))
    return tuple(np.array(part) for part in zip(*trace, strict=True))


def cocoa(clients, x0, passes, steps):
    """x₀ (steps, d), and the α of all rows, client after client, (steps, rows), after each step.

    Ma et al., Algorithm 1, for P(x) = Σᵢ Σⱼ vⱼ φⱼ(aⱼ·x + oⱼ) + ½xᵀRx with γ = 1, σ′ = n: every client climbs, one αⱼ after the other,

        G(Δ) = Σⱼ −vⱼ (φ*ⱼ(−αⱼ − Δⱼ) + oⱼΔⱼ) − x₀ᵀu − ½σ′ uᵀR⁻¹u,   u = Σⱼ vⱼΔⱼaⱼ
    """
    n = len(clients)
    R = sum(f.reg for f in clients)
    x0 = np.array(x0, dtype=float)
    alpha = [np.zeros(len(f.y)) for f in clients]
    trace = []
    for _ in range(steps):
        for i, f in enumerate(clients):
            delta = np.zeros(len(f.y))
            for _ in range(passes):
                for j in range(len(f.y)):
                    # terms of G in Δⱼ alone: −φ*(−αⱼ − Δⱼ) − c·Δⱼ − ½q·Δⱼ², after division by vⱼ
                    u_rest = sum((f.v[k] * delta[k] * f.A[k] for k in range(len(f.y)) if k != j), np.zeros(len(x0)))
                    c = f.offset[j] + f.A[j] @ x0 + n * (f.A[j] @ (u_rest / R))
                    q = n * f.v[j] * (f.A[j] @ (f.A[j] / R))
                    delta[j] = _best_dual(f.loss.__name__, f.delta, f.y[j], alpha[i][j], c, q) - alpha[i][j]
            alpha[i] = alpha[i] + delta
        total = np.zeros(len(x0))
        for i, f in enumerate(clients):
            for j in range(len(f.y)):
                total = total + f.v[j] * alpha[i][j] * f.A[j]
        x0 = total / R
        trace.append((x0, np.concatenate(alpha)))
    return tuple(np.array(part) for part in zip(*trace, strict=True))


def _best_dual(loss, delta, y, alpha, c, q):
    """argmax over β of −φ*(−β) − c·(β − α) − ½q·(β − α)², by what is known of each conjugate."""
    if loss == "squared":  # φ*(−β) = ½β² − βy
        return (y - c + q * alpha) / (1 + q)
    if loss == "huber":  # the same, for |β| ≤ δ
        return min(max((y - c + q * alpha) / (1 + q), -delta), delta)
    # p = y − β is the mean that the row predicts. logistic: φ*(−β) = p log p + (1−p) log(1−p), poisson: p log p − p
    if loss == "logistic":
        low, high = 0.0, 1.0
    else:
        low, high = 0.0, max(y, 1.0) + max(0.0, q * (y - alpha)) + np.exp(min(c + q * (y - alpha), 50.0))
    for _ in range(2000):
        p = 0.5 * (low + high)
        if p in (low, high):
            break
        link = np.log(p) - np.log1p(-p) if loss == "logistic" else np.log(p)
        low, high = (p, high) if link < c + q * (y - p - alpha) else (low, p)
    return y - 0.5 * (low + high)


def fednl(clients, x0, compress, alpha, first, steps):
    """The points after each step, (steps, d): Safaryan et al., Algorithm 1, option 2. compress(M, k) is C of a full matrix in step k."""
    n, d = len(clients), len(x0)
    x = np.array(x0, dtype=float)
    H = [f.hess(x) if first == "hessian" else np.zeros((d, d)) for f in clients]
    H_server = sum(H) / n
    trace = []
    for k in range(steps):
        gradients = [f.grad(x) for f in clients]
        hessians = [f.hess(x) for f in clients]
        S = [compress(hessians[i] - H[i], k) for i in range(n)]
        distance = sum(np.linalg.norm(H[i] - hessians[i], "fro") for i in range(n)) / n
        x = x - np.linalg.solve(H_server + distance * np.eye(d), sum(gradients) / n)
        H = [H[i] + alpha * S[i] for i in range(n)]
        H_server = H_server + alpha * sum(S) / n
        trace.append(x)
    return np.array(trace)


def top_k(k):
    """The k largest entries on and above the diagonal, and their mirror images; of equals the first by rows."""

    def compress(M, step):
        d = len(M)
        places = [(r, c) for r in range(d) for c in range(r, d)]
        kept = sorted(places, key=lambda place: -abs(M[place]))[:k]
        return _only(M, kept)

    return compress


def chosen_entries(places):
    """places[step] lists the (row, column) that are sent, on and above the diagonal."""
    return lambda M, step: _only(M, places[step])


def _only(M, kept):
    S = np.zeros_like(M)
    for r, c in kept:
        S[r, c] = S[c, r] = M[r, c]
    return S


def rank_1(M, step):
    """s·uuᵀ with s the eigenvalue of largest magnitude; where equal ones leave u open, the first of those nearest to a coordinate axis."""
    values, vectors = np.linalg.eigh(M)
    size = max(abs(values))
    if size == 0:
        return np.zeros_like(M)
    s = size if max(values) > size * (1 - 1e-8) else -size
    tied = [vector for value, vector in zip(values, vectors.T, strict=True) if abs(value - s) <= 1e-8 * size]
    shadows = [sum(vector[c] * vector for vector in tied) for c in range(len(M))]  # every axis projected on their space
    longest = max(np.linalg.norm(shadow) for shadow in shadows)
    u = next(shadow for shadow in shadows if np.linalg.norm(shadow) > longest * (1 - 1e-8))
    return s * np.outer(u, u) / (u @ u)
