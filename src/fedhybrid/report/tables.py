"""Tables for a terminal of 80 columns."""

from rich.markup import escape
from rich.table import Table

from ..demo import Demo
from .page import LEVELS, Section, number, seeds_rows


def sites_table(demo: Demo) -> Table:
    """Who holds what."""
    labels = [y for _, y in demo.data.sites.values()]
    rows = [len(y) for y in labels]
    one_class = sum(len(set(y)) == 1 for y in labels)
    table = Table(title=f"{len(rows)} sites of {min(rows)} to {max(rows)} rows, {one_class} with one class", title_justify="left")
    table.add_column("site")
    for heading in ("rows", "benign", "malignant"):
        table.add_column(heading, justify="right")
    table.add_column("update in FedH-4")
    hybrid = next(fit for fit in demo.fits if 0 < len(fit.newton_sites) < len(demo.data.sites))
    for name, (_, y) in demo.data.sites.items():
        benign = int(y.sum())
        table.add_row(name, str(len(y)), str(benign), str(len(y) - benign), "newton" if name in hybrid.newton_sites else "gradient")
    return table


def methods_table(demo: Demo) -> Table:
    """What each method needed, and how far from the pooled fit it ended."""
    table = Table(title="To a proved error of 1e-8", title_justify="left")
    table.add_column("method")
    for heading in ("newton\nsites", "rounds", "floats up\nper site", "distance to\npooled fit", "test\naccuracy"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    sites = len(demo.data.sites)
    for fit in demo.fits:
        table.add_row(
            fit.name,
            str(len(fit.newton_sites)),
            f"{fit.result.rounds:,}",
            f"{fit.result.floats_up // sites:,}",
            f"{fit.distance[-1]:.1e}",
            f"{fit.accuracy:.1%}",
            str(fit.result.status),
        )
    table.add_section()
    table.add_row("pooled fit", "", "", "all rows", "", f"{demo.pooled_accuracy:.1%}", "")
    return table


def studies_table(section: Section) -> Table:
    """How the candidates of a figure did, best first."""
    several = len({(one.problem, one.seed) for one in section.measured}) > 1
    if several:
        table = Table(title=f"{section.name}: {section.title}\nrounds to 1e-8: median (range)", title_justify="left")
        table.add_column("method")
        for problem in dict.fromkeys(one.problem for one in section.measured):
            table.add_column(problem, justify="right")
        for row in seeds_rows(section.measured):
            table.add_row(*row)
        return table
    table = Table(title=f"{section.name}: {escape(section.title)}\nfloats and Mflop are per client, to 1e-8", title_justify="left")
    table.add_column("method")
    for heading in ("rounds to\n1e-4", "rounds to\n1e-8", "floats up", "Mflop", "last gap"):
        table.add_column(heading, justify="right")
    for one in sorted(section.measured, key=lambda one: (one.rounds_to(LEVELS[1]), one.curve.gap[-1])):
        costs = ("–", "–")
        if one.rounds_to(LEVELS[1]) < float("inf"):
            reached = (one.curve.gap <= LEVELS[1]).argmax()
            costs = (f"{one.curve.floats_up[reached] / one.n:,.0f}", f"{one.curve.flops[reached] / one.n / 1e6:,.3g}")
        rounds = (number(one.rounds_to(level)) for level in LEVELS)
        table.add_row(escape(one.label), *rounds, *costs, f"{max(one.curve.gap[-1], 0.0):.0e}")
    return table
