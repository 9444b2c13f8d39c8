"""Many studies at once, each in one of a few processes, with a bar.

Compiling takes most of the time and one core, so that as many processes as there are cores are about as many times as fast. (Threads are
not: two programs that run at the same time in one process can wait for each other for ever on a machine of two cores.) Workers take
whatever study is not taken, by creating a file; what they find is on disk anyway, and the parent reads it there. A worker that dies
leaves its studies to the parent.
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .candidates import Candidate
from .study import Effort, Measured, Problem, ground, place_of, study

Say = Callable[[str], None]


class Job(NamedTuple):
    problem: Problem
    candidate: Candidate

    @property
    def key(self) -> tuple[str, int, str]:
        return self.problem.name, self.problem.seed, self.candidate.label

    def __str__(self) -> str:
        return f"{self.problem.name}, {self.candidate.label}"


def run_all(jobs: list[Job], effort: Effort, folder: Path, order: dict[str, Any], workers: int) -> dict[tuple[str, int, str], Measured]:
    """Every job once, whatever the number of figures that it is part of. `order` is what a worker makes the same jobs from."""
    once = {job.key: job for job in jobs}
    folder.mkdir(parents=True, exist_ok=True)
    with _Bar(len(once)) as bar:
        if workers > 1:
            with _processes(order, folder, min(workers, len(once)), bar):
                pass  # until all have ended
        return _in_turn(list(once.values()), effort, folder, bar)


def work(jobs: list[Job], effort: Effort, folder: Path) -> None:
    """What a worker does: whatever nobody else does."""
    for job in {job.key: job for job in jobs}.values():
        with _claim(place_of(folder, job.problem, job.candidate)) as mine:
            if mine:
                study(job.problem, job.candidate, effort, folder, _shared(job.problem), functools.partial(_tell, str(job)))
                _tell(str(job), "")


def _in_turn(jobs: list[Job], effort: Effort, folder: Path, bar: "_Bar") -> dict[tuple[str, int, str], Measured]:
    found = {}
    for job in jobs:
        say = functools.partial(bar.say, str(job))
        found[job.key] = study(job.problem, job.candidate, effort, folder, _shared(job.problem), say)
        bar.say(str(job), "")
    return found


@functools.cache
def _shared(problem: Problem) -> Callable[[], Any]:
    return functools.cache(functools.partial(ground, problem))


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _processes(order: dict[str, Any], folder: Path, count: int, bar: "_Bar") -> Iterator[None]:
    """Workers, which end by themselves, or with us."""
    command = [sys.executable, "-m", "fedhybrid.experiments.worker", json.dumps(order | {"folder": str(folder)})]
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    environment = compiled | os.environ  # problems of the same shapes share programs
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=environment, **pipes) for _ in range(count)]
    listeners = [threading.Thread(target=_listen, args=(process, bar)) for process in running]
    errors = [threading.Thread(target=lambda process: process.stderr.read(), args=(process,)) for process in running]
    try:
        for thread in (*listeners, *errors):
            thread.start()
        yield
        for thread in (*listeners, *errors):
            thread.join()
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stderr.close()
        shutil.rmtree(folder / "compiled", ignore_errors=True)


def _listen(process: subprocess.Popen, bar: "_Bar") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(ValueError, TypeError):  # a method of the user's own may print what it likes
            bar.say(*json.loads(line))


def _tell(job: str, words: str) -> None:
    print(json.dumps([job, words]), flush=True)


@contextmanager
def _claim(place: Path) -> Iterator[bool]:
    """Whether this process may do what ends up at `place`: one that finds a claim of a living process leaves it alone."""
    claim = place.with_suffix(".claim")
    claim.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(claim, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        if _is_alive(claim):
            yield False
            return
        claim.write_text(str(os.getpid()))
    try:
        yield True
    finally:
        claim.unlink(missing_ok=True)


def _is_alive(claim: Path) -> bool:
    try:
        os.kill(int(claim.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


# ── what people see ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Bar:
    """One line for the whole, and one for each study that is running: what is being tuned, and how far it is."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.whole = self.bar.add_task("studies", total=total)
        self.tasks: dict[str, TaskID] = {}
        self.done: set[str] = set()
        self.lock = threading.Lock()

    def __enter__(self) -> "_Bar":
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def say(self, job: str, words: str) -> None:
        """What a study is at; no words: it is done."""
        with self.lock:
            if words:
                if job not in self.tasks:
                    self.tasks[job] = self.bar.add_task("", total=None)
                self.bar.update(self.tasks[job], description=f"{job}: {words}"[:56])
            else:
                self.done.add(job)
                if job in self.tasks:
                    self.bar.remove_task(self.tasks.pop(job))
                self.bar.update(self.whole, completed=len(self.done))
