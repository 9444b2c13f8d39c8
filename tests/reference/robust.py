"""Huber regression with its scale, from the pooled table: Newton's method on all unknowns at once, on a table that is seen whole."""

import numpy as np


def huber_with_scale(X, y, w, *, epsilon, alpha):
    """(coef, intercept, σ): argmin Σ w(σ + σH(r/σ)) + α‖coef‖²,  H(t) = t² where |t| ≤ ε, else 2ε|t| − ε²."""
    mean, size = X.mean(axis=0), X.std(axis=0)
    A = np.column_stack([(X - mean) / size, np.ones(len(X))])
    penalty = np.append(alpha / size**2, 0.0)
    p = A.shape[1]

    def value(theta):
        sigma = theta[p]
        if sigma <= 0:
            return np.inf
        t = np.abs(y - A @ theta[:p]) / sigma
        return np.sum(w * sigma * (1.0 + np.where(t <= epsilon, t**2, 2.0 * epsilon * t - epsilon**2))) + penalty @ theta[:p] ** 2

    start = np.linalg.lstsq(A, y, rcond=None)[0]
    theta = np.append(start, np.std(y - A @ start))
    for _ in range(500):
        sigma = theta[p]
        t = (y - A @ theta[:p]) / sigma
        inner = np.abs(t) <= epsilon
        slopes = -A.T @ (w * np.clip(2.0 * t, -2.0 * epsilon, 2.0 * epsilon)) + 2.0 * penalty * theta[:p]
        gradient = np.append(slopes, np.sum(w * (1.0 - np.minimum(t**2, epsilon**2))))
        moved = np.column_stack([A[inner], t[inner]]) * np.sqrt(w[inner])[:, None]
        hessian = 2.0 / sigma * moved.T @ moved + np.diag(np.append(2.0 * penalty, 0.0))
        damping = min(1.0, np.linalg.norm(gradient) / np.sum(w)) * np.trace(hessian) / len(hessian)  # 0 at the end: Newton's own steps
        step = -np.linalg.solve(hessian + (1e-3 * damping + 1e-300) * np.eye(len(hessian)), gradient)
        length = 1.0
        while value(theta + length * step) > value(theta) * (1.0 + 1e-15) and length > 1e-12:
            length *= 0.5
        theta = theta + length * step
        if np.abs(length * step).max() <= 1e-15 * np.abs(theta).max():
            break
    if np.linalg.norm(gradient) > 1e-9 * np.sum(w):
        raise AssertionError("the reference did not converge")
    coef = theta[: p - 1] / size
    return coef, theta[p - 1] - coef @ mean, theta[p]
