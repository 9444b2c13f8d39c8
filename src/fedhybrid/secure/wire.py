"""Flat binary messages: fixed fields, counts that are checked before anything is allocated, nothing left over at the end."""

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from .errors import Reason, SecureError

MAGIC = b"FHS1"


class Writer:
    """Fields one after the other, little-endian."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def raw(self, data: bytes) -> "Writer":
        self._parts.append(data)
        return self

    def number(self, form: str, value: int) -> "Writer":
        return self.raw(struct.pack("<" + form, value))

    def numbers(self, form: str, values: Sequence[int]) -> "Writer":
        return self.number("I", len(values)).raw(struct.pack(f"<{len(values)}{form}", *values))

    def block(self, data: bytes) -> "Writer":
        """Bytes with their length before them."""
        return self.number("I", len(data)).raw(data)

    def integers(self, values: Iterable[int]) -> "Writer":
        """Integers of any size, all in the bytes that the largest needs."""
        values = [int(v) for v in values]
        width = max((v.bit_length() // 8 + 1 for v in values), default=1)
        self.number("I", len(values)).number("H", width)
        return self.raw(b"".join(v.to_bytes(width, "little", signed=True) for v in values))

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """The same fields again. Whatever does not fit is MALFORMED; a length is compared with what is there before it is used."""

    def __init__(self, data: bytes) -> None:
        if not isinstance(data, bytes):
            raise malformed(f"bytes expected, not {type(data).__name__}")
        self._data, self._at = data, 0

    @property
    def at(self) -> int:
        return self._at

    def raw(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise malformed(f"{size} bytes announced at {self._at}, {len(self._data) - self._at} are there")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: str) -> int:
        value = struct.unpack("<" + form, self.raw(struct.calcsize("<" + form)))[0]
        return int(value)

    def numbers(self, form: str, most: int) -> tuple[int, ...]:
        count = self.count(most)
        return struct.unpack(f"<{count}{form}", self.raw(count * struct.calcsize("<" + form)))

    def count(self, most: int) -> int:
        count = self.number("I")
        if count > most:
            raise malformed(f"{count} items announced at {self._at}, at most {most} may come")
        return count

    def block(self, most: int) -> bytes:
        return self.raw(self.count(most))

    def words(self, count: int) -> np.ndarray:
        return np.frombuffer(self.raw(8 * count), dtype="<u8").astype(np.uint64)

    def integers(self, most: int) -> list[int]:
        count, width = self.count(most), self.number("H")
        data = self.raw(count * width)
        return [int.from_bytes(data[k * width : (k + 1) * width], "little", signed=True) for k in range(count)]

    def end(self) -> None:
        if self._at != len(self._data):
            raise malformed(f"{len(self._data) - self._at} bytes too many")


def message(kind: int, tag: bytes) -> Writer:
    return Writer().raw(MAGIC).number("B", kind).raw(tag)


def opened(data: bytes, tag: bytes) -> tuple[int, Reader]:
    """The kind of a message of this run, and a reader of the rest."""
    reader = Reader(data)
    if reader.raw(4) != MAGIC:
        raise malformed("it does not begin like a message of this protocol")
    kind = reader.number("B")
    if reader.raw(32) != tag:
        raise SecureError(Reason.WRONG_RUN, "A message belongs to another run, or to other terms than were agreed here. It was not used.")
    return kind, reader


def malformed(what: str) -> SecureError:
    return SecureError(Reason.MALFORMED, f"Malformed message: {what}. It was not used.")
