"""Who holds which rows.

A partition is a function (y, n, rng) ↦ n arrays of row numbers, ascending, in which every row stands exactly once. `iid` is one;
the others take their parameters first:

    parts = by_label(one_label={0: 4, 1: 3}, both=1)(y, 8, rng)
    sites = cut(A, y, parts)

rng is a NumPy Generator or a seed. Wherever a range of `shares` is asked for, each client draws a number uniformly from it, and rows
are dealt in proportion to these numbers; None deals equal parts. No client is left empty, except by a share of 0 in `by_shares`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from .arguments import numeric, positive, whole
from .status import InvalidConfig, InvalidData, refuse_unknown_keywords

Partition = Callable[[Any, int, Any], list[np.ndarray]]
Range = tuple[float, float] | None


def iid(y: Any, n: int, rng: Any) -> list[np.ndarray]:
    """Rows at random, in equal parts."""
    y, n, rng = _read(y, n, rng)
    return _sorted(_deal(rng.permutation(len(y)), np.ones(n), least=1))


@refuse_unknown_keywords
def lognormal_sizes(mean: float = 4.0, sigma: float = 2.0, least: int = 1) -> Partition:
    """Rows at random; sizes in proportion to lognormal(mean, sigma) numbers, none below `least`."""
    mean, sigma, least = _finite("lognormal_sizes: mean", mean), positive("lognormal_sizes: sigma", sigma), whole("least", least)

    def partition(y: Any, n: int, rng: Any) -> list[np.ndarray]:
        y, n, rng = _read(y, n, rng, least)
        log_size = rng.normal(mean, sigma, n)
        return _sorted(_deal(rng.permutation(len(y)), np.exp(log_size - log_size.max()), least))

    return partition


@refuse_unknown_keywords
def by_response(shares: Range = (0.1, 1.0)) -> Partition:
    """Rows sorted by response and dealt in blocks: the first client holds the lowest. Equal responses are in random order."""
    shares = _range(shares)

    def partition(y: Any, n: int, rng: Any) -> list[np.ndarray]:
        y, n, rng = _read(y, n, rng)
        if y.dtype.kind not in "fiub":
            raise InvalidData("by_response sorts rows by y, which must hold numbers.")
        shuffled = rng.permutation(len(y))
        ascending = shuffled[np.argsort(y[shuffled], kind="stable")]
        return _sorted(_deal(ascending, _draw_shares(shares, n, rng), least=1))

    return partition


@refuse_unknown_keywords
def by_label(*, one_label: Mapping[Hashable, int], both: int = 0, shares: Range = (0.1, 1.0)) -> Partition:
    """Clients that hold one label only, in the order of `one_label` (label → how many), and after them `both` that hold every label.

    A client that holds every label has an equal part of its share in each of them.
    """
    owners = [label for label, count in one_label.items() for _ in range(whole(f"by_label: one_label[{label!r}]", count))]
    if isinstance(both, bool) or not isinstance(both, int | np.integer) or both < 0:
        raise InvalidConfig(f"by_label: both must be a whole number, 0 or more, not {both!r}.")
    shares = _range(shares)

    def partition(y: Any, n: int, rng: Any) -> list[np.ndarray]:
        y, n, rng = _read(y, n, rng)
        if n != len(owners) + both:
            raise InvalidConfig(f"by_label describes {len(owners)} + {both} clients, and n is {n}.")
        rows_of = _rows_by_label(y, rng)
        if absent := [label for label in one_label if label not in rows_of]:
            raise InvalidData(f"by_label: no row has label {absent[0]!r}, which {one_label[absent[0]]} clients are to hold.")
        size = _draw_shares(shares, n, rng)
        size[len(owners) :] /= len(rows_of)
        held: list[list[np.ndarray]] = [[] for _ in range(n)]
        for label, rows in rows_of.items():
            who = [i for i in range(n) if i >= len(owners) or owners[i] == label]
            if not who:
                raise InvalidConfig("by_label: y has a label that no client is to hold; name it in one_label, or have both=1.")
            if len(rows) < len(who):
                raise InvalidData(f"by_label: one label has {len(rows)} rows for {len(who)} clients; each needs at least one.")
            for i, part in zip(who, _deal(rows, size[who], least=1), strict=True):
                held[i].append(part)
        return _sorted([np.concatenate(parts) for parts in held])

    return partition


def by_shares(table: Mapping[Hashable, Sequence[float] | np.ndarray]) -> Partition:
    """Each label in given proportions: label → one share per client, which sum to 1."""
    if not isinstance(table, Mapping) or not table:
        raise InvalidConfig("by_shares needs a dict: label → one share per client.")
    read = {label: numeric(f"by_shares: table[{label!r}]", shares) for label, shares in table.items()}
    for label, shares in read.items():
        if shares.ndim != 1 or not np.all(np.isfinite(shares)) or np.any(shares < 0) or abs(shares.sum() - 1) > 1e-9:
            raise InvalidConfig(f"by_shares: the shares of label {label!r} must be one per client, not negative, and sum to 1.")

    def partition(y: Any, n: int, rng: Any) -> list[np.ndarray]:
        y, n, rng = _read(y, n, rng, least=0)
        if any(len(shares) != n for shares in read.values()):
            raise InvalidConfig(f"by_shares: each label needs one share for each of the {n} clients.")
        rows_of = _rows_by_label(y, rng, order=list(read))
        parts = [_deal(rows_of[label], shares) for label, shares in read.items() if label in rows_of]
        return _sorted([np.concatenate(of_client) for of_client in zip(*parts, strict=True)])

    return partition


def dirichlet(alpha: float) -> Partition:
    """Equal sizes, and in each client a mixture of labels drawn from Dirichlet(alpha · their frequencies).

    Small alpha: one label a client; large: as in the whole. A label that has run out leaves the mixtures of the clients after that.
    T.-M. H. Hsu, H. Qi, M. Brown, arXiv:1909.06335.
    """
    alpha = positive("dirichlet: alpha", alpha)

    def partition(y: Any, n: int, rng: Any) -> list[np.ndarray]:
        y, n, rng = _read(y, n, rng)
        rows_of = list(_rows_by_label(y, rng).values())
        left = np.array([len(rows) for rows in rows_of])
        concentration = np.maximum(alpha * (left / len(y)), np.finfo(float).tiny)
        held = []
        for size in map(len, _deal(np.arange(len(y)), np.ones(n), least=1)):
            take = _draw_counts(size, concentration, left, rng)
            held.append(np.concatenate([rows[rest - count : rest] for rows, rest, count in zip(rows_of, left, take, strict=True)]))
            left = left - take
        return _sorted(held)

    return partition


def groups(column: Any) -> Partition:
    """Rows that belong together by nature, such as a hospital's: one client for each value of `column`, in sorted order."""
    values = _values("groups: column", column)

    def partition(y: Any, n: int, rng: Any) -> list[np.ndarray]:
        y, n, rng = _read(y, n, rng)
        if len(values) != len(y):
            raise InvalidData(f"groups: column has {len(values)} entries and y has {len(y)}.")
        _, number = _distinct("groups: column", values)
        if number.max() + 1 != n:
            raise InvalidConfig(f"groups: column has {number.max() + 1} different values, so that n must be that, not {n}.")
        return [np.flatnonzero(number == i) for i in range(n)]

    return partition


