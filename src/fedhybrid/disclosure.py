"""What may be told of small counts, where their total is told too."""

from collections.abc import Sequence


def withheld(counts: Sequence[float], least: int) -> list[bool]:
    """Which counts are not told: those below `least`; and, so that none of these follows from the total, the next smallest."""
    hidden = [count < least for count in counts]
    if not any(hidden):
        return hidden
    for place in sorted(range(len(counts)), key=lambda place: counts[place]):
        if sum(count for count, hides in zip(counts, hidden, strict=True) if hides) >= least:
            break  # so that more than one is behind it
        hidden[place] = True
    return hidden


def total(counts: Sequence[float], hidden: Sequence[bool], least: int) -> float | None:
    """Of all counts; None where too little is behind those that are not told."""
    behind = sum(count for count, hides in zip(counts, hidden, strict=True) if hides)
    return None if any(hidden) and behind < least else sum(counts)
