"""The server's record of a run: every round's replies, on the disk before the next question is asked. A restart reads it back.

The method is deterministic, so that the rounds' replies are all of a run's state: a restarted server takes the same steps, with replies
from here as far as they go, and asks the sites from there on. One file, to which records are added:

    magic · length · SHA-256 of (the record before, length) · payload · SHA-256 of (all that, payload)

Each checksum covers the ones before it. A record that was cut short by the end of the process was never acted upon, and is dropped; so
is a last one that is damaged, with a warning: its round is asked again, and the sites answer from their memory. Any other damage is an
error that names the file.
"""

import hashlib
import json
import os
import struct
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..status import CheckpointError, CheckpointWarning

MAGIC, HEAD, SUM = b"FHrd", struct.Struct("<4sQ"), 32
LARGEST = 1 << 40


class Record(NamedTuple):
    header: dict[str, Any]
    rows: np.ndarray  # float64, flat


class Journal:
    """Opened for one process; the folder's lock is the caller's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records, end, self.last = self._read()
        try:
            fresh = not path.exists()
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.ftruncate(self.file, end)
            os.lseek(self.file, end, os.SEEK_SET)
            os.fsync(self.file)
            if fresh:
                _sync(path.parent)
        except OSError as error:
            raise CheckpointError(f"{path} could not be opened: {error.strerror}.") from error

    def add(self, header: dict[str, Any], rows: np.ndarray) -> None:
        """On the disk when this returns. After an error the file is as it was for whoever opens it next."""
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
        payload = struct.pack("<I", len(text)) + text + np.ascontiguousarray(rows, "<f8").tobytes()
        head = HEAD.pack(MAGIC, len(payload))
        above = hashlib.sha256(self.last + head).digest()
        below = hashlib.sha256(above + payload).digest()
        data = memoryview(b"".join((head, above, payload, below)))
        try:
            while data:
                data = data[os.write(self.file, data) :]
            os.fsync(self.file)  # never retried: after a failure the kernel may have dropped the pages
        except OSError as error:
            message = f"{self.path} could not be written: {error.strerror}. What was written before is intact"
            raise CheckpointError(f"{message}: remove the cause and start again.") from error
        self.last = below

    def close(self) -> None:
        os.close(self.file)

    def _read(self) -> tuple[list[Record], int, bytes]:
        """All good records, where they end, and the checksum of the last."""
        records: list[Record] = []
        last, at = bytes(SUM), 0
        try:  # O_NONBLOCK: a pipe in the file's place must not hang us
            with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                data = memoryview(file.read())
        except FileNotFoundError:
            data = memoryview(b"")
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be read: {error.strerror}.") from error
        while at < len(data):
            rest = data[at:]
            if len(rest) < HEAD.size + SUM:
                break  # cut short
            magic, length = HEAD.unpack(rest[: HEAD.size])
            above = hashlib.sha256(last + rest[: HEAD.size]).digest()
            if magic != MAGIC or length > LARGEST or above != bytes(rest[HEAD.size :][:SUM]):
                raise self._damaged(len(records))
            whole = HEAD.size + SUM + length + SUM
            if len(rest) < whole:
                break  # cut short
            payload = rest[HEAD.size + SUM :][:length]
            below = hashlib.sha256(above + payload).digest()
            if below != bytes(rest[whole - SUM : whole]):
                if at + whole < len(data) or not records:
                    raise self._damaged(len(records))
                reason = f"{self.path}: the last record, number {len(records)}, is damaged; the one before it is used."
                warnings.warn(reason, CheckpointWarning, stacklevel=3)
                break
            try:
                records.append(_record(bytes(payload)))
            except (ValueError, RecursionError, struct.error):
                raise self._damaged(len(records)) from None
            last, at = below, at + whole
        return records, at, last

    def _damaged(self, number: int) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged at record {number}: its SHA-256 does not match. Put back a copy, or delete the run's folder to begin "
            "again; nothing of it has been used."
        )


def _record(payload: bytes) -> Record:
    (length,) = struct.unpack("<I", payload[:4])
    header = json.loads(payload[4 : 4 + length])
    if not isinstance(header, dict) or "kind" not in header:
        raise ValueError
    return Record(header, np.frombuffer(payload[4 + length :], "<f8").astype(np.float64))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
