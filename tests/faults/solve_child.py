"""What the tests of a killed `solve` run in a process of its own: `solve_child.py '{"case": …, "directory": …, …}'`.

It reports with writev, a line of JSON each: what a run resumed from, what was saved, how it ended. `write` is then called by the
checkpoint alone, and strace can count on it.
"""

import hashlib
import json
import os
import resource
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import fedhybrid as fh
from fedhybrid import checkpoint, driver
from fedhybrid.status import CheckpointError, CheckpointWarning


class Case(NamedTuple):
    fleet: Callable[[], fh.Fleet]
    algorithm: Callable[[], fh.Algorithm | None]
    options: Mapping[str, Any] = MappingProxyType({})


def rows(loss: str, sizes: tuple[int, ...] = (20, 16, 20, 12), d: int = 4, seed: int = 0, size: float = 1.0) -> list:
    rng = np.random.default_rng(seed)
    truth = size * rng.normal(size=d)
    sites = []
    for N in sizes:
        A = rng.normal(size=(N, d)) * np.geomspace(1.0, 0.3, d) + 0.3 * rng.normal(size=d)
        z = A @ truth
        y = {
            "squared": lambda z=z: z + rng.normal(size=len(z)),
            "logistic": lambda z=z: (z + rng.logistic(size=len(z)) > 0).astype(float),
            "poisson": lambda z=z: rng.poisson(np.exp(np.clip(z, -3, 5))).astype(float),
        }[loss]()
        sites.append((A, y, rng.uniform(0.5, 2.0, size=N)))
    return sites


MIXED = ("gradient", "newton", "gradient", "newton")


def logistic(seed: int = 0, reg: float = 0.01, weighting: str = "row") -> fh.Fleet:
    """The intercept has no penalty: a certificate needs the sum of Hessians."""
    return fh.Fleet(rows("logistic", seed=seed), loss=fh.logistic, reg=reg, weighting=weighting, update=MIXED, intercept=True)


def squared() -> fh.Fleet:
    return fh.Fleet(rows("squared"), loss=fh.squared, reg=0.01, update=MIXED, intercept=True)


