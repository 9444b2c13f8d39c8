"""How much rounding can add to Δᵏ⁺¹ ≤ (1 − ρ)Δᵏ, when both sides are computed from a computed run.

Norms are over all clients, maxima over clients; u = c·eps with c = N + d + n + 20 operations on the way to any one number (a sum over
N rows of products of d terms, a mean over n, a few for the loss), eps twice the unit roundoff. X and Λ are the largest norms of an x
and a λ. Client i's gradient is a sum of terms of total size at most αᵢ + βᵢ‖x‖,

    αᵢ = Σⱼ wⱼRⱼ(|φ′(0)| + 2·ell·|offsetⱼ|)      βᵢ = 2·ell·Σⱼ wⱼRⱼ² + max regᵢ      Rⱼ = ‖aⱼ‖

(|φ′(z)| ≤ |φ′(0)| + ell·|z|, and z itself is off by u(Rⱼ‖x‖ + |offsetⱼ|), which φ′ passes on times ell), and its Hessian one of terms
of size at most hᵢ = βᵢ(1 + c·max|z|), since |φ‴| ≤ cφ″ passes on the error of z. So ∇ₓL is known to √n·u·G, G = max(αᵢ + βᵢX) + 2Λ + 2μX.

1. Evaluation. x̂ is computed, with ‖∇ₓL(x̂, λ)‖ ≤ r = the computed norm + √n·u·G, and x* with ‖Σ∇fᵢ(x*)‖ ≤ q likewise. Redoing the
derivation of contraction.py's formulas with these residuals, e = ‖x − x̂‖ and s = ‖x̂ − 1⊗x*‖,

    |error of Δx| ≤ r·e + r²/2m + u(h + μ)e²
    |error of Δλ| ≤ r·s + r²/2m + q²/2nm + u(h + μ)s² + (n/μ)(‖mean λ‖δ + δ²/2),   δ = n·eps·Λ
    E = 13·(the second) + (the first)

2. The run. A round's x and λ are the exact ones of the values before it, but for

    ηx = 2√n·eps(Xᵏ + Xᵏ⁺¹) + ā(√n·u·G + (vκ + cg)(ℓ + μ)e),   ā = max‖aᵢDᵢ⁻¹‖,  κ = max (hᵢ + μ)/(mᵢ + μ)
    ηλ = 2√n·eps(Λᵏ + Λᵏ⁺¹) + b̄(√n·u(X + Λ/μ) + u‖Wx̃‖),        b̄ = max‖bᵢDᵢ‖

where v = u + 4d²·eps is for a Cholesky solve, and cg = 1e-13 the tolerance of newton-cg's. Δx has ∇ₓ = ∇ₓL, of norm at most
√(2(ℓ+μ)Δx), ∇λ = −M(x − x̂), of norm at most √(2Δx/m), and second derivatives below ℓ + μ, 1 and 1/m; Δλ has a gradient of norm at
most √(2Δλ/μ), and a second derivative below 1/μ. Hence

    P = √(2(ℓ+μ)Δx)ηx + √(2Δx/m)ηλ + ½(ℓ+μ)ηx² + ηxηλ + ηλ²/2m + 13(√(2Δλ/μ)ηλ + ηλ²/2μ)     at k + 1

and slackᵏ = (1 − ρ)Eᵏ + Eᵏ⁺¹ + Pᵏ⁺¹ + 4·eps·Δᵏ, with 1 for 1 − ρ.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..fleet import Fleet
from ..numerics import scope
from ..validation import row_norms

EPS = float(np.finfo(float).eps)
CG_TOLERANCE = 1e-13  # curvature.MatrixFree


class Measured(NamedTuple):
    """Points of a run, K of them, and what was computed there."""

    x: np.ndarray
    lam: np.ndarray
    x_star: np.ndarray
    at_optimum: float  # ‖Σ∇fᵢ(x*)‖
    delta_lam: np.ndarray
    delta_x: np.ndarray
    x_hat: np.ndarray
    residual: np.ndarray  # ‖∇ₓL(x̂, λ)‖
    settled: np.ndarray

    @property
    def delta(self) -> np.ndarray:
        return 13 * self.delta_lam + self.delta_x


class Magnitudes(NamedTuple):
    """The constants of the derivation above that do not change from round to round."""

    mu: float
    m: float
    ell: float
    u: float
    alpha: np.ndarray
    beta: np.ndarray
    m_each: np.ndarray
    bend: float
    row_norm: float
    offset: float
    a_bar: float
    b: np.ndarray
    newton: np.ndarray
    cg: float

    @classmethod
    def of(cls, fleet: Fleet, mu: float, a: Any, b: Any, m: np.ndarray, ell: np.ndarray) -> "Magnitudes":
        newton = np.array([kind != "gradient" for kind in fleet.updates])
        a, b = (np.where(newton, size[1], size[0]) if isinstance(size, tuple) else np.broadcast_to(size, fleet.n) for size in (a, b))
        alpha, beta = zip(*(_gradient_terms(fleet, i) for i in range(fleet.n)), strict=True)
        most_rows = max(len(site.y) for site in fleet.sites)
        return cls(
            mu=mu,
            m=float(m.min()),
            ell=float(ell.max()),
            u=(most_rows + fleet.d + fleet.n + 20) * EPS,
            alpha=np.array(alpha),
            beta=np.array(beta),
            m_each=m,
            bend=float(fleet.loss.bend or 0.0),
            row_norm=fleet.row_norm,
            offset=max(float(np.abs(site.offset).max(initial=0.0)) for site in fleet.sites),
            a_bar=float(np.max(np.where(newton, a / (m + mu), a))),
            b=b,
            newton=newton,
            cg=CG_TOLERANCE if "newton-cg" in fleet.updates else 0.0,
        )


def _gradient_terms(fleet: Fleet, i: int) -> tuple[float, float]:
    site, w = fleet.sites[i], fleet.row_weights(i)
    R = np.hypot(row_norms(site.A), float(fleet.intercept))
    share = float(fleet.reg.max()) / fleet.n
    if len(site.y) == 0:
        return 0.0, share
    with scope():
        zero = jnp.zeros((len(site.y), fleet.K) if fleet.K else len(site.y))
        at_zero = np.asarray(fleet.loss.d1(zero, jnp.asarray(site.y)))  # type: ignore[union-attr]  # bounds has refused a RowLoss
    slope = np.linalg.norm(at_zero.reshape(len(site.y), -1), axis=1)
    ell = fleet.loss.ell or 0.0
    return float(np.sum(w * R * (slope + 2 * ell * np.abs(site.offset)))), float(2 * ell * np.sum(w * R**2)) + share


def slack_of(size: Magnitudes, found: Measured) -> np.ndarray:
    """slackᵏ for every round."""
    mu, m, u = size.mu, size.m, size.u
    n = found.x.shape[1]
    X = np.maximum(_largest(found.x), np.maximum(_largest(found.x_hat), np.linalg.norm(found.x_star)))
    Lam = _largest(found.lam)
    e, s = _norm(found.x - found.x_hat), _norm(found.x_hat - found.x_star)
    h = size.beta * (1 + size.bend * (size.row_norm * X[:, None] + size.offset))
    G = np.max(size.alpha + size.beta * X[:, None], axis=1) + 2 * Lam + 2 * mu * X

    r = found.residual + np.sqrt(n) * u * G
    q = found.at_optimum + n * u * G
    mean_lam, off = np.linalg.norm(found.lam.mean(axis=1), axis=1), n * EPS * Lam
    error_x = r * e + r**2 / (2 * m) + u * (h.max(axis=1) + mu) * e**2
    error_lam = r * s + r**2 / (2 * m) + q**2 / (2 * n * m) + u * (h.max(axis=1) + mu) * s**2 + n / mu * (mean_lam * off + off**2 / 2)
    E = 13 * error_lam + error_x

    kappa = np.max((h + mu) / (size.m_each + mu), axis=1)
    b_bar = np.max(np.where(size.newton, size.b * (h + mu), size.b), axis=1)
    apart = _norm(found.x - (found.x.mean(axis=1) - found.lam.mean(axis=1) / mu)[:, None, :])
    in_x = size.a_bar * (np.sqrt(n) * u * G + ((u + 4 * found.x.shape[2] ** 2 * EPS) * kappa + size.cg) * (size.ell + mu) * e)
    in_lam = b_bar * (np.sqrt(n) * u * (X + Lam / mu) + u * apart)
    eta_x = 2 * np.sqrt(n) * EPS * (X[:-1] + X[1:]) + in_x[:-1]
    eta_lam = 2 * np.sqrt(n) * EPS * (Lam[:-1] + Lam[1:]) + in_lam[:-1]
    delta_x, delta_lam = (found.delta_x + error_x)[1:], (found.delta_lam + error_lam)[1:]
    smooth = size.ell + mu
    P = np.sqrt(2 * smooth * delta_x) * eta_x + np.sqrt(2 * delta_x / m) * eta_lam
    P += smooth * eta_x**2 / 2 + eta_x * eta_lam + eta_lam**2 / (2 * m)
    P += 13 * (np.sqrt(2 * delta_lam / mu) * eta_lam + eta_lam**2 / (2 * mu))
    return E[:-1] + E[1:] + P + 4 * EPS * found.delta[:-1]


def _norm(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x.reshape(len(x), -1), axis=1)


def _largest(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=2).max(axis=1)
