"""What may be told of small counts, where their total is told too. A count that is not told is NaN."""

import math
from collections.abc import Sequence


def withheld(counts: Sequence[float], least: int) -> list[bool]:
    """Which counts are not told: those below `least`, unless they are 0; and, so that none of these follows from the total, the next
    smallest. NaN among the counts: this was decided before, and only those are not told."""
    if any(map(math.isnan, counts)):
        return list(map(math.isnan, counts))
    hidden = [0 < count < least for count in counts]
    if not any(hidden):
        return hidden
    for place in sorted(range(len(counts)), key=lambda place: counts[place]):
        if sum(count for count, hides in zip(counts, hidden, strict=True) if hides) >= least:
            break  # so that more than one is behind it
        hidden[place] = True
    return hidden


def total(counts: Sequence[float], hidden: Sequence[bool], least: int) -> float:
    """Of all counts; NaN where too little is behind those that are not told."""
    behind = sum(count for count, hides in zip(counts, hidden, strict=True) if hides)
    return math.nan if any(hidden) and behind < least else sum(counts)
