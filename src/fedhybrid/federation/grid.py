"""Which scale every part of a sum is asked at: fine enough for what it was last time, coarse enough for every site.

A part whose sites' values cancel (a gradient) is far smaller as a sum than at any site, so that the scale that follows from the sum
is refused. The coarser one then stays a ceiling, until the sum is so much smaller that another try is worth a round trip.
All of it follows from the sums and the scales on record: a restarted server asks at the same ones.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..secure.fixedpoint import lowered, next_scale
from .agreed import SCALES

ANEW = 2.0**-24  # a ceiling is forgotten when the sum has fallen by this
BLIND = 20  # bits that a first question may lose before it is asked again
STEP = 12


@dataclass
class Part:
    whole: bool  # integers: scale 0 holds them exactly
    scale: int
    ceiling: int = SCALES[1]
    seen: float = math.inf  # the sum when the ceiling was found

    def after(self, used: int, largest: float, n: int) -> None:
        if self.whole:
            return
        if used < self.scale:
            self.ceiling, self.seen = used, largest
        elif largest < ANEW * self.seen:
            self.ceiling, self.seen = SCALES[1], math.inf
        self.scale = min(next_scale(np.array([largest]), used, n, SCALES, margin=STEP), self.ceiling)


class Grid:
    """The scales of one question."""

    def __init__(self, floats: tuple[bool, ...], bits: int, n: int) -> None:
        self.parts = [Part(not real, bits if real else 0) for real in floats]
        self.n, self.asked = n, False

    @property
    def scales(self) -> tuple[int, ...]:
        return tuple(part.scale for part in self.parts)

    def after(self, used: tuple[int, ...], largest: np.ndarray) -> bool:
        """Take note of a sum. True: it was the first one, and so small for its scale that it is worth asking again at a finer one."""
        for part, scale, size in zip(self.parts, used, largest.tolist(), strict=True):
            part.after(scale, size, self.n)
        coarse = not self.asked and any(part.scale - scale >= BLIND for part, scale in zip(self.parts, used, strict=True))
        self.asked = True
        return coarse


def coarser(scales: tuple[int, ...], leaf: int, tries: int) -> tuple[int, ...]:
    """After a refusal: in steps that grow, because every one costs a round trip."""
    return tuple(lowered(scale, SCALES, by=STEP * tries) if k == leaf else scale for k, scale in enumerate(scales))
