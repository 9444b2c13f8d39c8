"""What a CSV file is: UTF-8 (a BOM may stand in front), commas, a header of different names, and as many cells in every line."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..status import InvalidData


def records(path: Path, where: str) -> Iterator[tuple[int, list[str]]]:
    """The header, then every row, each with the number of the line on which it ends; `where` begins an error."""
    header: list[str] = []
    rows = 0
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True, skipinitialspace=True)
            for cells in reader:
                if not cells or (len(cells) == 1 and not cells[0].strip()):
                    continue  # an empty line
                line = reader.line_num
                if any("\0" in cell for cell in cells):
                    raise InvalidData(f"{where}, line {line} holds a byte 0: this is no text, or not all of it was written.")
                if header:
                    rows += 1
                    _check_width(where, line, len(cells), len(header))
                    yield line, cells
                else:
                    header = [cell.strip() for cell in cells]
                    check_header(where, header)
                    yield line, header
    except UnicodeDecodeError:
        raise InvalidData(f"{where}{_not_utf8(path)}") from None
    except csv.Error as error:
        raise InvalidData(f"{where} is not a CSV file from line {reader.line_num} on: {error}. Was all of it written?") from None
    except OSError as error:
        raise InvalidData(f"{where} could not be read: {error.strerror}.") from None
    if not rows:
        found = "has a header and no row" if header else "is empty"
        raise InvalidData(f"{where} {found}; a header and at least one row are needed.")


def _check_width(where: str, line: int, width: int, wanted: int) -> None:
    if width != wanted:
        advice = "Was all of it written?" if width < wanted else "A text that holds a comma needs quotation marks."
        raise InvalidData(f"{where}, line {line} has {width} cells, but the header has {wanted} names. {advice}")


def check_header(where: str, header: list[str]) -> None:
    for k, name in enumerate(header):
        if not name:
            raise InvalidData(f"{where}: column {k + 1} has no name; the first line must name every column.")
        if name in header[:k]:
            raise InvalidData(f"{where}: two columns are called {name}; rename or delete one of them.")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise InvalidData(f"{where}: there is one column only, called {header[0]!r}; cells must have commas between.")


def _not_utf8(path: Path) -> str:
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return f", line {line} (byte {error.start}) is not UTF-8; save the file as CSV UTF-8."
    return " is not UTF-8; save the file as CSV UTF-8."


def read_numbers(path: Path) -> tuple[list[str], np.ndarray]:
    """The header's names, and the rows of a file that holds numbers only; or an error that says which line and column is none."""
    lines = records(path, str(path))
    _, header = next(lines)
    rows = []
    for line, cells in lines:
        row = np.empty(len(header))
        for k, cell in enumerate(cells):
            try:
                row[k] = float(cell)
            except ValueError:
                advice = "drop or fill it" if not cell.strip() else "write categories as columns of 0 and 1"
                raise InvalidData(f"{path}, line {line}, column {header[k]}: this is not a number; {advice}.") from None
        rows.append(row)
    return header, np.array(rows)
