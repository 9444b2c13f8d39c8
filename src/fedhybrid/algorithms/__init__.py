"""What is computed: pure, one paper per file. `ALGORITHMS` is the one table of them."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ..fleet import Fleet
from ..status import InvalidConfig
from .admm import admm
from .aide import aide
from .base import Algorithm
from .cocoa import cocoa
from .dane import dane
from .dgd import dgd
from .dingo import dingo
from .disco import disco
from .distributed_newton import distributed_newton
from .esom import esom
from .extra import extra
from .fedac import fedac
from .fedavg import fedavg
from .fedhybrid import fedhybrid
from .fednew import fednew
from .fednl import fednl
from .fedpd import fedpd
from .fedprox import fedprox
from .gd import gd
from .giant import giant
from .krylov import krylov
from .lbfgs import lbfgs
from .multipliers import multipliers
from .network_newton import network_newton
from .newton import newton
from .pn_dg import pn_dg
from .scaffold import scaffold


class Range(NamedTuple):
    """Where to search for a parameter: from low to high, in units of the clients' mean smoothness to the power `unit`."""

    low: float
    high: float
    unit: int = 0  # −1 for a step size, 1 for a penalty or a curvature, 0 for a pure number


class Entry(NamedTuple):
    """A method: how to make one, what it needs of a fleet, where it goes on data that are not IID, and how to compare it."""

    factory: Callable[..., Algorithm]
    requires: frozenset[str] = frozenset()  # of: rows, reg, quadratic, hessians
    limit: Literal["exact", "biased", "may fail"] = "exact"
    label: str = ""  # in figures and tables
    search: Mapping[str, Range] = {}  # the parameters that a comparison tunes
    fixed: Mapping[str, Any] = {}  # those that it sets
    block: int = 20  # steps that it compiles into one program: few where a step takes many rounds


STEP, CURVATURE = Range(1e-4, 20.0, -1), Range(1e-4, 10.0, 1)

ALGORITHMS: dict[str, Entry] = {
    "admm": Entry(admm, requires=frozenset({"hessians"}), label="ADMM", search={"rho": CURVATURE}),
    "aide": Entry(
        aide,
        requires=frozenset({"hessians"}),
        limit="may fail",
        label="AIDE",
        search={"tau": CURVATURE, "mu": CURVATURE, "m": CURVATURE},
    ),
    "cocoa": Entry(cocoa, requires=frozenset({"rows", "reg"}), label="CoCoA⁺", fixed={"passes": 3}),
    "dane": Entry(dane, requires=frozenset({"hessians"}), limit="may fail", label="DANE", search={"mu": CURVATURE}),
    "dgd": Entry(dgd, limit="biased", label="DGD", search={"step_size": STEP}),
    "dingo": Entry(dingo, requires=frozenset({"hessians"}), label="DINGO"),
    "disco": Entry(
        disco,
        requires=frozenset({"hessians"}),
        label="DiSCO",
        search={"mu": CURVATURE, "accuracy": Range(0.01, 0.5)},
        fixed={"damped": False},
        block=2,
    ),
    "distributed_newton": Entry(
        distributed_newton, requires=frozenset({"hessians", "reg"}), label="Distributed Newton", search={"step_size": Range(0.1, 1.0)}
    ),
    "esom": Entry(
        esom, requires=frozenset({"hessians"}), label="ESOM-1", search={"alpha": Range(1e-3, 1e2, 1), "eps": Range(1e-4, 1e2, 1)}
    ),
    "extra": Entry(extra, label="EXTRA", search={"step_size": STEP}),
    "fedac": Entry(fedac, limit="biased", label="FedAC(5)", search={"step_size": STEP, "m": CURVATURE}, fixed={"local_steps": 5}),
    "fedavg": Entry(fedavg, limit="biased", label="FedAvg(5)", search={"step_size": STEP}, fixed={"local_steps": 5}),
    "fedhybrid": Entry(fedhybrid, label="FedHybrid"),
    "fednew": Entry(
        fednew, requires=frozenset({"hessians"}), limit="may fail", label="FedNew", search={"alpha": CURVATURE, "rho": CURVATURE}
    ),
    "fednl": Entry(fednl, requires=frozenset({"hessians"}), limit="may fail", label="FedNL", fixed={"compressor": "rank1"}),
    "fedpd": Entry(fedpd, requires=frozenset({"hessians"}), label="FedPD", search={"eta": Range(0.1, 1e4, -1)}),
    "fedprox": Entry(fedprox, requires=frozenset({"hessians"}), limit="biased", label="FedProx", search={"rho": CURVATURE}),
    "gd": Entry(gd, label="GD", search={"step_size": STEP}),
    "giant": Entry(giant, requires=frozenset({"hessians"}), limit="may fail", label="GIANT"),
    "krylov": Entry(krylov, label="Krylov"),
    "lbfgs": Entry(lbfgs, label="L-BFGS"),
    "multipliers": Entry(
        multipliers, requires=frozenset({"hessians"}), label="Multipliers", search={"mu": CURVATURE, "b": CURVATURE}, block=2
    ),
    "network_newton": Entry(
        network_newton,
        requires=frozenset({"hessians"}),
        limit="biased",
        label="NN-1",
        search={"alpha": Range(1e-3, 1e2, -1), "eps": Range(0.1, 1.0)},
    ),
    "newton": Entry(newton, requires=frozenset({"hessians"}), label="Newton", block=4),
    "pn_dg": Entry(pn_dg, requires=frozenset({"hessians"}), label="PN_DG", search={"mu": CURVATURE, "b": CURVATURE}),
    "scaffold": Entry(scaffold, label="SCAFFOLD(5)", search={"step_size": STEP}, fixed={"local_steps": 5}),
}


def limit_of(algorithm: Algorithm) -> str:
    """Where a method goes; of one that is not in the table nothing is known against it."""
    return ALGORITHMS[algorithm.spec.name].limit if algorithm.spec.name in ALGORITHMS else "exact"


def refuse_unsuited(algorithm: Algorithm, fleet: Fleet) -> None:
    """A method that needs of a fleet what it has not says so before the first round."""
    name = algorithm.spec.name
    requires = ALGORITHMS[name].requires if name in ALGORITHMS else frozenset()
    if "reg" in requires and fleet.reg.min() <= 0:
        raise InvalidConfig(f"{name} needs a penalty on every coordinate: set reg > 0, and put an intercept in as a column of ones.")
    if "rows" in requires and fleet.on_statistics:
        raise InvalidConfig(f"{name} works on rows, but least squares is kept as sums over them: make the Fleet with keep_rows=True.")
