"""FedHybrid on quadratics fᵢ(x) = ½xᵀHᵢx − cᵢᵀx as one affine map, and its rate.

With x₀ = mean(x) − mean(λ)/μ put in (it holds after every round), a round is state⁺ = M·state + q on
state = (x₁ … xₙ, λ₁ … λₙ). The blocks of client i, with Dᵢ = I or Hᵢ + μI:

    xᵢ⁺ = xᵢ − aᵢDᵢ⁻¹(Hᵢ + μI)xᵢ + aᵢDᵢ⁻¹λᵢ + aᵢμDᵢ⁻¹x₀ + aᵢDᵢ⁻¹cᵢ
    λᵢ⁺ = λᵢ − bᵢDᵢxᵢ + bᵢDᵢx₀

Where ΣHᵢ is positive definite M has no eigenvalue 1, and its spectral radius is the asymptotic rate.
"""

import numpy as np


class QuadraticClient:
    """f(x) = ½xᵀHx − cᵀx."""

    def __init__(self, H, c):
        self.H, self.c = np.array(H, dtype=float), np.array(c, dtype=float)

    def value(self, x):
        return float(x @ self.H @ x) / 2 - float(self.c @ x)

    def grad(self, x):
        return self.H @ x - self.c

    def hess(self, x):
        return self.H


def iteration(H, c, kinds, mu, a, b):
    """M, (2nd, 2nd), and q, (2nd,); H and c are lists of the clients' Hᵢ and cᵢ."""
    n, d = len(H), len(c[0])
    eye = np.eye(d)
    M, q = np.zeros((2 * n * d, 2 * n * d)), np.zeros(2 * n * d)

    def x_at(i):
        return slice(i * d, (i + 1) * d)

    def lam_at(i):
        return slice((n + i) * d, (n + i + 1) * d)

    for i in range(n):
        D = {"gradient": eye, "newton": H[i] + mu * eye}[kinds[i]]
        D_inv = np.linalg.inv(D)
        M[x_at(i), x_at(i)] += eye - a[i] * D_inv @ (H[i] + mu * eye)
        M[x_at(i), lam_at(i)] += a[i] * D_inv
        M[lam_at(i), lam_at(i)] += eye
        M[lam_at(i), x_at(i)] += -b[i] * D
        for j in range(n):
            M[x_at(i), x_at(j)] += a[i] * mu * D_inv / n
            M[x_at(i), lam_at(j)] += -a[i] * D_inv / n
            M[lam_at(i), x_at(j)] += b[i] * D / n
            M[lam_at(i), lam_at(j)] += -b[i] * D / (mu * n)
        q[x_at(i)] = a[i] * D_inv @ c[i]
    return M, q


def spectral_radius(H, kinds, mu, a, b):
    """The largest modulus of an eigenvalue of M: the factor an error shrinks by in a round, in the long run."""
    M, _ = iteration(H, [np.zeros(len(H_i)) for H_i in H], kinds, mu, a, b)
    return float(np.max(np.abs(np.linalg.eigvals(M))))
