"""Columns of mean 0 and variance 1."""

import numpy as np


def standardise(A: np.ndarray) -> np.ndarray:
    """Each column less its mean, over its standard deviation; a constant column becomes 0."""
    A = np.asarray(A, float)
    constant = A.max(axis=0) == A.min(axis=0)  # the deviation of a constant column may be a rounding error instead of 0
    scale = np.where(constant, 1.0, A.std(axis=0))
    return np.where(constant, 0.0, (A - A.mean(axis=0)) / scale)


def with_ones(A: np.ndarray) -> np.ndarray:
    """A last column of ones: an intercept that is penalised like every other coordinate, as in the paper's setups."""
    return np.hstack([A, np.ones((len(A), 1))])
