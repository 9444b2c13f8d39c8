"""Figures, by matplotlib."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..demo import Demo
from .style import GRID, INK, MUTED

BENIGN, MALIGNANT = "#9fc5e8", "#c0504d"
COLOURS = {"GD": "#7b8794", "FedH-G": "#e69f00", "FedH-4": "#0072b2", "FedH-N": "#009e73"}


def draw_demo(demo: Demo, path: Path) -> None:
    """Left: what each site holds. Right: distance to the pooled fit against rounds."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _draw_sites(left, demo)
    _draw_convergence(right, demo)
    figure.savefig(path, dpi=150)


def _plain(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)


def _draw_sites(axes, demo: Demo) -> None:
    names = list(demo.data.sites)
    benign = [int(y.sum()) for _, y in demo.data.sites.values()]
    rows = [len(y) for _, y in demo.data.sites.values()]
    malignant = [total - part for total, part in zip(rows, benign, strict=True)]
    axes.barh(names, benign, color=BENIGN, label="benign")
    axes.barh(names, malignant, left=benign, color=MALIGNANT, label="malignant")
    hybrid = next(fit for fit in demo.fits if 0 < len(fit.newton_sites) < len(names))
    for place, (name, total) in enumerate(zip(names, rows, strict=True)):
        update = "newton" if name in hybrid.newton_sites else "gradient"
        axes.text(total + 2, place, update, va="center", fontsize=8, color=COLOURS["FedH-4"] if update == "newton" else MUTED)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(rows))
    axes.set_xlabel("rows", color=INK)
    axes.set_title("What the sites hold, and their update in FedH-4", loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    _plain(axes)


def _draw_convergence(axes, demo: Demo) -> None:
    for fit in demo.fits:
        rounds, distance = fit.result.trace.rounds, fit.distance
        axes.semilogy(rounds, distance, color=COLOURS[fit.name], linewidth=2)
        axes.annotate(f" {fit.name}", (rounds[-1], distance[-1]), color=COLOURS[fit.name], fontsize=9, fontweight="bold", va="center")
    longest = max(int(fit.result.trace.rounds[-1]) for fit in demo.fits)
    axes.set_xlim(0, 1.18 * longest)
    axes.set_xlabel("rounds", color=INK)
    axes.set_title("Distance of x₀ to the pooled fit, relative", loc="left", fontsize=10, color=INK)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    _plain(axes)
