"""Messages that are none: hundreds of ways to spoil a good one, each with a name."""

import hashlib
import json

import numpy as np

from fedhybrid.federation.envelope import LARGEST_HEADER, PREAMBLE, TRAILER

TWINS = ("", "A", "а", "ａ", "a\u0301", "a\u200b", "a\0", " a", "a\n", "../a", "/etc/passwd", "a/../../b", "~", "a" * 300, "\ud800")
NO_NUMBERS = (True, False, -1, 1.0, "0", None, [0], {}, 2**53, 2**64, 10**300)
NO_TEXTS = (None, 0, True, [], {}, 1.5)
NO_LISTS = (None, 0, "", {}, "ab")


def taken_apart(data):
    magic, version, header, body = PREAMBLE.unpack(data[: PREAMBLE.size])
    at = PREAMBLE.size + header
    assert at + body + TRAILER == len(data)
    return (magic, version), data[PREAMBLE.size : at], data[at:-TRAILER]


def put_together(text, body, *, magic=b"FedHybMs", version=1, header_length=None, body_length=None):
    """With a checksum that fits whatever is in it."""
    lengths = len(text) if header_length is None else header_length, len(body) if body_length is None else body_length
    data = PREAMBLE.pack(magic, version, *lengths) + text + body
    return data + hashlib.sha256(data).digest()


def written(header):
    return json.dumps(header, separators=(",", ":")).encode()


def damaged(data, rng):
    """What the way can do to bytes, and what a liar can write about their sizes."""
    _, text, body = taken_apart(data)
    places = {0, 1, 7, 8, 12, 16, 23, 24, 24 + len(text) // 2, 24 + len(text), len(data) - 33, len(data) - 32, len(data) - 1}
    for at in places | set(rng.integers(len(data), size=6).tolist()):
        yield f"cut at {at}", data[:at]
    for at in (0, 8, 24, 24 + len(text), len(data) - 32, len(data)):
        for size in (1, 8, 4096):
            yield f"{size} bytes more at {at}", data[:at] + bytes(rng.bytes(size)) + data[at:]
    for at in rng.integers(8 * len(data), size=24).tolist():
        yield f"bit {at} flipped", data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]
    for length in (0, 1, 2**16 + 1, 2**31, 2**32 - 1):
        yield f"a header said to be {length} long", put_together(text, body, header_length=length)
    for length in (len(body) + 1, 8 << 40, 2**63, 2**64 - 1, 2**64 - len(data)):
        yield f"a body said to be {length} long", put_together(text, body, body_length=length)
    for version in (0, 2, 2**32 - 1):
        yield f"version {version}", put_together(text, body, version=version)
    for magic in (b"FedHybCk", bytes(8), b"\x80\x04\x95\0\0\0\0\0", b"\x93NUMPY\1\0", b"PK\3\4\0\0\0\0"):
        yield f"it begins with {magic}", put_together(text, body, magic=magic)
    yield "nothing", b""
    yield "noise", rng.bytes(len(data))
    yield "a header too long", put_together(text[:-1] + b" " * LARGEST_HEADER + b"}", body)
    yield "deep lists", put_together(b"[" * 30_000, body)
    yield "deep objects", put_together(b'{"a":' * 12_000, body)
    yield "deep and closed", put_together(b"[" * 30_000 + b"]" * 30_000, body)
    yield "many keys", put_together(written({f"k{k}": 0 for k in range(5000)}), body)
    yield "no UTF-8", put_together(text.replace(b'":', b'\xff":', 1), body)
    for encoding in ("utf-16", "utf-16-be", "utf-32", "utf-8-sig"):
        yield encoding, put_together(text.decode().encode(encoding), body)
    yield "a key twice", put_together(text[:-1] + b"," + text[1:], body)
    yield "blanks", put_together(text.replace(b":", b": "), body)
    yield "a number of 5000 digits", put_together(text.replace(b":", b":" + b"9" * 5000 + b",", 1), body)
    for other in (b"", b"null", b"[]", b"0", b'""', b"{}", b"NaN", b"{", b"\0", text[:-1], text + b"}"):
        yield f"the header {other[:9]!r}", put_together(other, body)


def mistyped(data):
    """A header whose entries are something else."""
    _, text, body = taken_apart(data)
    header = json.loads(text)
    for name, value in header.items():
        others = NO_NUMBERS if type(value) is int else NO_TEXTS if type(value) is str else NO_LISTS
        for other in others:
            yield f"{name} = {str(other)[:20]!r}", put_together(written(header | {name: other}), body)
        yield f"without {name}", put_together(written({key: kept for key, kept in header.items() if key != name}), body)
        yield (
            f"{name} in capitals",
            put_together(text.replace(f'"{name}":'.encode(), f'"{name.upper()}":'.encode(), 1), body),
        )
    for name in ("dtype", "shape", "__class__", "é"):
        yield f"a key {name}", put_together(written(header | {name: "<f8"}), body)


def changed(data, **fields):
    """Well formed, of another content."""
    _, text, body = taken_apart(data)
    return put_together(written(json.loads(text) | fields), body)


def bodies(body):
    """Other rows than one of so many finite float64."""
    row = np.frombuffer(body, "<f8")
    for name, other in {
        "one too few": row[:-1],
        "one too many": np.append(row, 0.0),
        "two rows": np.stack([row, row]),
        "a number": np.zeros(()),
        "one number": np.zeros(1),
        "nothing": row[:0],
        "float32": row.astype("<f4"),
        "float16": np.zeros(len(row), "<f2"),
        "int32": np.zeros(len(row), "<i4"),
        "complex": row.astype("<c16"),
        "bytes": np.zeros(len(row), "u1"),
        "a million": np.zeros(125_000),
    }.items():
        if other.tobytes() != body and other.nbytes != len(body):
            yield name, other.tobytes()
    for name, value in {"NaN": np.nan, "infinite": np.inf, "minus infinite": -np.inf}.items():
        for at in {0, len(row) // 2, len(row) - 1} if len(row) else ():
            other = row.copy()
            other[at] = value
            yield f"{name} at {at}", other.tobytes()
    for size in (1, 4, 7):
        yield f"{size} bytes more", body + bytes(size)
        if len(body) >= 8:
            yield f"{size} bytes less", body[:-size]
