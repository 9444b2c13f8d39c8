"""Problem (1): the clients' functions fᵢ, their gradients and their Hessians, one row after another.

    fᵢ(x) = Σⱼ vᵢⱼ · loss(aᵢⱼ·x + offsetᵢⱼ, yᵢⱼ) + ½ Σ_c (reg_c/n) x_c²

A site is (A, y), (A, y, w) or (A, y, w, offset). The row weights are vᵢⱼ = wᵢⱼ / Σ w of all sites (weighting "row")
or wᵢⱼ / Σ w of the own site (weighting "client"). An empty site has its share of the regulariser and nothing else.

`LoopClient` and `SoftmaxLoopClient` loop over rows; `VectorClient` and `SoftmaxVectorClient` say the same in matrix
expressions, recomputed on every call, as a fair NumPy opponent for benchmarks.
"""

import math

import numpy as np
from scipy.special import expit, logsumexp, softmax


def squared(z, y, delta):
    """Value, first and second derivative in the prediction z; so do its neighbours."""
    return (z - y) ** 2 / 2, z - y, 1.0


def logistic(z, y, delta):
    # e^−|z| never overflows
    e = math.exp(-abs(z))
    p = 1 / (1 + e) if z >= 0 else e / (1 + e)
    return max(z, 0.0) + math.log1p(e) - y * z, p - y, e / (1 + e) ** 2


def poisson(z, y, delta):
    # math.exp raises beyond 709, where a line search only needs to hear "too far"
    e = math.exp(z) if z < 709 else math.inf
    return e - y * z, e - y, e


def huber(z, y, delta):
    r = z - y
    if abs(r) <= delta:
        return r * r / 2, r, 1.0
    return delta * (abs(r) - delta / 2), math.copysign(delta, r), 0.0


LOSSES = {"squared": squared, "logistic": logistic, "poisson": poisson, "huber": huber}


class LoopClient:
    """One client with a loss of a scalar prediction; `reg` is the client's own share, reg/n, one entry a feature."""

    def __init__(self, A, y, v, offset, reg, loss, delta):
        self.A, self.y, self.v, self.offset, self.reg = A, y, v, offset, reg
        self.loss, self.delta = LOSSES[loss], delta

    def rows(self, x):
        for a, y, v, offset in zip(self.A, self.y, self.v, self.offset, strict=True):
            yield a, v, self.loss(float(a @ x) + float(offset), float(y), self.delta)

    def value(self, x):
        total = float(self.reg @ (x * x)) / 2
        for _, v, (value, _, _) in self.rows(x):
            total += v * value
        return total

    def grad(self, x):
        g = self.reg * x
        for a, v, (_, d1, _) in self.rows(x):
            g = g + v * d1 * a
        return g

    def hess(self, x):
        H = np.diag(self.reg)
        for a, v, (_, _, d2) in self.rows(x):
            H = H + v * d2 * np.outer(a, a)
        return H


class SoftmaxLoopClient:
    """One client with loss(z, y) = log Σₖ e^zₖ − z_y; x lists the free entries of the features × classes table by rows.

    The entry of class 0 is fixed at 0 for a feature without regulariser: without it, adding a constant to the
    feature's row would change no prediction.
    """

    def __init__(self, A, y, v, offset, reg, classes):
        self.A, self.y, self.v, self.offset, self.reg = A, y, v, offset, reg
        self.free = np.ones((len(reg), classes), dtype=bool)
        for c in range(len(reg)):
            if reg[c] == 0:
                self.free[c, 0] = False

    def table(self, x):
        X = np.zeros(self.free.shape)
        X[self.free] = x
        return X

    def rows(self, X):
        for a, y, v, offset in zip(self.A, self.y, self.v, self.offset, strict=True):
            z = a @ X + offset
            top = max(z)
            e = np.array([math.exp(z_k - top) for z_k in z])
            yield a, int(y), v, z, top + math.log(sum(e)), e / sum(e)

    def value(self, x):
        X = self.table(x)
        total = float(self.reg @ (X * X).sum(axis=1)) / 2
        for _, y, v, z, log_sum, _ in self.rows(X):
            total += v * (log_sum - z[y])
        return total

    def grad(self, x):
        X = self.table(x)
        G = self.reg[:, None] * X
        for a, y, v, _, _, p in self.rows(X):
            p[y] -= 1
            G = G + v * np.outer(a, p)
        return G[self.free]

    def hess(self, x):
        X = self.table(x)
        H = np.diag(np.repeat(self.reg, X.shape[1]))
        for a, _, v, _, _, p in self.rows(X):
            H = H + v * np.kron(np.outer(a, a), np.diag(p) - np.outer(p, p))
        keep = np.flatnonzero(self.free)
        return H[np.ix_(keep, keep)]


