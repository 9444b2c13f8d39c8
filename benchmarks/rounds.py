"""Rounds and floats to a gap of 1e-8, nothing tuned, beside methods that are: six problems, three seeds, one table.

    python benchmarks/rounds.py [--seeds 3] [--only 1,2,phishing] [--without fednl,fedhybrid,…] [--out rounds.json]

`solve` is what fh.solve(fleet) runs, with none, half and all of the clients doing Newton updates; fedhybrid() is what it runs where
clients can be away. DiSCO and FedHybrid are the best of a grid (the others take no parameter), FedNL the best of its compressors.
A gap is F(x₀) − F*, as a part of what it is at the start, x₀ = 0.
"""

import argparse
import json
import math
import platform
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import fedhybrid as fh
from fedhybrid.datasets import SETUPS, libsvm
from fedhybrid.measure import measure, optimum

TARGET = 1e-8
MOST = 600
MEMORIES = (5, 8, 10, 12, 15, 20, 30)


def problem(name: str, seed: int) -> Callable[[list[str]], fh.Fleet]:
    """A fleet for every choice of updates."""
    if name in "1234":
        return SETUPS[int(name)](seed).fleet
    A, y = libsvm(name)
    order = np.random.default_rng(seed).permutation(len(y))
    if name == "phishing":
        parts, loss = np.array_split(order[np.argsort(y[order], kind="stable")], 20), {"weighting": "client", "reg": 0.02}
    else:
        parts, loss = np.array_split(order, 142), {"weighting": "row", "reg": 1e-3}
    sites = [(A[rows], y[rows]) for rows in parts]
    if name == "phishing":
        sites = [(rows.toarray(), labels) for rows, labels in sites]
    return lambda update: fh.Fleet(sites, loss=fh.logistic, update=update, **loss)


def updates(n: int, newton: int, seed: int) -> list[str]:
    """`newton` clients at random do Newton updates."""
    chosen = np.random.default_rng([seed, 7]).permutation(n)[:newton]
    return ["newton" if i in chosen else "gradient" for i in range(n)]


def cells(make: Callable, seed: int, without: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    n = make("gradient").n
    best = None

    def cost(algorithm: fh.Algorithm, clients: Any, block: int = 10, most: int = MOST) -> dict[str, Any]:
        curve, _ = measure(algorithm, clients, best, rounds=most, until=TARGET, block=block)
        rounds = curve.first_below(TARGET)
        reached = math.isfinite(rounds)
        return {"rounds": int(rounds) if reached else None, "floats": int(curve.floats_up[-1]) // n if reached else None}

    for label, newton in (("none", 0), ("half", n // 2), ("all", n)):
        fleet = make(updates(n, newton, seed))
        clients = fh.Stacked(fleet)
        best = best or optimum(fleet, clients)
        yield f"solve, {label}", cost(fh.krylov(), clients)
        if "grid" not in without:
            grid = [cost(fh.krylov(memory=memory), clients) for memory in MEMORIES]
            yield f"solve, {label}, best memory", min(grid, key=lambda cell: cell["rounds"] or math.inf)
        yield f"fedhybrid(), {label}", cost(fh.fedhybrid(), clients)
    yield "L-BFGS(10)", cost(fh.lbfgs(memory=10), clients)
    if "giant" not in without:
        yield "GIANT", cost(fh.giant(), clients)
    ell = float(np.mean(np.asarray(fh.theory.bounds(fleet).ell)))
    if "disco" not in without:
        grid = [cost(fh.disco(mu=mu * ell, accuracy=0.1, damped=False), clients, block=2) for mu in (1e-3, 1e-2, 1e-1, 1.0)]
        yield "DiSCO, best of 4", min(grid, key=lambda cell: cell["rounds"] or math.inf)
    if "fednl" not in without:
        d = fleet.d
        compressors = [{"compressor": "rank1"}, {"compressor": "topk", "k": d}, {"compressor": "randk", "k": d}, {"compressor": "identity"}]
        ways = [compressor | {"first": first} for compressor in compressors for first in ("hessian", "zero")]
        found = {f"{way['compressor']}, {way['first']}": cost(fh.fednl(**way), clients) for way in ways}
        name, cell = min(found.items(), key=lambda entry: entry[1]["floats"] or math.inf)
        yield "FedNL, fewest floats", cell | {"which": name, "all": found}
    if "fedhybrid" not in without:
        grid = {"mu": ell * np.geomspace(1e-4, 1.0, 13), "a": [1.0], "b": np.geomspace(0.02, 0.5, 6)}
        tuned = fh.tune(fh.fedhybrid, grid, fleet, rounds=MOST, target=TARGET, best=best)
        least = float(np.min(tuned.rounds))
        floats = (fleet.d + 2) * least
        yield (
            "FedHybrid, all newton, best of 78",
            {
                "rounds": int(least) if math.isfinite(least) else None,
                "floats": int(floats) if math.isfinite(floats) else None,
            },
        )


def shown(values: list[float | None]) -> str:
    if any(value is None for value in values):
        return "–" if all(value is None for value in values) else "– (in some)"
    middle, low, high = int(statistics.median(values)), min(values), max(values)
    return f"{middle:,}" if low == high else f"{middle:,} ({low:,}–{high:,})"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--only", default="1,2,3,4,phishing,w8a")
    arguments.add_argument("--without", default="", help="of: grid, giant, disco, fednl, fedhybrid")
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    names = given.only.split(",")
    found: dict[str, dict[str, list]] = {}
    for name in names:
        for seed in range(given.seeds):
            for label, cell in cells(problem(name, seed), seed, set(given.without.split(","))):
                found.setdefault(label, {}).setdefault(name, []).append(cell)
                print(json.dumps({"problem": name, "seed": seed, "method": label} | cell), flush=True)
    for measured, title in (("rounds", "rounds to 1e-8, median (range)"), ("floats", "floats sent per client to 1e-8, median (range)")):
        table = Table("", *names, title=title)
        for label, row in found.items():
            table.add_row(label, *(shown([cell[measured] for cell in row.get(name, [])]) for name in names))
        Console(width=max(80, 22 + 16 * len(names))).print(table)
    if given.out:
        save(found, given.out)


def save(found: dict[str, dict[str, list]], path: Path) -> None:
    """Rows that are in the file already and were not measured now stay, with the machine that they are from."""
    here = {"machine": platform.machine(), "device": jax.devices()[0].device_kind, "jax": jax.__version__, "version": fh.__version__}
    rows = json.loads(path.read_text()) if path.exists() else {}
    for label, row in found.items():
        for name, cells in row.items():
            rows.setdefault(label, {})[name] = {"cells": cells, "on": here}
    path.write_text("{\n" + ",\n".join(f"{json.dumps(label)}: {json.dumps(row)}" for label, row in rows.items()) + "\n}\n")


if __name__ == "__main__":
    main()
