"""The paper's four setups, as functions of a seed.

    min Σᵢ 1/Nᵢ Σⱼ loss(aⱼᵀx, yⱼ) + ρ/2·‖x‖²

Every client counts the same, and the intercept of setups 2 and 4 is a column of ones that is penalised like the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..fleet import Fleet
from ..losses import Loss, logistic, squared
from ..partition import by_label, by_response, cut, generator
from ..status import InvalidConfig
from .housing import housing
from .mushroom import mushroom
from .standardise import standardise, with_ones
from .synthetic import linear_synthetic, logistic_synthetic


@dataclass(frozen=True, eq=False)
class Setup:
    """A problem of the paper's: what each client holds, and what is minimised."""

    name: str
    sites: list[tuple[Any, np.ndarray]]
    loss: Loss
    reg: float
    seed: int
    weighting: str = "client"

    @property
    def n(self) -> int:
        return len(self.sites)

    @property
    def d(self) -> int:
        return self.sites[0][0].shape[1]

    def newton_clients(self, K: int, *, subset: int = 0) -> list[int]:
        """K clients at random; those for a smaller K are among them. Another `subset` is another draw."""
        if isinstance(K, bool) or not isinstance(K, int | np.integer) or not 0 <= K <= self.n:
            raise InvalidConfig(f"newton must be a number of clients from 0 to {self.n}, not {K!r}.")
        generator(subset)  # refuses what is no seed
        # a stream of its own: the choice does not depend on how many numbers the data took
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, subset)))
        return sorted(rng.permutation(self.n)[:K].tolist())

    def fleet(self, update: Any = "newton", *, newton: int | None = None, subset: int = 0, keep_rows: bool = False) -> Fleet:
        """The fleet; `newton=K` has K clients (see `newton_clients`) do Newton updates and the others gradient updates."""
        if newton is not None:
            chosen = self.newton_clients(newton, subset=subset)
            update = ["newton" if i in chosen else "gradient" for i in range(self.n)]
        return Fleet(self.sites, loss=self.loss, reg=self.reg, weighting=self.weighting, update=update, keep_rows=keep_rows)

    def __repr__(self) -> str:
        rows = sum(len(y) for _, y in self.sites)
        return f"Setup({self.name}, seed {self.seed}: n={self.n}, d={self.d}, {rows} rows, {self.loss.name}, reg={self.reg})"


def setup_1(seed: int = 0) -> Setup:
    """Least squares on synthetic data: 20 clients, d = 30, no penalty."""
    return Setup("linear, synthetic", linear_synthetic(_seed(seed)), squared, 0.0, seed)


def setup_2(seed: int = 0) -> Setup:
    """Least squares on Boston housing (see `housing` on its column B): 8 clients, d = 14, rows dealt by response in blocks."""
    A, y = housing()
    parts = by_response()(y, 8, _seed(seed))
    return Setup("linear, Boston housing", cut(with_ones(standardise(A)), y, parts), squared, 0.1, seed)


def setup_3(seed: int = 0) -> Setup:
    """Logistic regression on synthetic data: 20 clients, d = 30; eleven hold label 0 only, eight label 1 only, one both."""
    return Setup("logistic, synthetic", logistic_synthetic(_seed(seed)), logistic, 0.1, seed)


def setup_4(seed: int = 0) -> Setup:
    """Logistic regression on mushrooms: 8 clients, d = 99; four hold edible ones only, three poisonous ones only, one both."""
    A, y = mushroom()
    parts = by_label(one_label={0: 4, 1: 3}, both=1)(y, 8, _seed(seed))
    return Setup("logistic, mushroom", cut(with_ones(standardise(A)), y, parts), logistic, 0.1, seed)


SETUPS: dict[int, Callable[[int], Setup]] = {1: setup_1, 2: setup_2, 3: setup_3, 4: setup_4}


def _seed(seed: Any) -> int:
    """A plain number: a Generator could not be asked twice for the same clients."""
    if isinstance(seed, np.random.Generator):
        raise InvalidConfig("seed must be a whole number, 0 or more.")
    generator(seed)
    return int(seed)
