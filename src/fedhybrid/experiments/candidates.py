"""What competes: a method with the parameters that are searched for it, under the label that figures show.

fedh-n, fedh-g, fedh-5   FedHybrid with all clients Newton, none, or five of them
gd, lbfgs, disco, …      any name of ALGORITHMS, searched over the ranges of its row there
file.py:factory          a method of your own: a factory, and beside it SEARCH = {"parameter": Range(low, high), …}
"""

import functools
import hashlib
import importlib.util
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..algorithms import ALGORITHMS, Range
from ..algorithms.base import Algorithm
from ..algorithms.fedhybrid import fedhybrid
from ..status import InvalidConfig
from ..tune import Setting, product

# the paper's ranges; of a Newton client's primal step, the upper end of it
PAPER = {"mu": (1e-4, 10.0), "a_gradient": (1e-4, 1.0), "b_gradient": (1e-4, 1.0), "a_newton": (0.4, 1.0), "b_newton": (1e-3, 1.0)}
COARSE = {  # a few values each, about where finer searches end
    "mu": (0.3, 1.0, 3.0),
    "a_gradient": (0.02, 0.1, 0.3),
    "b_gradient": (0.1, 1.0),
    "a_newton": (1.0,),
    "b_newton": (0.1, 0.3),
}
DENSITIES = (8.0, 4.0, 2.0, 1.0, 0.5)  # points a decade


class Candidate(NamedTuple):
    label: str
    name: str  # of the method, for the record
    factory: Callable[..., Algorithm]  # of continuous parameters only
    search: Mapping[str, Range]
    newton: int | None = None  # Newton clients, where that matters; None: it does not
    block: int = 20  # steps of one compiled program: few where a step takes many rounds
    keep_rows: bool = False
    pairs: bool = False  # FedHybrid's a and b are pairs (gradient, newton)
    paper: bool = False  # search the paper's ranges as they are, whatever the scale of the problem

    def settings(self, about: int, curvature: float, coarse: bool) -> list[Setting]:
        """A grid of at most so many settings, as many a decade for every parameter. `curvature` is the clients' mean smoothness."""
        if not self.search:
            return [{}]
        density = next((density for density in DENSITIES if math.prod(self._points(density)) <= about), DENSITIES[-1])
        grid = {}
        for (name, search), points in zip(self.search.items(), self._points(density), strict=True):
            values = np.array(COARSE[name]) if coarse and self.paper else np.geomspace(search.high, search.low, points)
            grid[name] = (values * curvature**search.unit).tolist()
        return [self._paired(setting) for setting in product(grid)]

    def _points(self, density: float) -> list[int]:
        return [1 + round(density * math.log10(search.high / search.low)) for search in self.search.values()]

    def around(self, setting: Setting, factor: float, curvature: float) -> list[Setting]:
        """The setting and its neighbours at `factor`, inside the ranges."""
        flat = self._flat(setting)
        values = {}
        for name, value in flat.items():
            search, unit = self.search[name], curvature ** self.search[name].unit
            near = np.clip([value, value / factor, value * factor], search.low * unit, search.high * unit)
            values[name] = list(dict.fromkeys(near.tolist()))
        return [self._paired(neighbour) for neighbour in product(values)]

    def _paired(self, flat: Setting) -> Setting:
        if not self.pairs:
            return flat
        return {"mu": flat["mu"], "a": _pair(flat, "a"), "b": _pair(flat, "b")}

    def _flat(self, setting: Setting) -> Setting:
        if not self.pairs:
            return setting
        flat = {"mu": setting["mu"]}
        for name in ("a", "b"):
            for kind, value in zip(("gradient", "newton"), setting[name], strict=True):
                flat[f"{name}_{kind}"] = value
        return {name: value for name, value in flat.items() if name in self.search}


def _pair(flat: Setting, name: str) -> tuple[float, float]:
    """(gradient, newton); a kind that no client is of gets the other's number."""
    kinds = (f"{name}_gradient", f"{name}_newton")
    there = [flat[kind] for kind in kinds if kind in flat]
    return flat.get(kinds[0], there[0]), flat.get(kinds[1], there[0])


def fedh(newton: int, n: int, *, paper: bool = True) -> Candidate:
    """FedH-K: FedHybrid with so many of n clients Newton."""
    label = {0: "FedH-G", n: "FedH-N"}.get(newton, f"FedH-{newton}")
    kinds = [kind for kind, there in (("gradient", newton < n), ("newton", newton > 0)) if there]
    units = {"mu": 1, "a_gradient": -1, "b_gradient": 1, "a_newton": 0, "b_newton": 0}
    search = {
        name: Range(low, high, 0 if paper else units[name])
        for name, (low, high) in PAPER.items()
        if name == "mu" or name.split("_")[1] in kinds
    }
    return Candidate(label, "fedhybrid", fedhybrid, search, newton, pairs=True, paper=paper)


def candidate(name: str, n: int) -> Candidate:
    """By its name on the command line."""
    if ".py" in name:
        return _from_file(name)
    key = name.strip().lower().replace("-", "_")
    if key == "fedhybrid":
        return fedh(n, n, paper=False)
    if key.startswith("fedh_"):
        which = key.removeprefix("fedh_")
        newton = {"g": 0, "n": n}.get(which, int(which) if which.isdigit() else -1)
        if not 0 <= newton <= n:
            raise InvalidConfig(f"{name}: FedH-K needs a number of Newton clients from 0 to {n}, or G for none and N for all.")
        return fedh(newton, n, paper=False)
    if key not in ALGORITHMS:
        raise InvalidConfig(f"{name} is not a method. Known are fedh-g, fedh-n, fedh-K and {', '.join(sorted(ALGORITHMS))}.")
    entry = ALGORITHMS[key]
    factory = functools.partial(entry.factory, **entry.fixed) if entry.fixed else entry.factory
    return Candidate(entry.label or key, key, factory, entry.search, None, entry.block, "rows" in entry.requires)


def _from_file(name: str) -> Candidate:
    path, _, attribute = name.partition(":")
    if not Path(path).is_file():
        raise InvalidConfig(f"{path}: no such file. A method of your own is given as file.py:factory.")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    factory: Any = getattr(module, attribute or Path(path).stem, None)
    if not callable(factory):
        raise InvalidConfig(f"{path} has no function {attribute or Path(path).stem}; name the factory as {path}:factory.")
    search = getattr(module, "SEARCH", {})
    needed = [key for key, one in inspect.signature(factory).parameters.items() if one.default is one.empty and key not in search]
    if needed:
        missing = ", ".join(f'"{key}": Range(low, high)' for key in needed)
        raise InvalidConfig(
            f"{path}: where to search for {' and '.join(needed)}? Add SEARCH = {{{missing}}}; Range is in fedhybrid.algorithms."
        )
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()  # another text is another method
    return Candidate(attribute or Path(path).stem, f"{name} {digest}", factory, search)
