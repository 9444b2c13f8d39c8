"""What everyone in a federation has agreed on: federation.toml, the same file at the server, at every site, and in a simulation.

The server cannot change any of it: every question carries the digest of the terms, and a site answers those of its own copy only.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import losses
from ..algorithms import ALGORITHMS
from ..algorithms.anderson import anderson
from ..algorithms.base import Algorithm
from ..fleet import Fleet
from ..problem import free_entries
from ..status import InvalidConfig
from .schema import Key, address, labels, load, number, one_of, penalty, read_section, refuse_unknown, site_name, text, texts, truth, whole

LOSSES = {
    "squared": losses.squared,
    "logistic": losses.logistic,
    "poisson": losses.poisson,
    "huber": losses.huber,
    "softmax": losses.softmax,
}

PROBLEM = {
    "features": Key(texts),  # columns of every site's table, in this order
    "response": Key(text),
    "weight": Key(text, None),  # columns, if there are such
    "offset": Key(text, None),
    "loss": Key(one_of(*LOSSES)),
    "classes": Key(labels, None),  # of softmax: the response's values; the first is the reference
    "reg": Key(penalty, 0.0),
    "weighting": Key(one_of("row", "client"), "row"),
    "intercept": Key(truth, True),
}
ROUNDS = {
    "tol": Key(number(1e-14, 1.0), 1e-8),
    "most": Key(whole(1), 10_000),
    "deadline": Key(number(0.05, 86400.0), 60.0),  # seconds that a round waits for a reply
    "patience": Key(number(0.05, 30 * 86400.0), 3600.0),  # seconds that a site may be away where it is needed
    "absent": Key(one_of("wait", "bridge", "drop", "abort"), "wait"),
    "strikes": Key(whole(1, 1000), 3),  # replies that cannot be used, after which a site is put out
    "largest_gradient": Key(number(0.0, open_low=True), None),  # of one site's share: a reply that implies more is not used
    "private": Key(truth, False),  # sites may add noise: exactly `most` rounds, and nothing is asked that noise could not cover
}
SECURE = {
    "sums": Key(truth, True),
    "threshold": Key(whole(2), None),  # sites that together can undo a mask; default: two thirds, at least 2
    "bits": Key(whole(8, 60), 40),  # of the fixed point
}
NETWORK = {"address": Key(address, "127.0.0.1:9092")}
SECTIONS = ("problem", "method", "rounds", "secure", "network", "sites")


@dataclass(frozen=True)
class Problem:
    features: tuple[str, ...]
    response: str
    weight: str | None
    offset: str | None
    loss: str
    reg: float | tuple[float, ...]
    weighting: str
    intercept: bool
    classes: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Rounds:
    tol: float
    most: int
    deadline: float
    patience: float
    absent: str
    strikes: int
    largest_gradient: float | None
    private: bool = False


@dataclass(frozen=True)
class Secure:
    sums: bool
    threshold: int | None
    bits: int


@dataclass(frozen=True)
class Terms:
    problem: Problem
    method: tuple[tuple[str, Any], ...]  # its name first, then its parameters
    rounds: Rounds
    secure: Secure
    address: str
    sites: tuple[tuple[str, str], ...]  # name → public key, by name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.sites)

    @property
    def n(self) -> int:
        return len(self.sites)

    @property
    def coefficients(self) -> tuple[str, ...]:
        """Their names, as they stand in an answer: column[class] where there are classes."""
        columns = (*self.problem.features, *(("(intercept)",) if self.problem.intercept else ()))
        if self.problem.classes is None:
            return columns
        fleet = self.stand_in()
        entries = (divmod(int(place), fleet.K) for place in free_entries(fleet.p, fleet.K, fleet.pinned))
        return tuple(f"{columns[row]}[{self.problem.classes[k]:g}]" for row, k in entries)

    def digest(self) -> str:
        """Of all but the address, which says how to get there and not what is done."""
        agreed = asdict(replace(self, address=""))
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()

    def without(self, names: frozenset[str]) -> "Terms":
        return replace(self, sites=tuple(site for site in self.sites if site[0] not in names))

    def algorithm(self) -> Algorithm:
        (_, name), *parameters = self.method
        return make_algorithm(name, dict(parameters))

    def fleet(self, sites: Mapping[str, tuple], update: Any = "gradient") -> Fleet:
        """A fleet of some sites' rows, under these terms."""
        p = self.problem
        reg = list(p.reg) if isinstance(p.reg, tuple) else p.reg
        loss: Any = LOSSES[p.loss] if p.classes is None else losses.softmax(len(p.classes))
        options: dict[str, Any] = {"loss": loss, "reg": reg, "weighting": p.weighting, "intercept": p.intercept}
        return Fleet(sites, update=update, keep_rows="rows" in ALGORITHMS[self._entry].requires, **options)

    def stand_in(self) -> Fleet:
        """A site with one row of zeros: of it everything has the shapes that it has at a real one."""
        return self.fleet({"stand-in": (np.zeros((1, len(self.problem.features))), np.zeros(1))})

    @property
    def _entry(self) -> str:
        parameters = dict(self.method)
        name = str(parameters["name"])
        return str(parameters.get("of", "fedhybrid")) if name == "anderson" else name


