"""Which clients should do Newton updates? All 2ⁿ answers on small fleets with a tenfold spread in speed, and what "auto" answers.

Seconds are simulated (fedhybrid.Clock): counted flops over given speeds, and links; the same on every machine, but for choosing_seconds.
Each choice runs to gap 1e-8. Prints a table; writes benchmarks/results/who_should_do_newton.json and .png.

    python benchmarks/who_should_do_newton.py [case …]
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.table import Table

import fedhybrid as fh
from fedhybrid.algorithms.defaults import curvatures
from fedhybrid.measure import measure, optimum
from fedhybrid.numerics import scope

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).resolve().parent / "results"
TARGET, MOST_ROUNDS = 1e-8, 4000
Updates = tuple[str, ...]


class Case(NamedTuple):
    title: str
    sites: list
    reg: float
    method: str  # krylov or fedhybrid, without tuning
    clock: fh.Clock
    loss: Any = fh.logistic

    def fleet(self, update: Any) -> fh.Fleet:
        return fh.Fleet(self.sites, loss=self.loss, reg=self.reg, update=update)

    def algorithm(self) -> Callable[[Updates], fh.Algorithm]:
        if self.method == "krylov":
            return lambda updates: fh.krylov()
        fleet = self.fleet("gradient")
        with scope():
            m, ell = curvatures(fleet, np.zeros(fleet.d))
        return lambda updates: fh.fedhybrid(**suited(m, ell, updates))


def suited(m: np.ndarray, ell: np.ndarray, updates: Updates) -> dict[str, Any]:
    """FedHybrid's parameters for a choice, from the analysis of equal quadratic clients."""
    m_mean, ell_mean = float(np.mean(m)), float(np.mean(ell))
    mu = float(np.sqrt(max(m_mean, 1e-4 * ell_mean) * ell_mean))
    gradient = np.array([update == "gradient" for update in updates])
    a = np.where(gradient, 1.0 / (ell + mu), 1.0)
    b = np.where(gradient, 0.25 * mu * (mu / (ell + mu)), min(0.25, mu / (ell_mean + mu)))
    return {"mu": mu, "a": a, "b": b}


def sites(sizes: tuple[int, ...], d: int, *, decades: float, apart: float = 0.0, seed: int = 0, squared: bool = False) -> list:
    """Columns of scales 1 … 10^−decades; `apart`: decades by which a client's own scales stray from these, and its truth from others'."""
    rng = np.random.default_rng(seed)
    scales, truth = 10 ** -np.linspace(0.0, decades, d), rng.normal(size=d)
    found = []
    for rows in sizes:
        A = rng.normal(size=(rows, d)) * scales * 10 ** (apart * rng.normal(size=d))
        z = A @ (truth + apart * rng.normal(size=d))
        found.append((A, z + rng.normal(size=rows) if squared else (z + rng.logistic(size=rows) > 0).astype(float)))
    return found


def clock(n: int, seed: int = 0, latency: float = 1e-3) -> fh.Clock:
    speed = 1e7 * 10 ** np.random.default_rng(seed).permutation(np.linspace(0.0, 1.0, n))
    return fh.Clock(speed=speed, latency=latency, bandwidth=1e6)


N = 6
ONE_LARGE = (100,) * (N - 1) + (1000,)
CASES: dict[str, Case] = {
    "iid": Case("IID, ill-conditioned", sites((200,) * N, 30, decades=2.0), 1e-5, "krylov", clock(N)),
    "dear": Case("IID, ill-conditioned, d=100", sites((300,) * N, 100, decades=2.0, seed=1), 1e-5, "krylov", clock(N, 1)),
    "far": Case("IID, ill-conditioned, far away", sites((200,) * N, 30, decades=2.0, seed=2), 1e-5, "krylov", clock(N, 2, 0.1)),
    "squared": Case(
        "IID, least squares", sites((200,) * N, 60, decades=2.0, seed=3, squared=True), 1e-5, "krylov", clock(N, 3), fh.squared
    ),
    "hetero": Case("heterogeneous", sites((200,) * N, 30, decades=1.0, apart=0.5, seed=4), 1e-3, "krylov", clock(N, 4)),
    "unequal": Case("one site ten times larger", sites(ONE_LARGE, 30, decades=2.0, seed=5), 1e-5, "krylov", clock(N, 5)),
    "iid-fedhybrid": Case("IID", sites((200,) * N, 30, decades=0.5, seed=6), 1e-2, "fedhybrid", clock(N, 6)),
    "dear-fedhybrid": Case("IID, d=100", sites((300,) * N, 100, decades=0.0, seed=9), 0.1, "fedhybrid", clock(N, 9)),
    "hetero-fedhybrid": Case("heterogeneous", sites((200,) * N, 30, decades=0.5, apart=0.3, seed=7), 1e-2, "fedhybrid", clock(N, 7)),
    "unequal-fedhybrid": Case("one site ten times larger", sites(ONE_LARGE, 30, decades=0.5, seed=8), 1e-2, "fedhybrid", clock(N, 8)),
}


