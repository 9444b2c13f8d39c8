"""The paper's figures, declared: which setup, which seed, which methods. `fedhybrid reproduce` makes them.

Figures 1 and 3 compare methods, 2 and 4 the number K of Newton clients, as in the paper. Three of our own follow: what local steps do to
FedAvg, every method of the library on one footing, and FedH-N beside its rivals over three seeds.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from ..algorithms import ALGORITHMS
from ..datasets.setups import SETUPS
from ..fleet import Fleet
from .candidates import Candidate, candidate, fedh
from .study import Problem

SIZES = {1: 20, 2: 8, 3: 20, 4: 8}  # clients
RIVALS = ("gd", "disco", "lbfgs")
SEEDS = (0, 1, 2)


class Figure(NamedTuple):
    """One picture: candidates on one problem."""

    title: str
    setup: int
    seed: int
    candidates: Callable[[int], list[Candidate]]  # from the number of clients


class Comparison(NamedTuple):
    """One table: candidates on several problems and seeds."""

    title: str
    setups: tuple[int, ...]
    seeds: tuple[int, ...]
    candidates: Callable[[int], list[Candidate]]


def methods(n: int) -> list[Candidate]:
    """FedAvg as the paper means it (one full gradient step a round, which is gradient descent), DiSCO damped as in its paper and
    undamped as in practice, and FedHybrid; and L-BFGS."""
    damped = candidate("disco", n)._replace(label="DiSCO (damped)", factory=functools.partial(ALGORITHMS["disco"].factory, damped=True))
    return [*(candidate(name, n) for name in RIVALS), damped, fedh(0, n), fedh(n // 2, n), fedh(n, n)]


def hybrids(n: int) -> list[Candidate]:
    """FedH-K for K from none to all clients."""
    return [fedh(K, n) for K in (0, n // 4, n // 2, 3 * n // 4, n)]


def local_steps(n: int) -> list[Candidate]:
    """What several local steps a round do where data are not IID, and what corrects it."""

    def several(name: str, steps: int) -> Candidate:
        chosen = candidate(name, n)
        factory = functools.partial(ALGORITHMS[name].factory, local_steps=steps)
        return chosen._replace(label=f"{chosen.label.split('(')[0]}({steps})", factory=factory)

    return [candidate("gd", n), several("fedavg", 5), several("fedavg", 20), candidate("fedprox", n), several("scaffold", 5), fedh(n, n)]


def everything(n: int) -> list[Candidate]:
    return [candidate(name, n) for name in ALGORITHMS if name != "fedhybrid"] + [fedh(0, n), fedh(n // 2, n), fedh(n, n)]


def second_order(n: int) -> list[Candidate]:
    return [fedh(n, n), *(candidate(name, n) for name in RIVALS)]


FIGURES: dict[str, Figure | Comparison] = {
    "fig1a": Figure("Methods on setup 1: linear, synthetic", 1, 0, methods),
    "fig1b": Figure("Methods on setup 4: logistic, mushroom", 4, 0, methods),
    "fig2a": Figure("FedH-K on setup 2: linear, Boston housing", 2, 0, hybrids),
    "fig2b": Figure("FedH-K on setup 3: logistic, synthetic", 3, 0, hybrids),
    "fig3a": Figure("Methods on setup 1, another seed", 1, 1, methods),
    "fig3b": Figure("Methods on setup 3: logistic, synthetic", 3, 0, methods),
    "fig4a": Figure("FedH-K on setup 1: linear, synthetic", 1, 0, hybrids),
    "fig4b": Figure("FedH-K on setup 1, another seed", 1, 1, hybrids),
    "fig4c": Figure("FedH-K on setup 2, another seed", 2, 1, hybrids),
    "fig4d": Figure("FedH-K on setup 4: logistic, mushroom", 4, 0, hybrids),
    "local": Figure("Local steps on setup 3: logistic, synthetic", 3, 0, local_steps),
    "all": Figure("Every method on setup 2: linear, Boston housing", 2, 0, everything),
    "table": Comparison("FedH-N and its rivals on all setups, three seeds", (1, 2, 3, 4), SEEDS, second_order),
}


@functools.cache
def problem(setup: int, seed: int) -> Problem:
    made = functools.cache(SETUPS[setup])

    def fleet(newton: int, keep_rows: bool) -> Fleet:
        return made(seed).fleet(newton=newton, keep_rows=keep_rows)

    return Problem(f"setup {setup}", seed, SIZES[setup], fleet)