def make_algorithm(name: str, parameters: dict[str, Any]) -> Algorithm:
    """A method by name and parameters; "anderson" takes the name of the one that it accelerates as `of`."""
    parameters = {key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()}
    if name == "anderson":
        memory = {"memory": parameters.pop("memory")} if "memory" in parameters else {}
        return anderson(make_algorithm(str(parameters.pop("of", "fedhybrid")), parameters), **memory)
    if name not in ALGORITHMS:
        raise InvalidConfig(f"[method] name: {name!r} is not known; choose from {', '.join(ALGORITHMS)}, anderson.")
    return ALGORITHMS[name].factory(**parameters)


def read_terms(path: Path) -> Terms:
    given = load(path)
    refuse_unknown(str(path), given, SECTIONS)
    problem = Problem(**read_section("[problem]", given.get("problem", {}), PROBLEM))
    rounds = Rounds(**read_section("[rounds]", given.get("rounds", {}), ROUNDS))
    secure = Secure(**read_section("[secure]", given.get("secure", {}), SECURE))
    network = read_section("[network]", given.get("network", {}), NETWORK)
    method = given.get("method", {"name": "krylov"})
    if not isinstance(method, dict) or not isinstance(method.get("name"), str):
        raise InvalidConfig("[method] needs a name, such as krylov.")
    ordered = (("name", method["name"]), *sorted((key, value) for key, value in method.items() if key != "name"))
    terms = Terms(problem, ordered, rounds, secure, network["address"], _sites(given.get("sites", {})))
    _check(terms)
    return terms


def _sites(given: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, dict) or not given:
        raise InvalidConfig("[sites] needs a line for every site: its name and its public key.")
    sites = tuple(sorted((site_name("[sites]", name), text(f"[sites] {name}", key)) for name, key in given.items()))
    if len({name.lower() for name, _ in sites}) < len(sites):
        raise InvalidConfig("[sites]: two names differ by capital letters only; some disks cannot tell them apart.")
    if len({key for _, key in sites}) < len(sites):
        raise InvalidConfig("[sites]: two sites have the same public key.")
    return sites


def _check(terms: Terms) -> None:
    """What only shows when the parts are put together, before anybody waits for it."""
    if (terms.problem.classes is None) == (terms.problem.loss == "softmax"):
        raise InvalidConfig(
            "[problem] classes = [0, 1, 2], say: loss = 'softmax' needs the response's values, because no site may have all of them."
            if terms.problem.classes is None
            else f"[problem] classes: only loss = 'softmax' has them, not {terms.problem.loss}."
        )
    algorithm = terms.algorithm()
    terms.stand_in()
    if terms.rounds.absent == "bridge" and not algorithm.bridges:
        raise InvalidConfig(
            f"[rounds] absent = 'bridge': {algorithm.spec.name} needs every site's reply in every round. fedhybrid can do without, "
            "and so can admm and gd; or set absent to wait, drop or abort."
        )
    if terms.secure.sums and terms.n < 3:
        raise InvalidConfig("[secure] sums = true needs three sites: of two, each could work out the other's numbers from the sum.")
    if terms.rounds.private:
        from .private import refuse_what_no_noise_can_cover  # here, as it traces a method under terms

        refuse_what_no_noise_can_cover(terms)
    if terms.secure.threshold is not None and terms.secure.threshold > terms.n:
        raise InvalidConfig(f"[secure] threshold is {terms.secure.threshold}, but there are {terms.n} sites.")