def cut(A: Any, y: Any, parts: Sequence[np.ndarray]) -> list[tuple[Any, np.ndarray]]:
    """The sites (A, y) that hold these rows; A is a dense or scipy.sparse table."""
    A = scipy.sparse.csr_array(A) if scipy.sparse.issparse(A) else np.asarray(A)
    y = np.asarray(y)
    if A.ndim != 2 or y.shape != A.shape[:1]:
        raise InvalidData(f"cut: A has shape {A.shape} and y has shape {y.shape}; they need the same rows.")
    held = [np.asarray(rows) for rows in parts]
    for i, rows in enumerate(held):
        if rows.ndim != 1 or (len(rows) and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(y))):
            raise InvalidData(f"cut: part {i} must be a list of row numbers from 0 to {len(y) - 1}.")
    return [(A[rows], y[rows]) for rows in (rows.astype(int) for rows in held)]


def generator(rng: Any) -> np.random.Generator:
    """A Generator as it is, or a new one from a seed."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        raise InvalidConfig(f"rng must be a NumPy Generator or a seed (a whole number, 0 or more), not {rng!r}.")
    return np.random.default_rng(rng)


# ── what the partitions share ─────────────────────────────────────────────────────────────────────────────────────────────────


def _read(y: Any, n: Any, rng: Any, least: int = 1) -> tuple[np.ndarray, int, np.random.Generator]:
    values, n = _values("y", y), whole("n", n)
    if len(values) < n * least:
        raise InvalidData(f"{len(values)} rows cannot be dealt to {n} clients that need at least {least} each.")
    return values, n, generator(rng)


def _values(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise InvalidData(f"{name} has shape {array.shape}; it needs one entry per row.")
    if array.dtype.kind == "f" and (bad := int(np.count_nonzero(~np.isfinite(array)))):
        raise InvalidData(f"{name} has {bad} of {len(array)} entries that are NaN or infinite.")
    return array


def _distinct(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values, and for each row which one it has."""
    try:
        found, number = np.unique(values, return_inverse=True)
    except TypeError:  # numbers, text and missing ones side by side
        raise InvalidData(f"{name} holds entries of different kinds, or missing ones.") from None
    return found, number