def answer(case: Case) -> dict[str, Any]:
    """Seconds and rounds of every choice, and of auto's."""
    make, n, began = case.algorithm(), len(case.sites), time.perf_counter()
    chosen = fh.choose(case.fleet("gradient"), make, clock=case.clock)
    choosing = time.perf_counter() - began
    best, found = optimum(case.fleet("gradient")), {}
    for updates in itertools.product(("gradient", "newton"), repeat=n):
        curve, _ = measure(make(updates), case.clock(case.fleet(updates)), best, rounds=MOST_ROUNDS, until=TARGET)
        found[updates] = (curve.first_below(TARGET, "seconds"), curve.first_below(TARGET))
    ranked = sorted(found, key=lambda updates: found[updates])
    named = {
        "best": ranked[0],
        "worst": ranked[-1],
        "auto": chosen.updates,
        "all gradient": ("gradient",) * n,
        "all newton": ("newton",) * n,
    }
    return {
        "title": case.title,
        "method": case.method,
        "n": n,
        "speed": case.clock.speed.tolist(),
        "named": {name: _entry(updates, found[updates]) for name, updates in named.items()},
        "auto_over_best": found[chosen.updates][0] / found[ranked[0]][0],
        "auto_rank": ranked.index(chosen.updates) + 1,
        "expected": {str(k): seconds for k, seconds in chosen.expected.items()},
        "choosing_seconds": choosing,
        "choices": [_entry(updates, found[updates]) for updates in ranked],
    }


def _entry(updates: Updates, cost: tuple[float, float]) -> dict[str, Any]:
    seconds, rounds = (None if math.isinf(value) else value for value in cost)
    return {"newton": [i for i, update in enumerate(updates) if update == "newton"], "seconds": seconds, "rounds": rounds}


def show(answers: dict[str, dict[str, Any]]) -> None:
    table = Table(title=f"Simulated seconds to gap {TARGET:g} (and Newton clients)")
    table.add_column("fleet")
    table.add_column("method")
    for column in ("best", "auto", "auto / best", "rank", "all newton", "all gradient", "worst"):
        table.add_column(column, justify="right")
    for one in answers.values():
        cells = {name: f"{_seconds(entry):.3g} ({len(entry['newton'])})" for name, entry in one["named"].items()}
        ratio, rank = f"{one['auto_over_best']:.2f}", f"{one['auto_rank']} of {len(one['choices'])}"
        row = (cells["best"], cells["auto"], ratio, rank, cells["all newton"], cells["all gradient"], cells["worst"])
        table.add_row(one["title"], one["method"], *row)
    Console(width=140).print(table)


def _seconds(entry: dict[str, Any]) -> float:
    return math.inf if entry["seconds"] is None else entry["seconds"]


def draw(answers: dict[str, dict[str, Any]], path: Path) -> None:
    columns = 3
    rows = math.ceil(len(answers) / columns)
    figure, panels = plt.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False, layout="constrained")
    for panel, one in zip(panels.flat, answers.values(), strict=False):
        reached = [entry for entry in one["choices"] if entry["seconds"] is not None]
        panel.scatter(
            [len(entry["newton"]) for entry in reached], [entry["seconds"] for entry in reached], s=12, color="0.6", label="a choice"
        )
        auto = one["named"]["auto"]
        panel.plot(len(auto["newton"]), _seconds(auto), "o", markersize=10, fillstyle="none", color="C3", label="auto")
        panel.set(title=f"{one['title']}: {one['method']}", xlabel="Newton clients", yscale="log")
        panel.title.set_fontsize("small")
    for panel in panels.flat[len(answers) :]:
        panel.axis("off")
    for panel in panels[:, 0]:
        panel.set_ylabel("simulated seconds")
    panels[0, 0].legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help=f"of {', '.join(CASES)}; default: all")
    chosen = parser.parse_args().cases or list(CASES)
    answers = {}
    for name in chosen:
        began = time.perf_counter()
        answers[name] = answer(CASES[name])
        ratio, named = answers[name]["auto_over_best"], answers[name]["named"]
        print(f"{name}: auto / best = {ratio:.3f}, {json.dumps(named)} ({time.perf_counter() - began:.0f} s)", flush=True)
    show(answers)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "who_should_do_newton.json"
    before = json.loads(path.read_text()) if path.exists() else {}  # cases that were not run now stay
    answers = {name: (before | answers)[name] for name in CASES if name in before or name in answers}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in answers.items())
    path.write_text(f"{{\n{lines}\n}}\n")
    draw(answers, RESULTS / "who_should_do_newton.png")


if __name__ == "__main__":
    main()
