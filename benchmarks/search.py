"""How fast a grid is searched: every setting of FedHybrid on the paper's setup 1, side by side and (on a CPU) one after the other.

    python benchmarks/search.py [settings] [rounds]

Prints settings × rounds a second, and the best setting that the whole grid and successive halving find.
"""

import json
import sys
import time

import jax
import numpy as np

import fedhybrid as fh
from fedhybrid.measure import optimum


def main(settings: int, rounds: int) -> dict:
    setup = fh.datasets.setup_1(0)
    found = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "settings": [], "rounds": rounds}
    for label, newton in (("FedH-G", 0), ("FedH-10", 10), ("FedH-N", 20)):
        fleet = setup.fleet(newton=newton)
        best = optimum(fleet)
        side = max(3, round(settings ** (1 / 3)))
        mu, a, b = np.geomspace(1e-4, 10.0, side), np.geomspace(1e-3, 1.0, side), np.geomspace(1e-4, 1.0, side)
        grid = {"mu": mu, "a": [(value, 1.0 if newton == 10 else value) for value in a], "b": [(value, 0.1 * value) for value in b]}
        # below 1e-30 nobody gets, so that the whole grid is timed to its end
        for way, options in (("whole grid", {"keep": 1.0, "target": 1e-30}), ("halving", {})):
            fh.tune(fh.fedhybrid, grid, fleet, rounds=40, best=best, **options)  # compiles
            began = time.perf_counter()
            tuning = fh.tune(fh.fedhybrid, grid, fleet, rounds=rounds, best=best, **options)
            seconds = time.perf_counter() - began
            lane_rounds = int(tuning.steps.sum())
            entry = {"method": label, "way": way, "settings": len(tuning.settings), "seconds": round(seconds, 2)}
            entry |= {"lane_rounds": lane_rounds, "lane_rounds_a_second": round(lane_rounds / seconds), "best": tuning.best}
            if way == "halving":
                entry |= {"rounds_to_1e-8": tuning.rounds.min() if np.isfinite(tuning.rounds.min()) else None}
            found["settings"].append(entry)
            print(json.dumps(entry), flush=True)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512, int(sys.argv[2]) if len(sys.argv) > 2 else 500)
