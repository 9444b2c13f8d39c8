"""Data to try things on: the paper's four setups, their generators and tables, LIBSVM files, and what scikit-learn brings along.

A table is (A, y); `fedhybrid.partition` deals it to clients. `setup_1` … `setup_4` are the paper's problems, ready to be solved.
"""

from .bundled import bundled as bundled
from .housing import housing as housing
from .libsvm import libsvm as libsvm
from .mushroom import mushroom as mushroom
from .setups import SETUPS as SETUPS
from .setups import Setup as Setup
from .setups import setup_1 as setup_1
from .setups import setup_2 as setup_2
from .setups import setup_3 as setup_3
from .setups import setup_4 as setup_4
from .standardise import standardise as standardise
from .standardise import with_ones as with_ones
from .synthetic import linear_synthetic as linear_synthetic
from .synthetic import logistic_synthetic as logistic_synthetic
