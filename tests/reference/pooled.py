"""The pooled answer argmin Σfᵢ, by means that no federated method uses.

Least squares in rational arithmetic, rounded once at the end; logistic and Poisson regression by Newton's method in
extended precision (64 bits of mantissa on x86); the least squares of minimum norm by the singular value decomposition.
"""

from fractions import Fraction

import numpy as np

from .objective import row_weights, unpack


def least_squares_exact(sites, reg=0.0, weighting="row"):
    """The correctly rounded solution of (Σ v a aᵀ + diag(reg)) x = Σ v a (y − offset); for d ≤ 12, ≤ 200 rows."""
    own = [sum(map(Fraction, unpack(site)[2].tolist())) for site in sites]
    totals = {"row": [sum(own)] * len(sites), "client": own}[weighting]
    d = unpack(sites[0])[0].shape[1]
    reg = np.broadcast_to(np.asarray(reg, dtype=float), (d,)).tolist()

    # the normal equations, right side in column d
    M = [[Fraction(0)] * (d + 1) for _ in range(d)]
    for c in range(d):
        M[c][c] = Fraction(reg[c])
    for site, total in zip(sites, totals, strict=True):
        A, y, w, offset = (part.tolist() for part in unpack(site))
        for j in range(len(y)):
            a = [Fraction(e) for e in A[j]]
            v = Fraction(w[j]) / (total or 1)
            for c in range(d):
                for e in range(d):
                    M[c][e] += v * a[c] * a[e]
                M[c][d] += v * a[c] * (Fraction(y[j]) - Fraction(offset[j]))

    # Gauss-Jordan; exact, so any pivot but 0 will do
    for c in range(d):
        pivot = next((r for r in range(c, d) if M[r][c] != 0), None)
        if pivot is None:
            raise np.linalg.LinAlgError("the pooled table is rank-deficient and reg is 0: see minimum_norm")
        M[c], M[pivot] = M[pivot], M[c]
        M[c] = [e / M[c][c] for e in M[c]]
        for r in range(d):
            if r != c and M[r][c] != 0:
                M[r] = [e - M[r][c] * f for e, f in zip(M[r], M[c], strict=True)]
    return np.array([float(M[c][d]) for c in range(d)])


def minimum_norm(sites, weighting="row"):
    """The shortest of all least-squares solutions (reg = 0) of the pooled weighted table."""
    root = np.sqrt(np.concatenate(row_weights(sites, weighting)))
    A = np.concatenate([unpack(site)[0] for site in sites])
    y = np.concatenate([unpack(site)[1] - unpack(site)[3] for site in sites])
    U, s, Vt = np.linalg.svd(root[:, None] * A, full_matrices=False)
    kept = s > max(A.shape) * np.finfo(float).eps * s[0]
    return Vt[kept].T @ ((U[:, kept].T @ (root * y)) / s[kept])


def logistic_high_precision(sites, reg=0.0, weighting="row"):
    """The logistic minimiser, y ∈ {0, 1}, right to about the last digit of a float64."""

    def loss(z, y):
        e = np.exp(-np.abs(z))
        p = np.where(z >= 0, 1, e) / (1 + e)
        return np.maximum(z, 0) + np.log1p(e) - y * z, p - y, e / (1 + e) ** 2

    return _newton_longdouble(loss, sites, reg, weighting)


def poisson_high_precision(sites, reg=0.0, weighting="row"):
    """The Poisson minimiser, right to about the last digit of a float64."""

    def loss(z, y):
        e = np.exp(z)
        return e - y * z, e - y, e

    return _newton_longdouble(loss, sites, reg, weighting)


def _newton_longdouble(loss, sites, reg, weighting):
    long = np.longdouble
    parts = [[part.astype(long) for part in unpack(site)] for site in sites]
    own = [w.sum() for _, _, w, _ in parts]
    totals = {"row": [sum(own)] * len(sites), "client": own}[weighting]
    v = np.concatenate([w / (total or 1) for (_, _, w, _), total in zip(parts, totals, strict=True)])
    A, y, _, offset = (np.concatenate(column) for column in zip(*parts, strict=True))
    d = A.shape[1]
    reg = np.broadcast_to(np.asarray(reg, dtype=long), (d,))

    def value(x):
        # a trial step may be too far for e^z; NaN and inf both fail the test below
        with np.errstate(over="ignore", invalid="ignore"):
            return v @ loss(A @ x + offset, y)[0] + reg @ x**2 / 2

    def grad(x):
        return A.T @ (v * loss(A @ x + offset, y)[1]) + reg * x

    def hess(x):
        return A.T @ ((v * loss(A @ x + offset, y)[2])[:, None] * A) + np.diag(reg)

    x = np.zeros(d, dtype=long)
    for _ in range(200):
        g = grad(x)
        p = -_solve_longdouble(hess(x), g)
        decrement = -(g @ p)
        t = long(1)
        if decrement > 1e-6 * (1 + abs(value(x))):
            while not value(x + t * p) <= value(x) - t * decrement / 10000:
                t = t / 2
        elif np.max(np.abs(grad(x + p))) >= np.max(np.abs(g)):
            # the quadratic phase ended: rounding is all that is left
            return x.astype(float)
        x = x + t * p
    raise ArithmeticError("200 Newton steps did not settle: separable data with reg=0, perhaps")


def _solve_longdouble(H, r):
    """H⁻¹r by Cholesky, in loops: LAPACK knows no long double."""
    d = len(r)
    C = np.zeros_like(H)
    for c in range(d):
        C[c, c] = np.sqrt(H[c, c] - C[c, :c] @ C[c, :c])
        for e in range(c + 1, d):
            C[e, c] = (H[e, c] - C[e, :c] @ C[c, :c]) / C[c, c]
    u, x = np.zeros_like(r), np.zeros_like(r)
    for c in range(d):
        u[c] = (r[c] - C[c, :c] @ u[:c]) / C[c, c]
    for c in reversed(range(d)):
        x[c] = (u[c] - C[c + 1 :, c] @ x[c + 1 :]) / C[c, c]
    return x
