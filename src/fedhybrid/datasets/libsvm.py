"""Files in LIBSVM's format: a label, then column:value pairs, a row a line."""

import io
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from ..status import InvalidData
from .fetch import raw

KNOWN = {"w8a": ("w8a.libsvm", 300), "phishing": ("phishing.libsvm", 68)}  # their files, and numbers of columns


def libsvm(name: str | PathLike, *, columns: int | None = None) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """The set "w8a" or "phishing", or the file at a path (plain, .gz or .bz2), as (A, y) with sparse rows.

    Two different labels, whatever they are, become 0 and 1 in their order. `columns`: where the file may lack the last ones.
    """
    from sklearn.datasets import load_svmlight_file

    source: Any = name if isinstance(name, str) else str(name)
    if source in KNOWN:
        file, width = KNOWN[source]
        source, columns = io.BytesIO(raw(file)), columns or width
    elif not Path(source).is_file():
        raise InvalidData(f"{source} is not a file, nor one of the names {', '.join(KNOWN)}.")
    try:
        A, y = load_svmlight_file(source, n_features=columns)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidData(f"{name} could not be read as a LIBSVM file: {error}") from error
    labels = np.unique(y)
    if len(labels) == 2:
        y = (y == labels[1]).astype(float)
    return scipy.sparse.csr_array(A), y
