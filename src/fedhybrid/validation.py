"""Reading what a caller calls a site, and refusing what cannot be used: which site, which column, how many; never a value."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from .losses import Loss, RowLoss, Softmax
from .status import InvalidConfig, InvalidData

LARGEST_ENTRY = 1e150


class Site(NamedTuple):
    """One site's rows, in float64. A is the caller's own array where that is float64 already: it must stay as it is."""

    name: str
    A: Any  # (N, p) ndarray or scipy.sparse CSR
    y: np.ndarray
    w: np.ndarray
    offset: np.ndarray

    def digest(self) -> bytes:
        digest = hashlib.sha256(repr((self.A.shape, scipy.sparse.issparse(self.A))).encode())
        parts = (self.A.data, self.A.indices, self.A.indptr) if scipy.sparse.issparse(self.A) else (self.A,)
        for part in (*parts, self.y, self.w, self.offset):
            digest.update(np.ascontiguousarray(part).data)
        return digest.digest()


def read_sites(sites: Any, names: Sequence[str] | None) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    """Sites with equal numbers of columns and finite entries."""
    if isinstance(sites, Mapping):
        if names is not None:
            raise InvalidConfig("names: the sites are a dict and carry their names already.")
        names, entries = [str(name) for name in sites], list(sites.values())
    elif isinstance(names, str) or not isinstance(names, Sequence | None):
        raise InvalidConfig("names must be a list with one name per site.")
    else:
        try:
            entries = list(sites)
        except TypeError:
            raise InvalidData(f"sites must be a list or a dict of (A, y), not {type(sites).__name__}.") from None
        names = [f"site {i}" for i in range(len(entries))] if names is None else [str(name) for name in names]
    if not entries:
        raise InvalidData("no sites: a fleet needs at least one (A, y).")
    if len(names) != len(entries):
        raise InvalidConfig(f"names has {len(names)} entries for {len(entries)} sites.")
    if len(set(names)) != len(names):
        raise InvalidConfig("names: two sites have the same name.")
    read = tuple(_read_site(name, entry) for name, entry in zip(names, entries, strict=True))
    first = read[0]
    for site in read:
        if site.A.shape[1] != first.A.shape[1]:
            raise InvalidData(
                f"{site.name}: A has shape {site.A.shape}, but {first.name}'s has {first.A.shape}; all sites need the same columns."
            )
    if first.A.shape[1] == 0:
        raise InvalidData("A has no columns at any site.")
    with np.errstate(over="ignore"):
        total = sum(float(site.w.sum()) for site in read)
    if not np.isfinite(total):
        raise InvalidData("w: the sum of all weights is too large for a float; rescale them.")
    if not total > 0:
        raise InvalidData("no site has a row (of positive weight).")
    empty = [site.name for site in read if len(site.y) == 0]
    notes = (f"without rows, contributing nothing but their share of the penalty: {', '.join(empty)}.",) if empty else ()
    return read, notes


def _read_site(name: str, entry: Any) -> Site:
    if not isinstance(entry, tuple | list) or not 2 <= len(entry) <= 4:
        raise InvalidData(f"{name}: a site is (A, y), (A, y, w) or (A, y, w, offset).")
    A_given, y_given, *rest = entry
    if scipy.sparse.issparse(A_given):
        _refuse_kind(name, "A", A_given.dtype)
        A = scipy.sparse.csr_array(A_given, dtype=np.float64)
        if not A.has_canonical_format:
            A = A.copy()  # the caller's own arrays stay as they are
            A.sum_duplicates()
    else:
        A = _numbers(name, "A", A_given)
    if A.ndim != 2:
        raise InvalidData(f"{name}: A has shape {A.shape}; it must be a table, rows by columns.")
    y = _numbers(name, "y", y_given)
    w = _numbers(name, "w", rest[0]) if len(rest) > 0 and rest[0] is not None else np.ones(A.shape[0])
    offset = _numbers(name, "offset", rest[1]) if len(rest) > 1 and rest[1] is not None else np.zeros(A.shape[0])
    for field, values in (("y", y), ("w", w), ("offset", offset)):
        if values.shape != (A.shape[0],):
            raise InvalidData(f"{name}: A has shape {A.shape}, but {field} has shape {values.shape}; it needs one entry per row.")
        if bad := int(np.count_nonzero(~np.isfinite(values))):
            raise InvalidData(f"{name}: {field} has {bad} of {len(values)} entries that are NaN or infinite.")
    if np.any(w < 0):
        raise InvalidData(f"{name}: w has {int(np.count_nonzero(w < 0))} negative weights.")
    _refuse_nonfinite_table(name, A)
    y, w, offset = (values.copy() for values in (y, w, offset))  # what was checked here stays as it was, whatever the caller does
    return Site(name, A, y, w, offset)


def _refuse_kind(name: str, field: str, dtype: np.dtype) -> None:
    if dtype.kind not in "fiub":
        raise InvalidData(f"{name}: {field} holds {dtype.name} entries; encode them as numbers first.")


def _numbers(name: str, field: str, values: Any) -> np.ndarray:
    if np.ma.is_masked(values):
        raise InvalidData(f"{name}: {field} has {int(np.ma.count_masked(values))} masked entries; fill or drop them first.")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # ragged rows
        raise InvalidData(f"{name}: {field} is not a rectangular table of numbers.") from None
    if array.size == 0 and array.dtype.kind not in "fiub":
        array = array.astype(float)
    _refuse_kind(name, field, array.dtype)
    with np.errstate(over="ignore"):  # an entry too large for float64 becomes inf, which is refused below
        return array.astype(np.float64, copy=False)


def _refuse_nonfinite_table(name: str, A: Any) -> None:
    entries = A.data if scipy.sparse.issparse(A) else A
    with np.errstate(invalid="ignore"):
        largest = max(np.max(entries, initial=0.0), -np.min(entries, initial=0.0))  # NaN if there is one
    if largest > LARGEST_ENTRY and np.isfinite(largest):
        raise InvalidData(f"{name}: A has entries above {LARGEST_ENTRY:g}, whose squares are too large for a float; rescale its columns.")
    if np.isfinite(largest) and not np.isnan(np.min(entries, initial=0.0)):
        return
    bad = ~np.isfinite(entries)
    columns = np.unique(A.indices[bad]) if scipy.sparse.issparse(A) else np.flatnonzero(bad.any(axis=0))
    listed = ", ".join(str(c) for c in columns[:5]) + (", …" if len(columns) > 5 else "")
    raise InvalidData(f"{name}: NaN or infinite entries in A: {int(bad.sum())}, in column {listed} (from 0). Fill or drop these rows.")


def row_norms(A: Any) -> np.ndarray:
    if scipy.sparse.issparse(A):
        return np.sqrt(np.asarray(A.multiply(A).sum(axis=1)).reshape(-1))
    return np.sqrt(np.einsum("jc,jc->j", A, A))


def check_responses(sites: tuple[Site, ...], loss: Loss | RowLoss) -> tuple[tuple[Site, ...], int, tuple[str, ...]]:
    """Responses as the loss needs them, decided on the union over sites; the number of classes for softmax; what was changed."""
    if loss.response == "count":
        for site in sites:
            if np.any(site.y < 0):
                raise InvalidData(f"{site.name}: y has {int(np.count_nonzero(site.y < 0))} negative entries; counts are not negative.")
    if loss.response == "binary":
        return _binary(sites)
    if loss.response == "class":
        return sites, _count_classes(sites, loss.classes if isinstance(loss, Softmax) else None), ()
    return sites, 0, ()


def _refuse_labels(sites: tuple[Site, ...], allowed: np.ndarray, wanted: str) -> None:
    for site in sites:
        if wrong := int(np.count_nonzero(~np.isin(site.y, allowed))):
            raise InvalidData(f"{site.name}: y has {wrong} of {len(site.y)} labels outside {wanted}; recode them.")


def _binary(sites: tuple[Site, ...]) -> tuple[tuple[Site, ...], int, tuple[str, ...]]:
    labels = np.unique(np.concatenate([site.y for site in sites]))
    if np.isin(labels, (0.0, 1.0)).all():
        return sites, 0, ()
    if not np.isin(labels, (-1.0, 1.0)).all():
        # some site holds a label that is in neither coding, or the two codings are mixed
        _refuse_labels(sites, np.array([0.0, 1.0]) if 0.0 in labels else np.array([-1.0, 1.0]), "{0, 1} or {−1, 1}")
    recoded = tuple(site._replace(y=(site.y > 0).astype(np.float64)) for site in sites)
    return recoded, 0, ("labels {−1, 1} were read as {0, 1}.",)


def _count_classes(sites: tuple[Site, ...], agreed: int | None) -> int:
    if agreed is not None:
        _refuse_labels(sites, np.arange(agreed, dtype=np.float64), f"0, …, {agreed - 1}")
        return agreed
    labels = np.unique(np.concatenate([site.y for site in sites]))
    for site in sites:
        if wrong := int(np.count_nonzero((site.y < 0) | (site.y != np.floor(site.y)))):
            raise InvalidData(f"{site.name}: y has {wrong} of {len(site.y)} labels that are not 0, 1, …, K−1; recode them.")
    K = int(labels[-1]) + 1
    if len(labels) < K:
        raise InvalidData(f"softmax: {K - len(labels)} of the classes 0…{K - 1} have no row at any site; number the classes without gaps.")
    if K < 2:
        raise InvalidData("softmax: all rows of all sites have one class; there is nothing to tell apart.")
    return K
