"""Optimality gap against what it costs: rounds, floats that a client sends, flops that a client takes."""

import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..experiments.study import Measured
from .style import GRID, INK, MUTED

# Okabe and Ito's colours, which colour-blind readers can tell apart
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b8794", "#000000")
DASHES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
FLOOR = 1e-13


def draw(title: str, measured: list[Measured], *paths: Path) -> None:
    """One picture with the three axes; a line ends where the run did."""
    many = len(measured) > len(COLOURS)
    figure = Figure(figsize=(12, 6.4 if many else 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, sharey=True)
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=12, color=INK, fontweight="bold")
    ranked = sorted(measured, key=_order) if many else measured
    for one, look in zip(ranked, _looks(ranked), strict=True):
        gap = np.maximum(one.curve.gap, FLOOR)
        costs = (one.curve.rounds, one.curve.floats_up / one.n, one.curve.flops / one.n)
        for panel, cost in zip(panels, costs, strict=True):
            dot: dict[str, Any] = {"marker": "o", "clip_on": False} if len(gap) < 3 else {}  # so short a line would not be seen
            panel.plot(cost, gap, label=plain(one.label), linewidth=1.8, **look, **dot)
    for panel, name in zip(panels, ("rounds", "floats sent, per client", "flops, per client"), strict=True):
        _axes(panel, name)
    panels[0].set_ylabel("optimality gap, relative to the start's", color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=7 if many else 8, frameon=False, fontsize=9)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)


def plain(text: str) -> str:
    """Words that matplotlib takes for words, not for formulas."""
    return text.replace("$", r"\$")


def _order(one: Measured) -> tuple[float, float]:
    return one.rounds_to(1e-8), float(one.curve.gap[-1])


def _looks(measured: list[Measured]) -> list[dict[str, Any]]:
    """A colour and a dash for each; FedH-K from light to dark as K grows."""
    hybrids = [one for one in measured if re.fullmatch(r"FedH-(G|N|\d+)", one.label)]
    shade = {one.label: matplotlib.colormaps["viridis_r"](0.15 + 0.85 * _newton_clients(one) / one.n) for one in hybrids}
    looks: list[dict[str, Any]] = []
    others = 0
    for one in measured:
        if one.label in shade:
            looks.append({"color": shade[one.label], "linestyle": "-"})
        else:
            looks.append({"color": COLOURS[others % len(COLOURS)], "linestyle": DASHES[others // len(COLOURS) % len(DASHES)]})
            others += 1
    return looks


def _newton_clients(one: Measured) -> float:
    which = one.label.removeprefix("FedH-")
    return {"G": 0.0, "N": float(one.n)}[which] if which in ("G", "N") else float(which)


def _axes(panel: Any, name: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(1e-13, 3.0)
    panel.set_xlabel(name, color=INK)
    panel.axhline(1e-8, color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)))
    panel.grid(color=GRID, linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(colors=INK, labelsize=9)