class VectorClient(LoopClient):
    """`LoopClient` in matrix expressions."""

    def __init__(self, A, y, v, offset, reg, loss, delta):
        super().__init__(A, y, v, offset, reg, loss, delta)
        self.loss = loss

    def value(self, x):
        z, y, delta = self.A @ x + self.offset, self.y, self.delta
        r = np.abs(z - y)
        with np.errstate(over="ignore"):
            values = {
                "squared": lambda: r**2 / 2,
                "logistic": lambda: np.logaddexp(0, z) - y * z,
                "poisson": lambda: np.exp(z) - y * z,
                "huber": lambda: np.where(r <= delta, r**2 / 2, delta * (r - delta / 2)),
            }[self.loss]()
        return float(self.v @ values) + float(self.reg @ x**2) / 2

    def grad(self, x):
        z, y, delta = self.A @ x + self.offset, self.y, self.delta
        d1 = {
            "squared": lambda: z - y,
            "logistic": lambda: expit(z) - y,
            "poisson": lambda: np.exp(z) - y,
            "huber": lambda: np.clip(z - y, -delta, delta),
        }[self.loss]()
        return self.A.T @ (self.v * d1) + self.reg * x

    def hess(self, x):
        z, y, delta = self.A @ x + self.offset, self.y, self.delta
        d2 = {
            "squared": lambda: np.ones_like(z),
            "logistic": lambda: expit(z) * expit(-z),
            "poisson": lambda: np.exp(z),
            "huber": lambda: np.where(np.abs(z - y) <= delta, 1.0, 0.0),
        }[self.loss]()
        return self.A.T @ ((self.v * d2)[:, None] * self.A) + np.diag(self.reg)


class SoftmaxVectorClient(SoftmaxLoopClient):
    """`SoftmaxLoopClient` in matrix expressions."""

    def predictions(self, X):
        return self.A @ X + (self.offset[:, None] if self.offset.ndim == 1 else self.offset)

    def value(self, x):
        X = self.table(x)
        Z = self.predictions(X)
        values = logsumexp(Z, axis=1) - Z[np.arange(len(Z)), self.y.astype(int)]
        return float(self.v @ values) + float(self.reg @ (X**2).sum(axis=1)) / 2

    def grad(self, x):
        X = self.table(x)
        P = softmax(self.predictions(X), axis=1)
        P[np.arange(len(P)), self.y.astype(int)] -= 1
        return (self.A.T @ (self.v[:, None] * P) + self.reg[:, None] * X)[self.free]

    def hess(self, x):
        X = self.table(x)
        P = softmax(self.predictions(X), axis=1)
        S = -P[:, :, None] * P[:, None, :] + P[:, :, None] * np.eye(P.shape[1])
        H = np.einsum("j,jc,je,jkl->ckel", self.v, self.A, self.A, S, optimize=True).reshape(X.size, X.size)
        keep = np.flatnonzero(self.free)
        return (H + np.diag(np.repeat(self.reg, X.shape[1])))[np.ix_(keep, keep)]


def unpack(site):
    """A, y, w, offset of a site, with the weights (1) and offsets (0) it leaves out."""
    A, y = np.asarray(site[0], dtype=float), np.asarray(site[1], dtype=float)
    w = np.ones(len(y)) if len(site) < 3 or site[2] is None else np.asarray(site[2], dtype=float)
    offset = np.zeros(len(y)) if len(site) < 4 or site[3] is None else np.asarray(site[3], dtype=float)
    return A, y, w, offset


def row_weights(sites, weighting):
    """The vᵢⱼ, one array a site."""
    own = [sum(unpack(site)[2].tolist()) for site in sites]
    totals = {"row": [sum(own)] * len(sites), "client": own}[weighting]
    # a total of 0 means no rows, or rows that all weigh nothing
    return [unpack(site)[2] / (total if total > 0 else 1.0) for site, total in zip(sites, totals, strict=True)]


def clients(sites, loss, reg=0.0, weighting="row", delta=1.0, classes=None, vector=False):
    """The list of clients: objects with value(x), grad(x), hess(x). `reg` is a number or one number a feature."""
    n, features = len(sites), unpack(sites[0])[0].shape[1]
    share = np.broadcast_to(np.asarray(reg, dtype=float), (features,)) / n
    if loss == "softmax" and classes is None:
        classes = 1 + max(int(y) for site in sites for y in site[1])
    out = []
    for site, v in zip(sites, row_weights(sites, weighting), strict=True):
        A, y, _, offset = unpack(site)
        if loss == "softmax":
            make = SoftmaxVectorClient if vector else SoftmaxLoopClient
            out.append(make(A, y, v, offset, share, classes))
        else:
            make = VectorClient if vector else LoopClient
            out.append(make(A, y, v, offset, share, loss, delta))
    return out
