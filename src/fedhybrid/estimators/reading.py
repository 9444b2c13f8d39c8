"""From what `fit` is given to each site's rows: one table with a column that says whose each row is, or one table per site.

What scikit-learn checks of a table it checks here, in its words; what is wrong with entries is said by the site that holds them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from ..status import InvalidConfig, InvalidData

Array = Any
LEAST_ROWS = 256  # that a table is padded to; so few cost nothing
MOST_PADDED = 2**16  # larger tables are worth a program of their own
ONLY_SITE = "site 0"  # what a site is called where nobody has named it


class Rows(NamedTuple):
    """One site's rows."""

    A: Any  # (N, p) float64, dense or CSR
    y: Array  # as it was given
    w: Array
    place: Array  # where each stood among all that were given

    def weighing(self) -> "Rows":
        """A row of weight zero is no row: its class is not counted, and its prediction may be any."""
        kept = self.w > 0
        return self if kept.all() else Rows(self.A[kept], self.y[kept], self.w[kept], self.place[kept])


def read(estimator: BaseEstimator, X: Any, y: Any, sites: Any, sample_weight: Any) -> dict[str, Rows]:
    """The rows by site, in the order in which sites first appear. Sets the estimator's n_features_in_ and feature_names_in_."""
    by_site = y is None and (isinstance(X, Mapping) or (isinstance(X, list | tuple) and len(X) > 0 and all(_is_pair(each) for each in X)))
    rows = _one_table_each(estimator, X, sites, sample_weight) if by_site else _one_table(estimator, X, y, sites, sample_weight)
    if not any(np.any(each.w > 0) for each in rows.values()):
        raise InvalidData("sample_weight: the weights of all rows are zero.")
    return rows


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, tuple) and len(entry) in (2, 3)


def _one_table(estimator: BaseEstimator, X: Any, y: Any, sites: Any, sample_weight: Any) -> dict[str, Rows]:
    if y is None:
        raise InvalidData(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None. Give y, or as X a list of every site's (X, y)."
        )
    A, y = _table(estimator, X, y, first=True)
    w = _weights(sample_weight, len(y))
    if sites is None:
        return {ONLY_SITE: _checked(ONLY_SITE, A, y, w, np.arange(len(y)))}
    labels = column_or_1d(np.asarray(sites, object))
    if len(labels) != len(y):
        raise InvalidData(f"sites has {len(labels)} entries for {len(y)} rows; it needs the name of each row's site.")
    codes, found = pd.factorize(labels)
    if missing := int(np.count_nonzero(codes < 0)):
        raise InvalidData(f"sites has {missing} entries that are missing; every row needs the name of its site.")
    names = [str(name) for name in found]
    if len(set(names)) < len(names):
        raise InvalidData("sites has names that differ but read the same, such as 1 and '1'; use one kind.")
    places = [np.flatnonzero(codes == k) for k in range(len(names))]
    return {name: _checked(name, A[place], y[place], w[place], place) for name, place in zip(names, places, strict=True)}


def _one_table_each(estimator: BaseEstimator, X: Any, sites: Any, sample_weight: Any) -> dict[str, Rows]:
    if sample_weight is not None:
        raise InvalidConfig("sample_weight: where X holds every site's (X, y), weights are a third entry, (X, y, sample_weight).")
    if isinstance(X, Mapping):
        if sites is not None:
            raise InvalidConfig("sites: X is a dict and carries the sites' names already.")
        names, entries = [str(name) for name in X], list(X.values())
    else:
        names = [f"site {i}" for i in range(len(X))] if sites is None else [str(name) for name in sites]
        entries = list(X)
    if len(names) != len(entries) or len(set(names)) < len(names):
        raise InvalidConfig(f"sites: {len(entries)} tables need as many different names; there are {len(set(names))}.")
    rows: dict[str, Rows] = {}
    for name, entry in zip(names, entries, strict=True):
        if not _is_pair(entry):
            raise InvalidData(f"{name}: a site is (X, y) or (X, y, sample_weight).")
        try:
            A, y = _table(estimator, entry[0], entry[1], first=not rows)
            begin = sum(len(each.y) for each in rows.values())
            w = _weights(entry[2] if len(entry) > 2 else None, len(y))
            rows[name] = _checked(name, A, y, w, np.arange(begin, begin + len(y)))
        except ValueError as error:
            raise error if isinstance(error, InvalidData) and str(error).startswith(name) else InvalidData(f"{name}: {error}") from error
    return rows


def _table(estimator: BaseEstimator, X: Any, y: Any, *, first: bool) -> tuple[Any, Array]:
    """Entries that are not finite are let through: who holds them is not known here."""
    A = validate_data(estimator, X, reset=first, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
    y = column_or_1d(y, warn=True)
    if np.iscomplexobj(y):
        raise InvalidData("Complex data not supported: y holds complex numbers.")
    check_consistent_length(A, y)
    return A, y


def _weights(given: Any, n: int) -> Array:
    if given is None:
        return np.ones(n)
    try:
        w = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise InvalidData("sample_weight must hold numbers.") from None
    if w.ndim == 0:
        return np.full(n, float(w))
    if w.shape != (n,):
        raise InvalidData(f"sample_weight has shape {w.shape}; it needs one entry for each of {n} rows.")
    return w


def _checked(name: str, A: Any, y: Array, w: Array, place: Array) -> Rows:
    if wrong := int(np.count_nonzero(~((w >= 0) & np.isfinite(w)))):
        raise InvalidData(f"{name}: sample_weight has {wrong} of {len(w)} entries that are negative, NaN or infinite.")
    return Rows(A, y, w, place)


def padded(site: tuple) -> tuple:
    """A site with rows of weight zero added, up to one of a few sizes: a program is compiled for every size of table, and folds of
    cross-validation differ by a row or two."""
    A, y, w = site
    n = len(y)
    step = max(LEAST_ROWS, 1 << max(0, n.bit_length() - 4))  # at most an eighth more
    more = -n % step
    if more == 0 or n > MOST_PADDED:
        return site
    none = np.zeros(more)
    if scipy.sparse.issparse(A):
        grown = scipy.sparse.csr_array(A, copy=True)
        grown.resize(n + more, A.shape[1])
    else:
        grown = np.vstack([A, np.zeros((more, A.shape[1]))])
    return grown, np.append(y, none), np.append(w, none)


def numbers(rows: Mapping[str, Rows]) -> dict[str, tuple]:
    """The sites of a `Fleet` whose responses are numbers."""

    def numeric(name: str, y: Array) -> Array:
        try:
            return y.astype(np.float64)
        except (TypeError, ValueError):
            raise InvalidData(f"{name}: y has entries that are not numbers.") from None

    weighing = {name: each.weighing() for name, each in rows.items()}
    return {name: (each.A, numeric(name, each.y), each.w) for name, each in weighing.items()}
