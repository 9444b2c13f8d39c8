"""A CSV file as a table of numbers, or an error that says which line and column is none."""

import csv
from pathlib import Path

import numpy as np

from ..status import InvalidData


def read_csv(path: Path) -> tuple[list[str], np.ndarray]:
    """The header's names, and the rows."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidData(f"{path} is not a CSV file in UTF-8 ({error}).") from None
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise InvalidData(f"{path}: a header with at least two names and a row of numbers are needed, with commas between.")
    header = [name.strip() for name in lines[0][1]]
    table = np.empty((len(lines) - 1, len(header)))
    for row, (number, line) in zip(table, lines[1:], strict=True):
        if len(line) != len(header):
            raise InvalidData(f"{path}, line {number}: {len(header)} numbers are needed, but there are {len(line)} cells.")
        for k, cell in enumerate(line):
            try:
                row[k] = float(cell)
            except ValueError:
                advice = "drop or fill it" if not cell.strip() else "write categories as columns of 0 and 1"
                raise InvalidData(f"{path}, line {number}, column {header[k]}: {cell!r} is not a number; {advice}.") from None
    return header, table
