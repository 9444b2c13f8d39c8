"""The paper's two generators. Every number comes from one Generator, so that a seed gives the same bits again."""

from typing import Any, NamedTuple

import numpy as np

from ..arguments import whole
from ..partition import generator
from ..status import InvalidConfig

Sites = list[tuple[np.ndarray, np.ndarray]]
TRIAL = 1000  # rows that show how often a model gives each label
SELDOM = 0.01  # a label below this part of them "almost never" comes


def linear_synthetic(seed: Any, *, n: int = 20, d: int = 30) -> Sites:
    """Least squares with a scale of each client's own (setup 1).

    Aᵢ = ηᵢ·U(0, 1],  ηᵢ ~ N(0, 1);   yᵢ = Aᵢ·x₀ + N(0, ½²),  x₀ ~ N(0, I);   Nᵢ = ⌊lognormal(4, 2)⌋ + 50
    """
    n, d, rng = whole("n", n), whole("d", d), generator(seed)
    sizes = _sizes(n, rng)
    truth = rng.normal(size=d)
    sites = []
    for size in sizes:
        A = rng.normal() * (1.0 - rng.random((size, d)))  # random() is in [0, 1)
        sites.append((A, A @ truth + 0.5 * rng.normal(size=size)))
    return sites


def logistic_synthetic(seed: Any, *, d: int = 30, zeros: int = 11, ones: int = 8, both: int = 1) -> Sites:
    """Synthetic(½, ½) of Li et al. (FedProx) with two classes; clients that hold one label only, then `both` with half of each (setup 3).

        u ~ N(0, ½),  B ~ N(0, ½)  (variances);   W ~ N(u, 1),  b ~ N(u, 1),  v ~ N(B, 1);
        rows a ~ N(v, diag(j^−1.2)),  y = argmax(Wᵀa + b);   Nᵢ = ⌊lognormal(4, 2)⌋ + 50

    Rows of another label than wanted are drawn again. Where a model almost never gives its client's only label, its two classes change
    places (the columns of W and of b: of W alone it might not help); one that is to give both, and does not, is drawn again.
    """
    d, rng = whole("d", d), generator(seed)
    if any(not isinstance(count, int | np.integer) or count < 0 for count in (zeros, ones, both)) or zeros + ones + both < 1:
        raise InvalidConfig("logistic_synthetic: zeros, ones and both are whole numbers of clients, and at least one is positive.")
    sites = []
    for label, size in zip([0] * zeros + [1] * ones + [None] * both, _sizes(zeros + ones + both, rng), strict=True):
        model = _draw_model(d, rng)
        if label is None:
            while not SELDOM <= _part_of_ones(model, rng) <= 1 - SELDOM:
                model = _draw_model(d, rng)
            parts = [_draw_rows(model, 0, size // 2, rng), _draw_rows(model, 1, size - size // 2, rng)]
            order = rng.permutation(size)
            sites.append((np.concatenate(parts)[order], np.repeat([0.0, 1.0], [size // 2, size - size // 2])[order]))
            continue
        part = _part_of_ones(model, rng)
        if (part if label == 1 else 1 - part) < SELDOM:
            model = model._replace(W=model.W[:, ::-1], b=model.b[::-1])
        sites.append((_draw_rows(model, label, size, rng), np.full(size, float(label))))
    return sites


class Model(NamedTuple):
    """One client's distribution of rows and labels."""

    W: np.ndarray  # (d, 2)
    b: np.ndarray  # (2,)
    v: np.ndarray  # (d,)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        deviation = np.arange(1, len(self.v) + 1) ** -0.6
        A = self.v + deviation * rng.normal(size=(count, len(self.v)))
        return A, np.argmax(A @ self.W + self.b, axis=1)


def _draw_model(d: int, rng: np.random.Generator) -> Model:
    u, B = np.sqrt(0.5) * rng.normal(size=2)
    return Model(rng.normal(u, 1.0, (d, 2)), rng.normal(u, 1.0, 2), rng.normal(B, 1.0, d))


def _part_of_ones(model: Model, rng: np.random.Generator) -> float:
    return float(np.mean(model.draw(TRIAL, rng)[1]))


def _draw_rows(model: Model, label: int, count: int, rng: np.random.Generator) -> np.ndarray:
    kept, have = [], 0
    while have < count:
        A, labels = model.draw(TRIAL, rng)
        kept.append(A[labels == label])
        have += len(kept[-1])
    return np.concatenate(kept)[:count]


def _sizes(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.floor(rng.lognormal(4.0, 2.0, n)).astype(int) + 50
