"""One site's file as a table: CSV or Parquet.

Columns of numbers are read to the last digit; True and False are truth values; everything else stays text, without the blanks around it.
An entry is missing where it is one of `MISSING`, or null in Parquet. "None" and "unknown" are texts: they may be what somebody answered.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from ..status import InvalidConfig, InvalidData
from .records import check_header, records

MISSING = frozenset(("", ".", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"))
TRUTH = dict.fromkeys(("True", "TRUE", "true"), True) | dict.fromkeys(("False", "FALSE", "false"), False)
PARQUET = (".parquet", ".pq")


def read_table(path: Path | str, site: str | None = None) -> pd.DataFrame:
    """`site` is for the messages; without one it is the file's name without its ending."""
    path = Path(path)
    where = f"{site_of(path) if site is None else site}: {path}"
    return _read_parquet(path, where) if path.suffix.lower() in PARQUET else _read_csv(path, where)


def read_tables(paths: Iterable[Path | str]) -> dict[str, pd.DataFrame]:
    """One table per file, by the sites' names."""
    named: dict[str, Path] = {}
    for path in map(Path, paths):
        if other := named.get(site_of(path)):
            raise InvalidConfig(f"{other} and {path} would both be the site {site_of(path)}; rename one of the files.")
        named[site_of(path)] = path
    if not named:
        raise InvalidConfig("no file: one is needed for every site.")
    return {site: read_table(path, site) for site, path in named.items()}


def site_of(path: Path) -> str:
    """A site is called as its file, without the ending."""
    return path.stem


def _read_csv(path: Path, where: str) -> pd.DataFrame:
    lines = records(path, where)
    _, header = next(lines)
    cells = zip(*(cells for _, cells in lines), strict=True)
    return pd.DataFrame({name: _column(column) for name, column in zip(header, cells, strict=True)})


def _column(cells: Iterable[str]) -> pd.Series:
    """Numbers or truth values, where all that is not missing is one."""
    text = _text(cells)
    given = [entry for entry in text if entry is not None]
    if set(given) <= TRUTH.keys() and given:
        return pd.Series([None if entry is None else TRUTH[entry] for entry in text], dtype="boolean" if None in text else bool)
    try:
        numbers = np.fromiter((np.nan if entry is None else float(entry) for entry in text), np.float64, len(text))
    except ValueError:
        return pd.Series(text, dtype=object)
    underscores = any("_" in entry for entry in given)  # float takes 1_000 for a number
    return pd.Series(text, dtype=object) if underscores else pd.Series(numbers)


def _text(entries: Iterable[str | None]) -> list[str | None]:
    """Without blanks around it, and None where it says that something is missing."""
    stripped = (entry if entry is None else entry.strip() for entry in entries)
    return [None if entry in MISSING else entry for entry in stripped]


def _read_parquet(path: Path, where: str) -> pd.DataFrame:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidConfig(f"{where} needs the package pyarrow: pip install fedhybrid[parquet].") from None
    try:
        with open(path, "rb") as file:
            table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise InvalidData(f"{where} is not a Parquet file, or not all of it was written ({str(error).splitlines()[0]}).") from None
    except OSError as error:
        raise InvalidData(f"{where} could not be read: {error.strerror or error}.") from None
    check_header(where, table.column_names)
    if not table.num_rows:
        raise InvalidData(f"{where} has columns and no row; at least one row is needed.")
    frame = table.to_pandas(ignore_metadata=True)
    for name, column in frame.items():
        kind = pd.api.types.infer_dtype(column, skipna=True)
        if kind == "string" or (kind == "categorical" and column.cat.categories.inferred_type == "string"):
            frame[name] = pd.Series(_text(column.astype(object).where(column.notna(), None)), dtype=object)
    return frame
