"""The fleet: sites + loss + penalty + weighting + choice of update → one problem per client, grouped so that they stack.

Everything that a caller can get wrong about data is noticed here, before the first round. Messages name site and column and count
rows; they never print a value.
"""

import copy
import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import scipy.sparse

from .arguments import numeric, truth
from .clients.base import Client
from .clients.clock import Clock
from .curvature import UPDATES
from .grouping import group_by_size
from .losses import Loss, RowLoss, from_value
from .problem import GLM, Custom, Multinomial, Problem, Quadratic, free_entries
from .rows import Dense, Sparse
from .status import InvalidConfig, InvalidData, refuse_unknown_keywords
from .validation import Site, check_responses, read_sites, row_norms

Array = Any
BLOCK = 512  # rows whose statistics are formed at once
STATISTICS_BUDGET = 2**31  # bytes of Gram matrices beyond which squared loss stays on its rows


class Group(NamedTuple):
    """Clients that are stacked into one array program."""

    members: tuple[int, ...]  # positions in site order
    rows: int  # what each is padded to (0: nothing to pad)


class Objective(Protocol):
    """What can be said of Σfᵢ without its data: all that stopping and certificates need."""

    @property
    def n(self) -> int: ...

    @property
    def d(self) -> int: ...

    @property
    def reg(self) -> np.ndarray: ...

    @property
    def loss(self) -> Any: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def row_norm(self) -> float: ...

    @property
    def fingerprint(self) -> str: ...


