"""From names of figures to files: a tidy CSV, a PNG and a PDF for each, one page for all of them."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path

from ..report.convergence import draw
from ..report.page import Section, write_page
from ..status import InvalidConfig
from ..tune import shown
from .candidates import Candidate
from .paper import FIGURES, Comparison, Figure, problem
from .runner import Job, run_all
from .study import Effort, Measured, Problem

COLUMNS = ("problem", "method", "parameters", "seed", "round", "gap", "floats_up", "floats_down", "flops", "seconds")


def reproduce(names: Iterable[str], effort: Effort, out: Path, workers: int | None = None) -> list[Section]:
    """The named figures (all, if none is named). What is in `out` already is not computed again."""
    chosen = list(dict.fromkeys(names)) or list(FIGURES)
    for name in chosen:
        if name not in FIGURES:
            raise InvalidConfig(f"{name} is not one of the figures: {', '.join(FIGURES)}.")
    jobs = {name: _jobs(FIGURES[name]) for name in chosen}
    measured = run_all([job for each in jobs.values() for job in each], effort, out / "runs", workers)
    sections = [
        write(name, FIGURES[name].title, [measured[job.key] for job in jobs[name]], out, picture=isinstance(FIGURES[name], Figure))
        for name in chosen
    ]
    write_page(out / "index.html", "FedHybrid, reproduced", sections, effort.name)
    return sections


def compare(problem: Problem, candidates: list[Candidate], effort: Effort, out: Path, workers: int | None = None) -> Section:
    """The same on a problem of the user's own."""
    jobs = [Job(problem, candidate) for candidate in candidates]
    measured = run_all(jobs, effort, out / "runs", workers)
    section = write("compare", problem.name, [measured[job.key] for job in jobs], out)
    write_page(out / "index.html", f"Methods on {problem.name}", [section], effort.name)
    return section


def _jobs(figure: Figure | Comparison) -> list[Job]:
    if isinstance(figure, Figure):
        places = [problem(figure.setup, figure.seed)]
    else:
        places = [problem(setup, seed) for setup in figure.setups for seed in figure.seeds]
    return [Job(place, candidate) for place in places for candidate in figure.candidates(place.n)]


def write(name: str, title: str, measured: list[Measured], out: Path, picture: bool = True) -> Section:
    """CSV and picture of one figure; what the page needs of it."""
    out.mkdir(parents=True, exist_ok=True)
    _write_csv(out / f"{name}.csv", measured)
    if picture:
        draw(title, measured, out / f"{name}.png", out / f"{name}.pdf")
    return Section(name, title, measured, out / f"{name}.png" if picture else None)


def _write_csv(path: Path, measured: list[Measured]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for one in measured:
            parameters = json.dumps(one.setting)
            for step, (gap, rounds, up, down, flops) in enumerate(zip(*(column.tolist() for column in one.curve), strict=True), 1):
                seconds = step * one.seconds_a_step
                writer.writerow((one.problem, one.label, parameters, one.seed, rounds, gap, up, down, flops, seconds))


__all__ = ["compare", "reproduce", "shown"]
