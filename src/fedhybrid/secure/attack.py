"""Our own attack, so that labels are measured and not claimed: a site's data from the vectors that it has sent.

A server that knows the algorithm replays a gradient-type FedHybrid client from its z alone. With x and λ of the start known,

    λ⁺ = λ + b(x₀ − x),    x⁺ = z + λ⁺/μ,    ∇f(x) = (x − x⁺)/a + λ − μ(x − x₀)

it has the site's gradient at a new point in every round. For least squares ∇f(x) = Hx − c: after one round from x = 0 it knows c, after
d + 1 rounds the Gram matrix H; for a site with one row, H is that row.
"""

from collections.abc import Sequence

import numpy as np


def replay(x0: np.ndarray, z: np.ndarray, *, mu: float, a: float, b: float) -> tuple[np.ndarray, np.ndarray]:
    """The points at which a site has been, and its gradients there. Row k of x0 is what the server sent, row k of z what came back."""
    x, lam = x0[0], np.zeros_like(x0[0])
    points, gradients = [], []
    for sent, came in zip(x0, z, strict=True):
        lam_next = lam + b * (sent - x)
        x_next = came + lam_next / mu
        points.append(x)
        gradients.append((x - x_next) / a + lam - mu * (x - sent))
        x, lam = x_next, lam_next
    return np.array(points), np.array(gradients)


def gram(points: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """H and c of ∇f(x) = Hx − c, by least squares; late rounds, whose moves are short, count as much as early ones."""
    moves, changes = np.diff(points, axis=0), np.diff(gradients, axis=0)
    lengths = np.linalg.norm(moves, axis=1)
    used = lengths > 1e-9 * np.max(lengths, initial=0.0)  # shorter ones are rounding
    unit = moves[used] / lengths[used, None]
    H = np.linalg.lstsq(unit, changes[used] / lengths[used, None], rcond=1e-13)[0].T
    H = (H + H.T) / 2
    return H, H @ points[0] - gradients[0]


def row(H: np.ndarray) -> np.ndarray:
    """The row of a site that has only one, up to its sign."""
    values, vectors = np.linalg.eigh(H)
    return np.sqrt(max(values[-1], 0.0)) * vectors[:, -1]


def seen(words: Sequence[np.ndarray], scale: int) -> np.ndarray:
    """What the server can make of a site's masked words: values after the first message, changes after the others."""
    return np.cumsum([np.ldexp(word.view(np.int64).astype(np.float64), -scale) for word in words], axis=0)


def relative_error(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))