class Fleet:
    """The clients of one federated problem, min Σ fᵢ(x).

    sites      list of (A, y), (A, y, w) or (A, y, w, offset), or a dict of named ones; A is a dense or scipy.sparse table of rows,
               which is not copied: leave it as it is until the transport is made
    loss       fh.squared, logistic (labels 0 and 1, or −1 and 1), poisson, huber, softmax (labels 0 … K−1);
               a convex JAX function (z, y); or fh.custom((x, a, y) ↦ number, d)
    reg        ½·reg·‖x‖² is added to the whole objective; a number, or one per column
    weighting  "row": Σfᵢ is the mean over all rows, the pooled fit. "client": the sum over clients of their own means (the paper)
    update     "gradient", "diagonal", "newton" or "newton-cg"; one for all, or one per client as a list or by name. "auto": gradient or
               newton, as `fh.choose` finds best for solve's default method; `fleet.updates` is the choice, which can be given here again
    clock      for "auto": the clients' speeds and links (fh.Clock); without one, every client's work is timed here, once
    intercept  adds a last coordinate, a column of ones, which is not penalised
    keep_rows  squared loss stays on its rows instead of their sufficient statistics: for methods that need rows, such as cocoa
    """

    @refuse_unknown_keywords
    def __init__(
        self,
        sites: Sequence[tuple] | Mapping[str, tuple],
        *,
        loss: Loss | RowLoss | Callable[[Array, Array], Array],
        reg: float | Sequence[float] | np.ndarray = 0.0,
        weighting: str = "row",
        update: str | Sequence[str] | Mapping[str, str] = "newton",
        intercept: bool = False,
        names: Sequence[str] | None = None,
        keep_rows: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.loss = _as_loss(loss)
        if not isinstance(weighting, str) or weighting not in ("row", "client"):
            raise InvalidConfig(f"weighting must be 'row' (the pooled fit) or 'client' (every client counts the same), not {weighting!r}.")
        self.weighting = weighting
        self.intercept, self.keep_rows = truth("intercept", intercept), truth("keep_rows", keep_rows)
        if self.intercept and isinstance(self.loss, RowLoss):
            raise InvalidConfig(
                "intercept=True: a custom loss of the whole x has no linear prediction to add one to; put it in the function."
            )
        self.sites, read_notes = read_sites(sites, names)
        self.names = tuple(site.name for site in self.sites)
        self.n = len(self.sites)
        self.n_features = self.sites[0].A.shape[1]
        self.p = self.n_features + self.intercept
        self.sites, self.K, label_notes = check_responses(self.sites, self.loss)
        self.notes = (*read_notes, *label_notes)
        self._reg_given = numeric("reg", reg)
        self.reg, self.pinned = self._penalty(reg)
        self.d = len(self.reg)
        self.choices: tuple[Any, ...] = ()  # with "auto": what every site does, and the seconds of either update
        automatic = isinstance(update, str) and update == "auto"
        if clock is not None and not (automatic and isinstance(clock, Clock)):
            raise InvalidConfig('clock: a fedhybrid.Clock for update="auto"; a run gets its clock as transport=clock.')
        self.updates = self._updates("gradient" if automatic else update)
        self._try_custom_loss()
        self.total_weight = math.fsum(float(site.w.sum()) for site in self.sites)  # exact: the same in every order
        self._sharers = self.n
        if automatic:
            self._choose(clock)

    def _choose(self, clock: Clock | None) -> None:
        from . import costs  # here, as a choice rehearses algorithms, which know fleets

        chosen = costs.choose(copy.copy(self), clock=clock)  # a copy: groups and fingerprint are those of the updates that it had
        self.updates, self.choices = chosen.updates, chosen.sites
        self.notes = (*self.notes, *(costs.describe(*each) for each in zip(self.names, chosen.sites, strict=True)))

    def _penalty(self, reg: Any) -> tuple[np.ndarray, tuple[int, ...]]:
        """One penalty per coordinate of x; and for softmax the columns in which class 0 is the reference."""
        given = numeric("reg", reg)
        width = self.loss.d if isinstance(self.loss, RowLoss) else self.n_features
        lengths = {width, width + self.intercept}
        if given.ndim > 1 or (given.ndim == 1 and given.size not in lengths):
            raise InvalidConfig(f"reg has shape {given.shape}; it must be a number or one per column ({width}).")
        if not np.all(np.isfinite(given)) or np.any(given < 0):
            raise InvalidConfig("reg must be finite and not negative.")
        columns = np.broadcast_to(given, width).copy() if given.ndim == 0 else given.copy()
        if len(columns) < width + self.intercept:
            columns = np.append(columns, 0.0)
        self.column_penalty = columns  # one per column, the intercept included; of softmax, for every class the same
        if self.K == 0:
            return columns, ()
        pinned = tuple(int(c) for c in np.flatnonzero(columns == 0))
        return np.repeat(columns, self.K)[free_entries(self.p, self.K, pinned)], pinned

    def _updates(self, update: str | Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
        if isinstance(update, Mapping):
            if set(update) != set(self.names):
                raise InvalidConfig("update, as a dict, needs one entry for every site's name.")
            update = [update[name] for name in self.names]
        if not isinstance(update, Sequence | np.ndarray):
            raise InvalidConfig(f"update must be one of {', '.join(UPDATES)}, or a list of them, not {type(update).__name__}.")
        updates = (update,) * self.n if isinstance(update, str) else tuple(update)
        if len(updates) != self.n:
            raise InvalidConfig(f"update has {len(updates)} entries for {self.n} sites; give one for all or one per site.")
        for choice in updates:
            if not isinstance(choice, str) or choice not in UPDATES:
                raise InvalidConfig(f"update {choice!r} is not known; choose from {', '.join(UPDATES)}, or auto for all.")
        return updates

    def _try_custom_loss(self) -> None:
        """A function of the caller's own is tried on shapes alone, so that its errors come before the first round."""
        shapes: tuple = ((self.d,), (self.p,), ()) if isinstance(self.loss, RowLoss) else ((), ())
        function = self.loss.value if isinstance(self.loss, RowLoss) else self.loss.given
        self._custom_program = b""
        if function is None:
            return
        try:
            with jax.enable_x64(True):
                arguments = (jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes)
                program, returned = jax.make_jaxpr(function, return_shape=True)(*arguments)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            hint = "It must be written with jax.numpy, for one row at a time, and fit the length of x and of a row."
            raise InvalidConfig(f"{self.loss.name} could not be evaluated. {hint} ({type(error).__name__}: {reason})") from error
        if getattr(returned, "shape", None) != () or returned.dtype.kind != "f":
            raise InvalidConfig(f"{self.loss.name} must return one real number per row; it returns {returned}.")
        # what the function computes, for the fingerprint: its name alone would not tell two lambdas apart
        constants = b"".join(np.asarray(constant).tobytes() for constant in program.consts)
        self._custom_program = re.sub(r"0x[0-9a-f]+", "", str(program)).encode() + constants

    # ── sites that come and go ────────────────────────────────────────────────────────────────────────────────────────────────

    def without(self, *names: str) -> "Fleet":
        """The fleet of the other sites: their pooled fit, with the same penalty."""
        if unknown := [str(name) for name in names if not isinstance(name, str) or name not in self.names]:
            raise InvalidConfig(f"without: the fleet has no site {', '.join(unknown)}; its sites are {', '.join(self.names)}.")
        stay = [i for i, name in enumerate(self.names) if name not in names]
        if not stay:
            raise InvalidConfig("without: nobody would be left.")
        return self._of({self.names[i]: self.sites[i][1:] for i in stay}, [self.updates[i] for i in stay])

    def joined(self, sites: Mapping[str, tuple], *, update: str | Mapping[str, str] = "newton") -> "Fleet":
        """The fleet with more sites, by name. Labels are coded as at the others: for logistic loss 0 and 1."""
        if not isinstance(sites, Mapping) or not sites:
            raise InvalidConfig('joined: give the newcomers by name, as in joined({"c": (A, y)}).')
        if known := [str(name) for name in sites if str(name) in self.names]:
            raise InvalidConfig(f"joined: the fleet has {', '.join(known)} already.")
        if isinstance(update, Mapping) and set(update) != set(sites):
            raise InvalidConfig("joined: update, as a dict, needs one entry for every newcomer.")
        everyone = {name: tuple(site[1:]) for name, site in zip(self.names, self.sites, strict=True)}
        choices = [update[name] if isinstance(update, Mapping) else update for name in sites]
        return self._of(everyone | {str(name): site for name, site in sites.items()}, [*self.updates, *choices])

    def as_part_of(self, n: int, total_weight: float) -> "Fleet":
        """These sites as some of n, whose rows weigh so much together; the others are elsewhere."""
        part = copy.copy(self)  # nothing that depends on either is cached before a transport is made
        part.total_weight, part._sharers = total_weight, n
        return part

    def in_coordinates(self, sites: tuple[Site, ...], reg: np.ndarray, notes: tuple[str, ...] = ()) -> "Fleet":
        """The same fleet on other columns, of which it keeps its number and the responses; one penalty per column."""
        other = copy.copy(self)
        for known in ("row_norm", "fingerprint", "_digests", "groups"):
            other.__dict__.pop(known, None)
        other.sites, other._reg_given, other.notes = sites, reg, (*self.notes, *notes)
        other.reg, other.pinned = other._penalty(reg)
        return other

    def _of(self, sites: Mapping[str, tuple], updates: list[str]) -> "Fleet":
        options: dict[str, Any] = {"loss": self.loss, "reg": self._reg_given, "weighting": self.weighting, "intercept": self.intercept}
        return Fleet(sites, update=updates, keep_rows=self.keep_rows, **options)

    # ── what the sites hold, as problems ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def on_statistics(self) -> bool:
        """Squared loss lives on its Gram matrices, unless these would be too large."""
        return not self.keep_rows and self.loss.bend == 0.0 and self.n * self.d**2 * 8 <= STATISTICS_BUDGET

    @functools.cached_property
    def row_norm(self) -> float:
        """R, at least every row's norm (with the intercept's 1): the certificate needs it."""
        largest = max(float(row_norms(site.A).max(initial=0.0)) for site in self.sites)
        return float(np.hypot(largest, 1.0)) if self.intercept else largest

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the whole problem: data, loss, penalty, weighting, updates."""
        text = repr((self.loss.name, self.weighting, self.intercept, self.keep_rows, self.updates, self.K, self.d))
        digest = hashlib.sha256(text.encode())
        digest.update(self._custom_program)
        digest.update(self.reg.tobytes())
        for site in self._digests:
            digest.update(site)
        return digest.hexdigest()

    @functools.cached_property
    def _digests(self) -> tuple[bytes, ...]:
        return tuple(site.digest() for site in self.sites)

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """Clients that stack together: of one update, and on rows of similar number.

        Inside a group clients are sorted by what they hold, not by where the caller listed them, and sums run in this order: so a
        fleet gives the same bits however its sites are listed. (Sites that hold the very same rows go by name.)
        """
        groups = []
        for update in sorted(set(self.updates)):
            members = [i for i in range(self.n) if self.updates[i] == update]
            sizes = [0 if self.on_statistics else max(1, self.sites[i].A.shape[0]) for i in members]
            for part, rows in group_by_size(sizes):
                chosen = sorted((members[k] for k in part), key=lambda i: (self._digests[i], self.names[i]))
                groups.append(Group(tuple(chosen), rows))
        return tuple(groups)

    @property
    def order(self) -> tuple[int, ...]:
        """Positions in site order, in the order in which clients are stacked and summed."""
        return tuple(i for group in self.groups for i in group.members)

    def row_weights(self, i: int) -> np.ndarray:
        """Row weights of site i, normalised as `weighting` says."""
        w = self.sites[i].w
        total = self.total_weight if self.weighting == "row" else float(w.sum())
        return w / total if total > 0 else w

    def stack(self, group: Group) -> Client:
        """The group's clients as one `Client` whose arrays have a leading axis, in NumPy."""
        if self.on_statistics:
            count = len(group.members)
            H, c, constant = aligned_zeros(count, self.d, self.d), np.zeros((count, self.d)), np.zeros(count)
            for k, i in enumerate(group.members):
                H[k], c[k], constant[k] = self._statistics(i)
            f: Problem = Quadratic(H, c, constant)
        else:
            f = self._on_rows(group)
        ids = np.asarray(group.members, np.int32)
        return Client(ids, f, UPDATES[self.updates[group.members[0]]])

    def client(self, i: int, rows: int | None = None) -> Client:
        """Client i alone, its rows padded to `rows`, in NumPy."""
        rows = max(1, self.sites[i].A.shape[0]) if rows is None else rows
        return jax.tree.map(lambda leaf: leaf[0], self.stack(Group((i,), rows)))

    @np.errstate(over="ignore", invalid="ignore")
    def _statistics(self, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        site, w = self.sites[i], self.row_weights(i)
        target = site.y - site.offset
        # Blocks of rows, added up in pairs: a long sum taken one by one would lose more digits than a certificate allows for.
        starts = range(0, max(1, len(w)), BLOCK)
        blocks = (self._block_statistics(site.A[k : k + BLOCK], w[k : k + BLOCK], target[k : k + BLOCK]) for k in starts)
        both = _pairwise_sum(blocks)
        gram, moment = both[:, :-1], both[:, -1]
        H = 0.5 * (gram + gram.T) + np.diag(self.reg / self._sharers)
        constant = np.asarray(0.5 * np.sum(w * target**2))
        if not (np.all(np.isfinite(H)) and np.all(np.isfinite(moment)) and np.isfinite(constant)):
            raise InvalidData(f"{site.name}: squares of the entries of A or y are too large for a float; rescale them.")
        return H, moment, constant

    def _block_statistics(self, A: Any, w: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Σ w·a·(aᵀ, y) of some rows."""
        A = A.toarray() if scipy.sparse.issparse(A) else A
        if self.intercept:
            A = np.hstack([A, np.ones((len(w), 1))])
        return (A * w[:, None]).T @ np.hstack([A, target[:, None]])

    def _on_rows(self, group: Group) -> Problem:
        size = (len(group.members), group.rows)
        y, w, offset = np.zeros(size), np.zeros(size), np.zeros(size)
        for k, i in enumerate(group.members):
            site = self.sites[i]
            count = len(site.y)
            y[k, :count], w[k, :count], offset[k, :count] = site.y, self.row_weights(i), site.offset
        reg = np.tile(self.reg / self._sharers, (size[0], 1))
        rows = self._table(group)
        if isinstance(self.loss, RowLoss):
            assert isinstance(rows, Dense)  # _table gives a custom loss whole rows
            return Custom(rows.A, y, w, reg, self.loss.value)
        if self.K:
            return Multinomial(rows, y, w, offset, reg, self.loss, self.p, self.K, self.pinned)
        return GLM(rows, y, w, offset, reg, self.loss)

    def _table(self, group: Group) -> Dense | Sparse:
        """The group's rows in one padded array; sparse ones stay sparse where that is smaller."""
        tables = [self.sites[i].A for i in group.members]
        width = 0
        if all(scipy.sparse.issparse(A) for A in tables) and not isinstance(self.loss, RowLoss):
            width = max(int(np.diff(A.indptr).max(initial=0)) for A in tables) + self.intercept
        if not 0 < 1.5 * width < self.p:  # a pair takes 12 bytes, a dense entry 8
            dense = aligned_zeros(len(tables), group.rows, self.p)
            for k, A in enumerate(tables):
                dense[k, : A.shape[0], : self.n_features] = A.toarray() if scipy.sparse.issparse(A) else A
                if self.intercept:
                    dense[k, : A.shape[0], -1] = 1.0
            return Dense(dense)
        column = np.zeros((len(tables), group.rows, width), np.int32)
        value = aligned_zeros(len(tables), group.rows, width)
        for k, A in enumerate(tables):
            counts = np.diff(A.indptr)
            row = np.repeat(np.arange(A.shape[0]), counts)
            place = np.arange(A.nnz) - np.repeat(A.indptr[:-1], counts)
            column[k, row, place], value[k, row, place] = A.indices, A.data
            if self.intercept:
                column[k, : A.shape[0], -1], value[k, : A.shape[0], -1] = self.p - 1, 1.0
        return Sparse(column, value, self.p)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{self.updates.count(u)} {u}" for u in UPDATES if u in self.updates)
        return f"Fleet({self.n} sites, d={self.d}, {self.loss.name}, weighting={self.weighting!r}; {kinds})"


def _pairwise_sum(terms: Iterable[np.ndarray]) -> np.ndarray:
    """The sum, as a tree of pairs, with no more than log₂ of them kept at a time."""
    pending: list[tuple[int, np.ndarray]] = []
    for term in terms:
        level, partial = 0, term
        while pending and pending[-1][0] == level:
            level, partial = level + 1, pending.pop()[1] + partial
        pending.append((level, partial))
    total = pending.pop()[1]
    while pending:
        total = pending.pop()[1] + total
    return total


def aligned_zeros(*shape: int) -> np.ndarray:
    """Zeros that begin at a multiple of 64 bytes: on a CPU a transport can then use them where they are, without a copy."""
    size = int(np.prod(shape)) * 8
    raw = np.zeros(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(np.float64).reshape(shape)


def expect_fleet(caller: str, given: Any) -> None:
    if not isinstance(given, Fleet):
        raise InvalidConfig(f"{caller}: the fleet must be a fedhybrid.Fleet, not {type(given).__name__}.")


def _as_loss(loss: Any) -> Loss | RowLoss:
    if isinstance(loss, Loss | RowLoss):
        return loss
    if callable(loss):
        return from_value(loss)
    raise InvalidConfig(f"loss must be one of fedhybrid's losses, such as fedhybrid.logistic, or a JAX function (z, y), not {loss!r}.")


__all__ = ["Fleet", "Group", "Site", "expect_fleet"]
