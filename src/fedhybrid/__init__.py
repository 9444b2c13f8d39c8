"""FedHybrid: fit convex models over data that stays where it is. Each site chooses how much work it does; the answer is exact."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import datasets as datasets
from . import partition as partition
from . import theory as theory
from .algorithms import ALGORITHMS as ALGORITHMS
from .algorithms.admm import admm as admm
from .algorithms.aide import aide as aide
from .algorithms.anderson import anderson as anderson
from .algorithms.base import Algorithm as Algorithm
from .algorithms.cocoa import cocoa as cocoa
from .algorithms.dane import dane as dane
from .algorithms.dgd import dgd as dgd
from .algorithms.dingo import dingo as dingo
from .algorithms.disco import disco as disco
from .algorithms.distributed_newton import distributed_newton as distributed_newton
from .algorithms.esom import esom as esom
from .algorithms.extra import extra as extra
from .algorithms.fedac import fedac as fedac
from .algorithms.fedavg import fedavg as fedavg
from .algorithms.fedhybrid import fedhybrid as fedhybrid
from .algorithms.fednew import fednew as fednew
from .algorithms.fednl import fednl as fednl
from .algorithms.fedpd import fedpd as fedpd
from .algorithms.fedprox import fedprox as fedprox
from .algorithms.gd import gd as gd
from .algorithms.giant import giant as giant
from .algorithms.krylov import krylov as krylov
from .algorithms.lbfgs import lbfgs as lbfgs
from .algorithms.multipliers import multipliers as multipliers
from .algorithms.network_newton import network_newton as network_newton
from .algorithms.newton import newton as newton
from .algorithms.pn_dg import pn_dg as pn_dg
from .algorithms.scaffold import scaffold as scaffold
from .callbacks import Callback as Callback
from .checkpoint import Checkpoint as Checkpoint
from .clients.bridged import absent as absent
from .clients.clock import Clock as Clock
from .clients.serial import Serial as Serial
from .clients.stacked import Stacked as Stacked
from .costs import choose as choose
from .fleet import Fleet as Fleet
from .front import fit as fit
from .inference.fit import Fit as Fit
from .losses import custom as custom
from .losses import huber as huber
from .losses import logistic as logistic
from .losses import poisson as poisson
from .losses import softmax as softmax
from .losses import squared as squared
from .result import Result as Result
from .result import Trace as Trace
from .scaling import Scaling as Scaling
from .scaling import standardised as standardised
from .solve import run as run
from .solve import solve as solve
from .status import CheckpointError as CheckpointError
from .status import InvalidConfig as InvalidConfig
from .status import InvalidData as InvalidData
from .status import Status as Status
from .tune import tune as tune

__version__ = "0.1.0"

if _TYPE_CHECKING:
    from .estimators.classifier import FederatedLogisticRegression as FederatedLogisticRegression
    from .estimators.huber import FederatedHuberRegressor as FederatedHuberRegressor
    from .estimators.regressors import FederatedLinearRegression as FederatedLinearRegression
    from .estimators.regressors import FederatedPoissonRegressor as FederatedPoissonRegressor
    from .estimators.regressors import FederatedRidge as FederatedRidge


def __getattr__(name: str) -> object:
    """The estimators are found when they are asked for: with them comes all of scikit-learn, which nothing else needs."""
    if name.startswith("Federated"):
        from . import estimators

        if name in estimators.__all__:
            return getattr(estimators, name)
    raise AttributeError(f"module 'fedhybrid' has no attribute {name!r}")


def __dir__() -> list[str]:
    from .estimators import __all__ as found_when_asked_for

    return [*globals(), *found_when_asked_for]
