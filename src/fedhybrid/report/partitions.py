"""A picture of a partition: what each client holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..status import InvalidData
from .style import GRID, INK, MUTED

# light to dark, and told apart by readers who see few colours
COLOURS = ("#9fc5e8", "#c0504d", "#e69f00", "#009e73", "#56508c", "#cc79a7", "#8c6d46", "#4d8fac", "#b5bd61", "#5b6770")
DOTS = 300  # drawn for one client at most


def draw_partition(data: Any, path: Path | str, *, title: str = "What the clients hold") -> None:
    """Clients by labels, as stacked bars; clients by response, as boxes with dots, where y is a real number.

    data  sites as a fleet takes them (a list of (A, y), or a dict by name), or (y, parts) with the row numbers of each client
    """
    names, held = _responses(data)
    figure = Figure(figsize=(7.5, 1.3 + 0.27 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = np.unique(np.concatenate(held))
    classes = len(labels) <= len(COLOURS) and np.all(labels == np.floor(labels))
    if classes:
        _draw_labels(axes, held, labels)
    else:
        _draw_responses(axes, held)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=22 if classes else 8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)


def _responses(data: Any) -> tuple[list[str], list[np.ndarray]]:
    """Each client's name and its y."""
    if isinstance(data, Mapping):
        names, held = [str(name) for name in data], [np.asarray(site[1], float) for site in data.values()]
    elif isinstance(data, tuple) and len(data) == 2 and np.ndim(data[0]) == 1:
        y, parts = data
        held = [np.asarray(y, float)[rows] for rows in parts]
        names = [f"client {i}" for i in range(len(held))]
    else:
        held = [np.asarray(site[1], float) for site in data]
        names = [f"client {i}" for i in range(len(held))]
    if not sum(map(len, held)):
        raise InvalidData("draw_partition: no client has a row.")
    return names, held


def _draw_labels(axes: Any, held: list[np.ndarray], labels: np.ndarray) -> None:
    places = np.arange(len(held))
    counts = np.array([[np.count_nonzero(y == label) for label in labels] for y in held])
    ends = counts.cumsum(axis=1)
    for k, label in enumerate(labels):
        style = {"color": COLOURS[k], "edgecolor": "white", "linewidth": 0.4, "label": f"label {label:g}" if k == 0 else f"{label:g}"}
        axes.barh(places, counts[:, k], left=ends[:, k] - counts[:, k], height=0.72, **style)
    longest = ends[:, -1].max()
    for place, total in zip(places, ends[:, -1], strict=True):
        axes.text(total + 0.008 * longest, place, f"{total:,}", va="center", fontsize=8, color=MUTED)
    axes.set_xlim(0, 1.09 * longest)
    axes.set_xlabel("rows", color=INK, fontsize=9)
    # above the bars, so that it never covers one
    style = {"frameon": False, "fontsize": 8.5, "handlelength": 0.9, "handletextpad": 0.4, "columnspacing": 1.1, "labelcolor": INK}
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(labels), borderaxespad=0, borderpad=0.3, **style)


def _draw_responses(axes: Any, held: list[np.ndarray]) -> None:
    rng = np.random.default_rng(0)  # where a dot stands across its line means nothing, and is always the same
    for place, y in enumerate(held):
        axes.text(1.01, place, f"{len(y):,}", va="center", fontsize=8, color=MUTED, transform=axes.get_yaxis_transform())
        if len(y) == 0:
            continue
        dots = rng.permutation(y)[:DOTS]
        axes.scatter(dots, place + rng.uniform(-0.3, 0.3, len(dots)), s=3, color=COLOURS[0], linewidths=0, zorder=2)
        low, first, middle, third, high = np.quantile(y, (0.05, 0.25, 0.5, 0.75, 0.95))
        axes.hlines(place, low, high, color=INK, linewidth=1, zorder=3)
        axes.barh(place, third - first, left=first, height=0.44, color="white", edgecolor=INK, linewidth=1, zorder=4)
        axes.vlines(middle, place - 0.22, place + 0.22, color=COLOURS[1], linewidth=2, zorder=5)
    axes.text(1.01, -0.9, "rows", va="center", fontsize=8, color=MUTED, transform=axes.get_yaxis_transform())
    axes.set_xlabel("response: median, middle half, and from 5 % to 95 %", color=INK, fontsize=9)
