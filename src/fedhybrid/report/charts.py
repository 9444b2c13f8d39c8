"""Pictures of a fit as inline SVG. Across they are laid out in percent and down in pixels, so that text keeps its size on a phone.

Whatever can be pointed at is a `.point` with an aria-label: report.js shows that label on hover and focus, a screen reader reads it.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .markup import Markup, element
from .scales import Axis, Tick, counts, decades

MOST_POINTS = 160  # of a line; more are thinned out
ROW = 26  # pixels of a row of the forest


def point(label: str, *shapes: Any, kind: str = "") -> Markup:
    return element("g", *shapes, class_=f"point {kind}".strip(), tabindex="0", role="img", aria_label=label)


def _picture(label: str, height: int, *shapes: Any, kind: str) -> Markup:
    named = {"role": "group", "aria_label": label} if label else {}  # one point alone says for itself what it is
    return element("svg", *shapes, class_=kind, **named, width="100%", height=height)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return element("line", x1=f"{x1}%", y1=round(y1, 2), x2=f"{x2}%", y2=round(y2, 2), class_=kind)


def _text(x: str, y: float, label: str, anchor: str = "middle") -> Markup:
    return element("text", label, x=x, y=round(y, 2), text_anchor=anchor)


# ── a plane with two axes ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Plane(NamedTuple):
    x: Axis
    y: Axis
    height: int

    def down(self, value: float) -> float:
        return self.height * (1.0 - self.y.at(value) / 100.0)

    def drawn(self, label: str, x_name: str, y_name: str, *shapes: Any) -> Markup:
        """Tick labels of y stand in a column of their own, left of the plane."""
        room = 10  # above, for half a line of text
        levels = [_line(0, self.down(tick.value), 100, self.down(tick.value), "grid") for tick in self.y.ticks]
        below = [_text(f"{self.x.at(tick.value)}%", self.height + 18, tick.label) for tick in self.x.ticks]
        left = [_text("100%", self.down(tick.value) + 4, tick.label, "end") for tick in self.y.ticks]
        base = _line(0, self.height, 100, self.height, "axis")
        frame = [element("g", levels, base, below, aria_hidden="true"), *shapes]
        body = element("g", frame, transform=f"translate(0 {room})")
        names = element(
            "svg", element("g", left, transform=f"translate(0 {room})"), class_="left", height=self.height + 36, aria_hidden="true"
        )
        return element(
            "div",
            element("div", y_name, class_="axis-name"),
            element("div", names, _picture(label, self.height + 36, body, kind="plane"), class_="plane-row"),
            element("div", x_name, class_="axis-name across"),
            class_="chart",
        )


def convergence(values: Sequence[tuple[int, float]]) -> Markup | None:
    """The residual against rounds, on a logarithmic scale; what is not a positive number has no place on it."""
    seen = [(rounds, value) for rounds, value in values if math.isfinite(value) and value > 0]
    if not seen:
        return None
    stride = math.ceil(len(seen) / MOST_POINTS)
    kept = seen[::stride] if seen[-1] in seen[::stride] else [*seen[::stride], seen[-1]]
    plane = Plane(counts(kept[-1][0]), decades([value for _, value in kept]), 220)
    places = [(plane.x.at(rounds), plane.down(math.log10(value))) for rounds, value in kept]
    joins = [_line(*before, *after, "curve") for before, after in pairwise(places)]
    dots = [
        point(f"Round {rounds:,}: residual {value:.2e}", _circle(x, y, 9, "reach"), _circle(x, y, 4 if stride == 1 else 2.5, "dot"))
        for (rounds, value), (x, y) in zip(kept, places, strict=True)
    ]
    label = f"Residual by rounds: from {kept[0][1]:.1e} to {kept[-1][1]:.1e} in {kept[-1][0]:,} rounds"
    return plane.drawn(label, "rounds", "residual, logarithmic", element("g", joins, aria_hidden="true"), dots)


def calibration(bins: Sequence[tuple[float, float, float]]) -> Markup:
    """(rows, predicted, observed) of tenths: on the diagonal what was predicted is what happened."""
    quarters = tuple(Tick(k / 4, f"{25 * k} %") for k in range(5))
    plane = Plane(Axis(0.0, 1.0, quarters), Axis(0.0, 1.0, quarters), 260)
    largest = max(rows for rows, _, _ in bins)
    dots = [
        point(
            f"Predicted {100 * predicted:.1f} %, observed {100 * observed:.1f} %, of {rows:,} rows",
            _circle(plane.x.at(predicted), plane.down(observed), 4.0 + 9.0 * math.sqrt(rows / largest), "dot soft"),
        )
        for rows, predicted, observed in bins
    ]
    diagonal = element("g", _line(0, plane.height, 100, 0, "reference"), aria_hidden="true")
    return plane.drawn("Observed share of events against the predicted one", "predicted", "observed", diagonal, dots)


def _circle(x: float, y: float, r: float, kind: str) -> Markup:
    return element("circle", cx=f"{x}%", cy=round(y, 2), r=round(r, 1), class_=kind)


# ── strips: one row of a table ────────────────────────────────────────────────────────────────────────────────────────────────


def interval(axis: Axis, label: str, middle: float, lower: float, upper: float) -> Markup:
    """A row of a forest: the estimate, its interval, an arrow where that goes on beyond the axis. No interval where it is NaN."""
    y = ROW / 2
    grid = [_line(axis.at(tick.value), 0, axis.at(tick.value), ROW, "grid") for tick in axis.ticks]
    if axis.holds(0.0):
        grid.append(_line(axis.at(0.0), 0, axis.at(0.0), ROW, "reference"))
    shapes: list[Any] = [element("rect", x="0", y="0", width="100%", height=ROW, class_="reach")]
    if not (math.isnan(lower) or math.isnan(upper)):
        shapes.append(_line(axis.at(lower), y, axis.at(upper), y, "whisker"))
        shapes += [_line(axis.at(end), y - 4, axis.at(end), y + 4, "whisker") for end in (lower, upper) if axis.holds(end)]
        shapes += [_beyond(0, "‹")] if lower < axis.least <= middle else []
        shapes += [_beyond(100, "›")] if upper > axis.most >= middle else []
    if axis.holds(middle):
        shapes.append(_circle(axis.at(middle), y, 4.5, "dot"))
    else:
        shapes.append(_beyond(0, "«") if middle < axis.least else _beyond(100, "»"))
    return _picture("", ROW, element("g", grid, aria_hidden="true"), point(label, *shapes), kind="strip")


def _beyond(place: int, sign: str) -> Markup:
    return element("text", sign, x=f"{place}%", y=ROW / 2 + 5, text_anchor="middle", class_="beyond")


def ruler(axis: Axis) -> Markup:
    """The tick labels under a forest."""
    labels = [_text(f"{axis.at(tick.value)}%", 14, tick.label) for tick in axis.ticks]
    return element("svg", labels, class_="strip ruler", width="100%", height=20, aria_hidden="true")


def bar(part: float, label: str) -> Markup:
    """A bar whose whole length is 1."""
    percent = round(100.0 * min(1.0, max(0.0, part)), 2)
    shapes = [
        element("rect", x="0", y="3", width="100%", height="8", rx="4", class_="rail"),
        element("rect", x="0", y="3", width=f"{percent}%", height="8", rx="4", class_="filled"),
    ]
    return _picture("", 14, point(label, *shapes), kind="bar")
