"""FedHybrid: fit convex models over data that stays where it is. Each site chooses how much work it does; the answer is exact."""

from . import theory as theory
from .algorithms import ALGORITHMS as ALGORITHMS
from .algorithms.base import Algorithm as Algorithm
from .algorithms.fedhybrid import fedhybrid as fedhybrid
from .algorithms.gd import gd as gd
from .algorithms.lbfgs import lbfgs as lbfgs
from .algorithms.newton import newton as newton
from .checkpoint import Checkpoint as Checkpoint
from .clients.serial import Serial as Serial
from .clients.stacked import Stacked as Stacked
from .fleet import Fleet as Fleet
from .losses import custom as custom
from .losses import huber as huber
from .losses import logistic as logistic
from .losses import poisson as poisson
from .losses import softmax as softmax
from .losses import squared as squared
from .result import Result as Result
from .result import Trace as Trace
from .solve import run as run
from .solve import solve as solve
from .status import InvalidConfig as InvalidConfig
from .status import InvalidData as InvalidData
from .status import Status as Status

__version__ = "0.1.0"