def _rows_by_label(y: np.ndarray, rng: np.random.Generator, order: list | None = None) -> dict[Hashable, np.ndarray]:
    """Each label's row numbers, in random order. `order`: all labels that may occur, in the order in which they are shuffled."""
    if y.dtype.kind == "f" and np.any(y != np.floor(y)):
        raise InvalidData("y holds fractions, not labels; by_response deals rows by a real response.")
    found, number = _distinct("y", y)
    place = {label: i for i, label in enumerate(found.tolist())}
    if order is not None and (unknown := len(set(place) - set(order))):
        raise InvalidData(f"y has {unknown} labels for which no shares are given.")
    return {label: rng.permutation(np.flatnonzero(number == place[label])) for label in order or place if label in place}


def _deal(rows: np.ndarray, shares: np.ndarray, least: int = 0) -> list[np.ndarray]:
    """Consecutive blocks in proportion to `shares`, of `least` rows at least."""
    spare = len(rows) - least * len(shares)
    ends = np.round(np.cumsum(shares) / shares.sum() * spare).astype(int) + least * np.arange(1, len(shares) + 1)
    return np.split(rows, ends[:-1])


def _draw_shares(shares: Range, n: int, rng: np.random.Generator) -> np.ndarray:
    return np.ones(n) if shares is None else rng.uniform(*shares, n)


def _draw_counts(size: int, concentration: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many rows of each label, `size` in all, by a mixture from Dirichlet(concentration), as far as there are rows left."""
    mixture, take = rng.dirichlet(concentration), np.zeros_like(left)
    while (missing := size - take.sum()) > 0:
        some_left = take < left
        mixture = mixture * some_left
        if mixture.sum() < 1e-12:
            # Nothing that it wants is left. What remains of a Dirichlet vector, scaled to sum 1, is one again: so is this.
            mixture[some_left] = rng.dirichlet(concentration[some_left])
        mixture = mixture / mixture.sum()
        take = np.minimum(take + rng.multinomial(missing, mixture), left)
    return take


def _sorted(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.sort(rows) for rows in parts]


def _range(shares: Any) -> Range:
    if shares is None:
        return None
    ends = numeric("shares", shares)
    if ends.shape != (2,) or not 0 < ends[0] <= ends[1] < np.inf:
        raise InvalidConfig("shares must be None or a range (low, high) with 0 < low ≤ high.")
    return float(ends[0]), float(ends[1])


def _finite(name: str, value: Any) -> float:
    number = numeric(name, value)
    if number.ndim or not np.isfinite(number):
        raise InvalidConfig(f"{name} must be one finite number.")
    return float(number)