def separable() -> fh.Fleet:
    A, y = np.array([[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [-2.0, -1.5]]), np.array([1.0, 1.0, 0.0, 0.0])
    return fh.Fleet([(A, y), (1.5 * A, y)], loss=fh.logistic, update=("gradient", "newton"))


def steady(mu: float = 0.1, a: Any = (2.0, 0.8), b: Any = (0.01, 0.2)) -> fh.Algorithm:
    return fh.fedhybrid(mu=mu, a=a, b=b)


CASES = {
    "logistic": Case(logistic, steady, {"tol": 1e-5}),
    "squared": Case(squared, lambda: steady(mu=0.2, b=(0.02, 0.2)), {"tol": 1e-6}),
    "default": Case(squared, lambda: None, {"tol": 1e-4}),
    "serial": Case(logistic, steady, {"transport": fh.Serial, "tol": 1e-2}),
    "gd": Case(logistic, lambda: fh.gd(step_size=2.0), {"tol": 1e-4}),
    "lbfgs": Case(logistic, lambda: fh.lbfgs(memory=3)),
    "newton": Case(logistic, fh.newton),
    "separable": Case(separable, lambda: steady(a=0.5, b=0.02)),
    "diverging": Case(logistic, lambda: steady(a=(9.0, 0.8), b=(0.9, 0.2))),
}


def solve(case: str, **options: Any) -> fh.Result:
    chosen = CASES[case]
    return fh.solve(chosen.fleet(), chosen.algorithm(), **{**chosen.options, **options})


def digest(result: fh.Result) -> str:
    """Of every number in a result."""
    trace = result.trace
    numbers = (result.error_bound, result.gradient_norm, result.m_hat, -1.0 if result.kappa_hat is None else result.kappa_hat)
    counts = (result.rounds, result.floats_up, result.floats_down, len(trace))
    found = hashlib.sha256(struct.pack("<4d4q", *numbers, *counts))
    columns = (trace.start, trace.x0, trace.residual, trace.rounds, trace.floats_up, trace.floats_down)
    for array in (result.x, result.x_clients, result.lam_clients, result.direction, *columns):
        found.update(b"None" if array is None else repr((array.dtype.str, array.shape)).encode() + array.tobytes())
    found.update(repr((result.status, result.message, result.algorithm)).encode())
    return found.hexdigest()


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def say(**what: Any) -> None:
    os.writev(1, [json.dumps(what).encode() + b"\n"])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fate:
    """Death at one operation of the n-th save: before or after what `checkpoint.save` asks of the disk, or half-way through a write."""

    POINTS = ("begin", "half", "written", "fsynced", "rotated", "renamed", "end")

    def __init__(self, number: int, point: str) -> None:
        self.number, self.point, self.saves = number, point, 0
        self.save, self.fsync, self.rename = checkpoint.save, os.fsync, os.rename
        checkpoint.save, os.fsync, os.rename = self.saving, self.fsyncing, self.renaming

    def at(self, point: str) -> None:
        if self.saves == self.number and point == self.point:
            die()

    def saving(self, *arguments: Any) -> None:
        self.saves += 1
        self.at("begin")
        self.save(*arguments)
        self.at("end")

    def fsyncing(self, descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(checkpoint.TEMPORARY):
            if self.saves == self.number and self.point == "half":
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                die()
            self.at("written")
            self.fsync(descriptor)
            self.at("fsynced")
        else:
            self.fsync(descriptor)

    def renaming(self, old: Any, new: Any) -> None:
        self.rename(old, new)
        self.at("rotated" if str(new).endswith(checkpoint.PREVIOUS) else "renamed")


def report_checkpoints() -> None:
    load, save = checkpoint.load, checkpoint.save

    def loading(*arguments: Any) -> checkpoint.Snapshot | None:
        found = load(*arguments)
        say(resumed=0 if found is None else len(found.arrays["trace.rounds"]))
        return found

    def saving(directory: Any, identity: Any, snapshot: checkpoint.Snapshot) -> None:
        began = time.perf_counter()
        save(directory, identity, snapshot)
        say(saved=len(snapshot.arrays["trace.rounds"]), seconds=time.perf_counter() - began)

    checkpoint.load, checkpoint.save = loading, saving


def call(task: dict[str, Any]) -> bool:
    """One call of solve. Whether the disk let it end."""
    place = fh.Checkpoint(task["directory"], **task.get("checkpoint", {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        began = time.perf_counter()
        try:
            result = solve(task["case"], checkpoint=place, **task.get("options", {}))
        except CheckpointError as error:
            say(refused=str(error), status=error.status.name)
            return True
        seconds = time.perf_counter() - began
    say(
        digest=digest(result),
        status=result.status.name,
        message=result.message,
        rounds=result.rounds,
        steps=len(result.trace),
        finite=bool(np.isfinite(result.x).all()),
        seconds=seconds,
        warned=[str(warning.message) for warning in caught],
    )
    return result.status is not fh.Status.CHECKPOINT_ERROR


def main(task: dict[str, Any]) -> None:
    """Call solve, and call it again after each error of the disk, `calls` times at most."""
    assert driver.files is checkpoint  # what is patched here is what solve uses
    if "die" in task:
        Fate(*task["die"])
    report_checkpoints()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if "largest_file" in task:
        resource.setrlimit(resource.RLIMIT_FSIZE, (task["largest_file"], limits[1]))
    for number in range(1, task.get("calls", 1) + 1):
        if number == task.get("lift_limit_before"):
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if call(task):
            break


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("default", "Error (reading|writing) persistent compilation cache entry")
    main(json.loads(sys.argv[1]))
