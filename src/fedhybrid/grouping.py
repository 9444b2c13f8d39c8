"""Which clients are padded to one size together.

Clients of very different sizes cannot share one array without waste, and every group is a program to compile. So: the fewest groups
that pad to at most 1.5 times the data, and never more than eight; cut points by dynamic programming over the distinct sizes.
"""

import numpy as np

MOST_GROUPS = 8
ENOUGH = 1.5
MOST_SIZES = 1024  # distinct sizes considered as cut points; more are thinned out, which moves a cut by 0.1 % of the clients


def group_by_size(sizes: list[int]) -> list[tuple[list[int], int]]:
    """Groups as (positions in `sizes`, size to pad to), smallest first."""
    size = np.asarray(sizes)
    levels = np.unique(size)
    if len(levels) > MOST_SIZES:
        levels = np.unique(np.quantile(levels, np.linspace(0, 1, MOST_SIZES), method="higher"))
    level_of = np.searchsorted(levels, size)
    cuts = _cut(levels, np.bincount(level_of, minlength=len(levels)), total=int(size.sum()))
    group_of = np.searchsorted(cuts, level_of)
    return [(np.flatnonzero(group_of == g).tolist(), int(levels[cut])) for g, cut in enumerate(cuts)]


def _cut(levels: np.ndarray, count: np.ndarray, total: int) -> np.ndarray:
    """Last level of each group. cost[j] is the least padded total of levels 0…j in the number of groups reached so far."""
    below = np.concatenate([[0], np.cumsum(count)])
    one_group = levels[None, :] * (below[None, 1:] - below[:-1, None])  # [i, j]: levels i…j padded to level j
    one_group = np.where(np.arange(len(levels))[:, None] <= np.arange(len(levels))[None, :], one_group.astype(float), np.inf)
    cost = one_group[0]
    back: list[np.ndarray] = []
    while cost[-1] > ENOUGH * total and len(back) < min(MOST_GROUPS, len(levels)) - 1:
        candidates = np.concatenate([[np.inf], cost[:-1]])[:, None] + one_group  # [i, j]: the last group begins at level i
        back.append(np.argmin(candidates, axis=0))
        cost = np.min(candidates, axis=0)
    cuts = [len(levels) - 1]
    for starts in reversed(back):
        cuts.append(int(starts[cuts[-1]]) - 1)
    return np.asarray(cuts[::-1])
