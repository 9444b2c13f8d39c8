"""Speed and memory of the core, as ratios measured in one run. `make bench` prints them and writes benchmarks/results/core.json.

rounds      the paper's setup 1 (n=20, d=30, half the clients Newton): rounds a second, over those of the plain NumPy loops
bandwidth   least squares, n=2,000, d=100, all Newton: bytes of matrices a round, over what this machine can stream from memory
memory      500 logistic clients of lognormal(4, 2) rows, d=50: peak memory beyond the caller's arrays, over the data
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import jax
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))  # the reference loops are the tests' oracles

from reference.fedhybrid import fedhybrid as reference_loops  # noqa: E402  (after the path is set)
from reference.objective import clients as reference_clients  # noqa: E402  (likewise)

import fedhybrid as fh  # noqa: E402  (after the path is set)
from fedhybrid.numerics import scope  # noqa: E402  (likewise)


def best_of(repeats: int, function: Callable[[], object]) -> float:
    """Least seconds of one call."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def setup_1(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """The paper's synthetic linear regression: n = 20, d = 30, sizes ⌊lognormal(4, 2)⌋ + 50, clients of different scales."""
    x = rng.normal(size=30)
    sites = []
    for _ in range(20):
        A = rng.normal() * (1.0 - rng.random((int(rng.lognormal(4, 2)) + 50, 30)))
        sites.append((A, A @ x + 0.5 * rng.normal(size=len(A))))
    return sites


def rounds() -> dict[str, float]:
    sites = setup_1(np.random.default_rng(1))
    kinds = ["newton" if i % 2 else "gradient" for i in range(20)]
    mu, a, b = 1.0, (0.05, 1.0), (0.05, 0.1)
    a_each, b_each = ([pair[kind == "newton"] for kind in kinds] for pair in (a, b))
    slow = reference_clients(sites, "squared", weighting="client", vector=True)
    zeros = [np.zeros(30)] * 20
    few = 30
    seconds_slow = best_of(3, lambda: reference_loops(slow, kinds, mu, a_each, b_each, None, zeros, zeros, few)) / few

    clients = fh.Stacked(fh.Fleet(sites, loss=fh.squared, weighting="client", update=kinds))
    algorithm, many = fh.fedhybrid(mu=mu, a=a, b=b), 10_000
    began = time.perf_counter()
    fh.run(algorithm, clients, many)
    first = time.perf_counter() - began
    seconds = best_of(5, lambda: fh.run(algorithm, clients, many)[1].x0)
    same = np.max(
        np.abs(fh.run(algorithm, clients, few)[1].x0 - reference_loops(slow, kinds, mu, a_each, b_each, None, zeros, zeros, few).x0)
    )
    return {
        "rounds_per_second": many / seconds,
        "reference_rounds_per_second": 1 / seconds_slow,
        "ratio": seconds_slow * many / seconds,
        "target": 15,
        "largest_difference": float(same),
        "compile_seconds": first - seconds,
    }


