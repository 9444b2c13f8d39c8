"""Many studies at once: as many threads as there are cores (compiling takes most of the time, and leaves Python free), with a bar."""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .candidates import Candidate
from .study import Effort, Ground, Measured, Problem, ground, study


class Job(NamedTuple):
    problem: Problem
    candidate: Candidate

    @property
    def key(self) -> tuple[str, int, str]:
        return self.problem.name, self.problem.seed, self.candidate.label


class Bar:
    """One line for the whole, and one for each study that is running: what is being tuned, and how far it is."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.whole = self.bar.add_task("studies", total=total)

    @contextmanager
    def line(self, name: str) -> Iterator[Callable[[str], None]]:
        task: TaskID | None = None

        def say(words: str) -> None:
            nonlocal task
            if task is None:
                task = self.bar.add_task("", total=None)
            self.bar.update(task, description=f"{name}: {words}"[:60])

        try:
            yield say
        finally:
            if task is not None:
                self.bar.remove_task(task)
            self.bar.advance(self.whole)


def run_all(jobs: list[Job], effort: Effort, folder: Path, workers: int | None = None) -> dict[tuple[str, int, str], Measured]:
    """Every job once, whatever the number of figures that it is part of."""
    once = {job.key: job for job in jobs}
    grounds = {(job.problem.name, job.problem.seed): _Once(functools.partial(ground, job.problem)) for job in once.values()}
    bar = Bar(len(once))

    def run(job: Job) -> Measured:
        with bar.line(f"{job.problem.name}, {job.candidate.label}") as say:
            return study(job.problem, job.candidate, effort, folder, grounds[job.key[:2]], say)

    with bar.bar, ThreadPoolExecutor(workers or min(4, os.cpu_count() or 1)) as pool:
        running = {pool.submit(run, job): key for key, job in once.items()}
        try:
            return {running[done]: done.result() for done in as_completed(running)}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Once:
    """A value that several threads want and one computes."""

    def __init__(self, compute: Callable[[], Ground]) -> None:
        self.lock, self.compute = threading.Lock(), functools.cache(compute)

    def __call__(self) -> Ground:
        with self.lock:
            return self.compute()
