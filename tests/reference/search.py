"""An independent search for FedH-N's best setting on least squares: literal rounds in NumPy, random settings, then Nelder and Mead.

Shares nothing with the library: its own Gram matrices, its own rounds, its own idea of where to look next.
"""

import numpy as np
import scipy.optimize


class LeastSquares:
    """Σ over clients of the mean over rows of ½(a·x − y)², each client's matrices formed once."""

    def __init__(self, sites):
        self.H = [A.T @ A / len(y) for A, y in sites]
        self.c = [A.T @ y / len(y) for A, y in sites]
        self.total = sum(self.H)
        self.x_star = np.linalg.solve(self.total, sum(self.c))
        self.drop = self.x_star @ self.total @ self.x_star

    def rounds(self, mu, a, b, most, target=1e-8):
        """FedHybrid with Newton updates at every client, from zero: the rounds to a gap of `target`, with the part of the last one.

        Of a setting that does not get there: `most`, and the decades that are missing, so that a search knows which way to go.
        """
        d = len(self.x_star)
        D = [H + mu * np.eye(d) for H in self.H]
        inverse = [np.linalg.inv(matrix) for matrix in D]
        x = [np.zeros(d) for _ in self.H]
        lam = [np.zeros(d) for _ in self.H]
        x0, before = np.zeros(d), 1.0
        for k in range(1, most + 1):
            z = np.zeros(d)
            for i, H in enumerate(self.H):
                r = H @ x[i] - self.c[i] - lam[i] + mu * (x[i] - x0)
                x_next = x[i] - a * (inverse[i] @ r)
                lam[i] = lam[i] + b * (D[i] @ (x0 - x[i]))
                x[i] = x_next
                z += x[i] - lam[i] / mu
            x0 = z / len(self.H)
            gap = (x0 - self.x_star) @ self.total @ (x0 - self.x_star) / self.drop
            if not gap < 1e3:
                return most + 1e3
            if gap <= target:
                return k - 1 + np.log(before / target) / np.log(before / gap)
            before = gap
        return most + 100 * np.log10(before / target)


def best_setting(problem, rng, draws=150, refinements=3, most=200):
    """(mu, a, b) and the whole rounds it takes; in the ranges of the paper's grid: mu in [1e-4, 10], steps in [1e-4, 1]."""
    low, high = np.log([1e-4, 1e-4, 1e-4]), np.log([10.0, 1.0, 1.0])

    def cost(logs):
        return problem.rounds(*np.exp(np.clip(logs, low, high)), most)

    tried = rng.uniform(low, high, size=(draws, 3))
    tried[: draws // 2, 1] = rng.uniform(np.log(0.1), 0.0, size=draws // 2)  # half of them near full Newton steps
    ranked = sorted(tried, key=cost)
    ends = [
        scipy.optimize.minimize(cost, start, method="Nelder-Mead", options={"maxfev": 120, "xatol": 1e-3, "fatol": 0.05})
        for start in ranked[:refinements]
    ]
    best = min(ends, key=lambda end: end.fun)
    return tuple(np.exp(np.clip(best.x, low, high))), int(np.ceil(best.fun))
