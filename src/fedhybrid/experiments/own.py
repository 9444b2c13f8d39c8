"""A problem of the user's own: a table by file or by name, dealt to clients."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from .. import datasets, losses, partition
from ..datasets.bundled import NAMES as BUNDLED
from ..datasets.libsvm import KNOWN as LIBSVM
from ..fleet import Fleet
from ..status import InvalidConfig, InvalidData
from ..tables.records import read_numbers
from .study import Problem

LOSSES = {
    "squared": losses.squared,
    "logistic": losses.logistic,
    "poisson": losses.poisson,
    "huber": losses.huber,
    "softmax": losses.softmax,
}
FEW = 20  # different whole numbers in a response that are taken for classes


class Own(NamedTuple):
    """Which data, dealt to whom, for what: all that the problem is made from."""

    data: str
    clients: int
    partition: str = "iid"
    loss: str = "auto"
    reg: float = 0.01
    weighting: str = "row"
    response: str | None = None
    seed: int = 0


def own_problem(own: Own) -> Problem:
    """The rows of `data` (columns standardised, and an intercept), dealt as `partition` says."""
    data, clients, how, loss, reg, weighting, response, seed = own
    A, y = read_table(data, response)
    chosen = _loss(loss, y)
    if not scipy.sparse.issparse(A):  # to centre a sparse table would fill it
        A = datasets.standardise(A)
    if chosen in ("logistic", "softmax"):
        y = np.unique(y, return_inverse=True)[1].astype(float)
    sites = partition.cut(A, y, _partition(how, y, clients)(y, clients, seed))
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).permutation(clients).tolist()

    @functools.cache
    def fleet(newton: int, keep_rows: bool) -> Fleet:
        update = ["newton" if i in order[:newton] else "gradient" for i in range(clients)]
        options: dict[str, Any] = {"weighting": weighting, "update": update, "intercept": True, "keep_rows": keep_rows}
        return Fleet(sites, loss=LOSSES[chosen], reg=reg, **options)

    fleet(0, False)  # a mistake shows here, not in a worker
    return Problem(f"{Path(data).stem}, {chosen}, reg {reg:g}, {clients} clients, {how}", seed, clients, fleet)


def read_table(data: str, response: str | None = None) -> tuple[Any, np.ndarray]:
    """(A, y) by a name that fedhybrid.datasets knows, or from a CSV file (with a header) or a LIBSVM file."""
    if data in BUNDLED:
        return datasets.bundled(data)
    if data in LIBSVM:
        return datasets.libsvm(data)
    if data in ("mushroom", "housing"):
        return {"mushroom": datasets.mushroom, "housing": datasets.housing}[data]()
    path = Path(data)
    if not path.is_file():
        known = ", ".join((*BUNDLED, "mushroom", "housing", *LIBSVM))
        raise InvalidData(f"{data} is neither a file nor one of {known}.")
    return _read_csv(path, response) if path.suffix.lower() == ".csv" else datasets.libsvm(path)


def _read_csv(path: Path, response: str | None) -> tuple[np.ndarray, np.ndarray]:
    header, table = read_numbers(path)
    if response is not None and response not in header:
        raise InvalidData(f"{path} has no column {response!r}; it has {', '.join(header)}.")
    k = header.index(response) if response is not None else len(header) - 1
    return np.delete(table, k, axis=1), table[:, k]


def _loss(name: str, y: np.ndarray) -> str:
    if name != "auto":
        if name not in LOSSES:
            raise InvalidConfig(f"loss {name!r} is not known; choose auto or one of {', '.join(LOSSES)}.")
        return name
    values = np.unique(y)
    if len(values) == 2:
        return "logistic"
    whole = bool(np.all(values == np.round(values)))
    return "softmax" if whole and 2 < len(values) <= FEW else "squared"


def _partition(how: str, y: np.ndarray, clients: int) -> Callable[..., list[np.ndarray]]:
    name, _, parameter = how.partition(":")
    if name == "iid":
        return partition.iid
    if name == "by-response":
        return partition.by_response()
    if name == "lognormal":
        return partition.lognormal_sizes()
    if name == "dirichlet":
        try:
            alpha = float(parameter or 0.3)
        except ValueError:
            raise InvalidConfig(f"partition {how!r}: dirichlet's parameter must be a number, as in dirichlet:0.3.") from None
        return partition.dirichlet(alpha)
    if name == "by-label":
        labels = np.unique(y)
        if clients < len(labels):
            raise InvalidConfig(f"by-label needs at least one client for each of the {len(labels)} labels.")
        each = {label: len(part) for label, part in zip(labels.tolist(), np.array_split(np.arange(clients), len(labels)), strict=True)}
        return partition.by_label(one_label=each)
    raise InvalidConfig(f"partition {how!r} is not known; choose iid, by-label, by-response, dirichlet:ALPHA or lognormal.")