def streaming_bandwidth(array: np.ndarray) -> float:
    """Bytes a second: the best of NumPy and XLA, one thread and all, at reading an array far larger than any cache."""

    def threaded(workers: int) -> None:
        threads = [Thread(target=np.sum, args=(part,)) for part in np.array_split(array.reshape(-1), workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    on_device = jnp.asarray(array)
    reductions = [jax.jit(jnp.sum), jax.jit(lambda v: jnp.sum(v * v)), jax.jit(lambda v: jnp.sum(v * v, axis=-1))]
    for reduction in reductions:
        jax.block_until_ready(reduction(on_device))
    candidates: list[Callable[[], object]] = [lambda w=w: threaded(w) for w in {1, os.cpu_count() or 1}]
    candidates += [lambda r=r: r(on_device) for r in reductions]
    candidates += [lambda: np.dot(array.reshape(-1), array.reshape(-1))]
    return array.nbytes / min(best_of(10, candidate) for candidate in candidates)


def bandwidth(n: int = 2000, d: int = 100) -> dict[str, float]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=d)
    sites = []
    for _ in range(n):
        A = rng.normal(size=(120, d))
        sites.append((A, A @ x + rng.normal(size=120)))
    clients = fh.Stacked(fh.Fleet(sites, loss=fh.squared, weighting="client"))
    del sites
    algorithm, steps = fh.fedhybrid(mu=1.0, a=1.0, b=0.1), 20
    with scope():
        state = algorithm.init(clients, jnp.zeros(d))

        def some_rounds() -> object:
            return clients.call(steps_only, (algorithm.step, steps), state)

        began = time.perf_counter()
        jax.block_until_ready(some_rounds())
        first = time.perf_counter() - began
        seconds = best_of(5, some_rounds) / steps
        streamed = streaming_bandwidth(np.asarray(clients.groups[0].f.H))
    moved = 3 * 8 * d**2 * n
    return {
        "gigabytes_per_second": moved / seconds / 1e9,
        "streaming_gigabytes_per_second": streamed / 1e9,
        "ratio": moved / seconds / streamed,
        "target": 0.5,
        "milliseconds_per_round": 1e3 * seconds,
        "compile_seconds": first - seconds * steps,
    }


def steps_only(clients: fh.Stacked, step: Callable, length: int, state: object) -> object:
    return clients.scan(lambda s: (step(clients, s), ()), state, length)[0].x0


def lognormal_fleet() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=50)
    sites = []
    for size in np.maximum(1, rng.lognormal(4, 2, size=500).astype(int)):
        A = rng.normal(size=(size, 50))
        sites.append((A, (A @ x + rng.normal(size=size) > 0).astype(float)))
    return sites


def resident(field: str) -> int:
    """Bytes of this process's VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def memory_in_this_process() -> dict[str, float]:
    """Everything twice: in the first pass the program is compiled, whose memory is not the data's; the second is measured."""
    sites = lognormal_fleet()
    rows, data = sum(len(y) for _, y in sites), sum(A.nbytes + y.nbytes for A, y in sites)
    found: dict[str, float] = {"data_megabytes": data / 1e6, "target": 2.5}
    for measure in ("cold", "warm"):
        gc.collect()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        began = time.perf_counter()
        fleet = fh.Fleet(sites, loss=fh.logistic, reg=0.01, update="newton")
        clients = fh.Stacked(fleet)
        state, trace = fh.run(fh.fedhybrid(mu=0.001, a=1.0, b=0.1), clients, 5)
        found[f"{measure}_seconds"] = time.perf_counter() - began
        found[f"{measure}_peak_megabytes"] = (resident("VmHWM") - before) / 1e6
        found["padding"] = sum(group.rows * len(group.members) for group in fleet.groups) / rows
        found["groups"] = len(fleet.groups)
        if not np.all(np.isfinite(trace.x0)):
            raise RuntimeError("the run that was measured did not stay finite")
        del fleet, clients, state, trace
    found["ratio"] = found["warm_peak_megabytes"] / found["data_megabytes"]
    found["compile_seconds"] = found["cold_seconds"] - found["warm_seconds"]
    return found


def memory() -> dict[str, float]:
    """In a process of its own, whose large arrays go back to the system as soon as they are free."""
    settings = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**18)}
    command = [sys.executable, __file__, "--memory-child"]
    return json.loads(subprocess.run(command, env=settings, check=True, capture_output=True, text=True).stdout)


def machine() -> dict[str, str]:
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "device": str(jax.devices()[0]),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "core.json")
    options = parser.parse_args()
    if options.memory_child:
        print(json.dumps(memory_in_this_process()))
        return
    results: dict[str, object] = {"machine": machine()}
    for measure in (rounds, bandwidth, memory):
        results[measure.__name__] = found = measure()
        listed = ", ".join(f"{name} {value:.3g}" for name, value in found.items() if name not in ("ratio", "target"))
        sign = "≤" if measure is memory else "≥"
        print(f"{measure.__name__:10} ratio {found['ratio']:.3g} (target {sign} {found['target']})\n           {listed}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
