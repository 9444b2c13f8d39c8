"""From names of figures to files: a tidy CSV, a PNG and a PDF for each, one page for all of them."""

import csv
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..algorithms import refuse_unsuited
from ..report.convergence import draw, plain
from ..report.page import Section, write_page
from ..report.partitions import draw_partition
from ..status import InvalidConfig
from .candidates import candidate
from .own import Own, own_problem
from .paper import FIGURES, Comparison, Figure, problem
from .runner import Job, run_all
from .study import Effort, Measured, place_of

MOST_DRAWN = 100  # clients in a picture
COLUMNS = ("problem", "method", "parameters", "seed", "round", "gap", "floats_up", "floats_down", "flops", "seconds")


def reproduce(names: Iterable[str], effort: Effort, out: Path, workers: int = 1) -> list[Section]:
    """The named figures (all, if none is named). What is in `out` already is not computed again."""
    chosen = list(dict.fromkeys(names)) or list(FIGURES)
    for name in chosen:
        if name not in FIGURES:
            raise InvalidConfig(f"{name} is not one of the figures: {', '.join(FIGURES)}.")
    order = {"figures": chosen, "effort": effort.name}
    measured = run_all(jobs_of(order), effort, out / "runs", order, workers)
    sections = []
    for name in chosen:
        figure = FIGURES[name]
        sections.append(write(name, figure.title, [measured[job.key] for job in _jobs(figure)], out, isinstance(figure, Figure)))
    _write_summary(out / "summary.csv", list(measured.values()))
    write_page(out / "index.html", "FedHybrid, reproduced", sections, effort.name)
    return sections


def compare(own: Own, methods: list[str], effort: Effort, out: Path, workers: int = 1) -> Section:
    """The same on a problem of the user's own."""
    order = {"own": own._asdict(), "methods": methods, "effort": effort.name}
    jobs = jobs_of(order)
    for job in jobs:  # before the first study, not after the last
        chosen = job.candidate
        refuse_unsuited(chosen.factory(**chosen.settings(1, 1.0, False)[0]), job.problem.fleet(0, chosen.keep_rows))
    sites = jobs[0].problem.fleet(0, False).sites
    if len(sites) <= MOST_DRAWN:
        draw_partition({site.name: (site.A, site.y) for site in sites}, out / "partition.png", title=plain(jobs[0].problem.name))
    measured = run_all(jobs, effort, out / "runs", order, workers)
    title = jobs[0].problem.name
    section = write("compare", title, [measured[job.key] for job in jobs], out)
    _write_summary(out / "summary.csv", section.measured)
    write_page(out / "index.html", f"Methods on {title}", [section], effort.name)
    return section


def jobs_of(order: dict[str, Any]) -> list[Job]:
    """What an order asks for; the largest problems first, so that no worker is left alone with one at the end."""
    if "own" in order:
        problem = own_problem(Own(**order["own"]))
        jobs = [Job(problem, candidate(name, problem.n)) for name in order["methods"]]
        places = [place_of(Path(), job.problem, job.candidate) for job in jobs]
        if not jobs or len(set(places)) < len(places):
            raise InvalidConfig("compare: name at least one method, and none twice; two of your own need functions of different names.")
        return jobs
    jobs = [job for name in order["figures"] for job in _jobs(FIGURES[name])]
    return sorted(jobs, key=lambda job: job.problem.name, reverse=True)


def _jobs(figure: Figure | Comparison) -> list[Job]:
    if isinstance(figure, Figure):
        places = [problem(figure.setup, figure.seed)]
    else:
        places = [problem(setup, seed) for setup in figure.setups for seed in figure.seeds]
    return [Job(place, one) for place in places for one in figure.candidates(place.n)]


def write(name: str, title: str, measured: list[Measured], out: Path, picture: bool = True) -> Section:
    """CSV and picture of one figure; what the page needs of it."""
    out.mkdir(parents=True, exist_ok=True)
    _write_csv(out / f"{name}.csv", measured)
    if picture:
        draw(title, measured, out / f"{name}.png", out / f"{name}.pdf")
    return Section(name, title, measured, out / f"{name}.png" if picture else None)


def _write_csv(path: Path, measured: list[Measured]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for one in measured:
            parameters = json.dumps(one.setting)
            for step, (gap, rounds, up, down, flops, _) in enumerate(zip(*(column.tolist() for column in one.curve), strict=True), 1):
                seconds = step * one.seconds_a_step  # measured: a reproduction has no clock
                writer.writerow((one.problem, one.label, parameters, one.seed, rounds, gap, up, down, flops, seconds))


def _write_summary(path: Path, measured: list[Measured]) -> None:
    """One line per study: what it took to 1e-4 and to 1e-8, in full if it got there."""
    named, costs = ("problem", "seed", "method", "parameters", "settings"), ("floats_up", "floats_down", "flops")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*named, "rounds_1e-4", "rounds_1e-8", *costs, "seconds", "last_gap"))
        for one in sorted(measured, key=lambda one: (one.problem, one.seed, one.label)):
            rounds = ["" if one.rounds_to(gap) == math.inf else int(one.rounds_to(gap)) for gap in (1e-4, 1e-8)]
            at_target: list[Any] = [""] * 4
            if one.rounds_to(1e-8) < math.inf:
                place = int((one.curve.gap <= 1e-8).argmax())
                at_target = [*(getattr(one.curve, cost)[place] for cost in costs), (place + 1) * one.seconds_a_step]
            name = (one.problem, one.seed, one.label, json.dumps(one.setting), one.settings)
            writer.writerow((*name, *rounds, *at_target, one.curve.gap[-1]))
