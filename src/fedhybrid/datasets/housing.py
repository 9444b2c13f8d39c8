"""Boston housing: 506 tracts, 13 features, the median value of homes as response."""

import io

import numpy as np

from .fetch import raw

COLUMNS = ("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT")


def housing() -> tuple[np.ndarray, np.ndarray]:
    """Boston housing as (A, y), columns in the order of `COLUMNS`, y the median home value (MEDV) in 1,000 dollars.

    Column B encodes race: it is a transform of the share of Black residents of a tract, made on the assumption that segregation
    raises prices. The table is here because the paper's second setup uses it; draw no conclusion about homes or people from it.
    D. Harrison, D. L. Rubinfeld, 1978.
    """
    table = np.loadtxt(io.BytesIO(raw("housing.data")))
    return table[:, :-1], table[:, -1]
