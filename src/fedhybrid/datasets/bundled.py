"""Small real tables that come with scikit-learn and need no download."""

import numpy as np

from ..status import InvalidConfig
from .standardise import standardise

NAMES = ("breast_cancer", "diabetes", "iris", "wine", "digits")


def bundled(name: str, *, standardised: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's table of that name, as (A, y): breast_cancer (two labels), diabetes (a real response), iris, wine, digits."""
    if name not in NAMES:
        raise InvalidConfig(f"{name!r} is not bundled with scikit-learn; choose from {', '.join(NAMES)}.")
    import sklearn.datasets

    A, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return (standardise(A) if standardised else A), y.astype(float)
