"""Where a value lies on an axis, in percent of its length, and which values get a tick."""

import math
from collections.abc import Sequence
from typing import NamedTuple

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Tick(NamedTuple):
    value: float  # on the axis: of a logarithmic one, the logarithm
    label: str


class Axis(NamedTuple):
    least: float
    most: float
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """Percent, kept on the axis."""
        part = (value - self.least) / (self.most - self.least)
        return round(100.0 * min(1.0, max(0.0, part)), 3)

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most


def linear(values: Sequence[float], most_ticks: int = 5, margin: float = 0.04) -> Axis:
    least, most = _widened(min(values), max(values), margin)
    return Axis(least, most, tuple(Tick(value, f"{value:.6g}") for value in _round_values(least, most, most_ticks)))


def counts(most: int, most_ticks: int = 6) -> Axis:
    """From 0 to a whole number."""
    most = max(1, most)
    step = max(1, math.ceil(_step(most, most_ticks)))
    return Axis(0.0, float(most), tuple(Tick(float(k), f"{k:,}") for k in range(0, most + 1, step)))


def decades(values: Sequence[float], most_ticks: int = 7) -> Axis:
    """Whole powers of ten around positive values; the axis is their logarithm to base 10."""
    least, most = math.floor(min(map(math.log10, values))), math.ceil(max(map(math.log10, values)))
    most = max(most, least + 1)
    stride = math.ceil((most - least) / (most_ticks - 1))
    return Axis(least, most, tuple(Tick(k, power_of_ten(k)) for k in range(most, least - 1, -stride)))


def ratios(logs: Sequence[float], most_ticks: int = 5, margin: float = 0.04) -> Axis:
    """Natural logarithms of ratios, labelled by the ratios."""
    least, most = _widened(min(logs), max(logs), margin)
    span = (most - least) / math.log(10.0)
    if span < 0.5:
        values = _round_values(math.exp(least), math.exp(most), most_ticks)
        return Axis(least, most, tuple(Tick(math.log(value), f"{value:.6g}") for value in values if value > 0))
    first, last = math.floor(least / math.log(10.0)), math.ceil(most / math.log(10.0))
    stride = max(1, math.ceil(span / most_ticks))
    places = [k for k in range(first, last + 1) if k % stride == 0]
    digits = (1, 2, 5) if span < most_ticks / 3 else (1, 3) if span < most_ticks / 2 else (1,)
    logs_of = [(k * math.log(10.0) + math.log(digit), k, digit) for k in places for digit in digits]
    ticks = (Tick(value, _ratio(k, digit)) for value, k, digit in logs_of if least <= value <= most)
    return Axis(least, most, tuple(ticks))


def power_of_ten(k: int) -> str:
    return "1" if k == 0 else "10" + str(k).translate(SUPERSCRIPT)


def _ratio(k: int, digit: int) -> str:
    return f"{digit * 10.0**k:.6g}" if abs(k) < 4 else power_of_ten(k) if digit == 1 else f"{digit}·{power_of_ten(k)}"


def _widened(least: float, most: float, margin: float) -> tuple[float, float]:
    room = margin * (most - least) or max(1.0, abs(least)) * 0.5
    return least - room, most + room


def _step(span: float, most_ticks: int) -> float:
    """1, 2 or 5 times a power of ten."""
    rough = span / most_ticks
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1.0, 2.0, 5.0, 10.0) if unit * factor >= rough * (1 - 1e-9))


def _round_values(least: float, most: float, most_ticks: int) -> list[float]:
    step = _step(most - least, most_ticks)
    return [k * step for k in range(math.ceil(least / step), math.floor(most / step) + 1)]
