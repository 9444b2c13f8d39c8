"""Messages as bytes: a question to a site, and its answer. All that can be wrong with one is noticed before any arithmetic.

    magic, version · length of the header · length of the body (little-endian) · header · body · SHA-256 of it all
    header   strict JSON, with exactly the keys of its kind
    body     float64, little-endian, as many as the question has (protocol.py)

In a secure sum (sums.py) a question travels beside the message of the masks' protocol, and the answer's body is such a message.

An answer names the question that it answers by its SHA-256, so that one of another run, round or point is none.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..status import FedHybridError, Status

MASKED = {"question": int}  # how many of the body's bytes are the question; the rest is of the masks' protocol
BYTES = -1  # in place of a number of floats: the body is no row
MAGIC, VERSION, PREAMBLE, TRAILER = b"FedHybMs", 1, struct.Struct("<8sIIQ"), 32
LARGEST_HEADER = 1 << 16
LONGEST_MESSAGE = 1000
KINDS = ("census", "start", "ask", "again", "keys")


class Refused(FedHybridError):
    """A message that cannot be used. `code` is one of a closed list, for the other side; the message is for people."""

    status = Status.INVALID_DATA

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Question(NamedTuple):
    kind: str
    terms: str  # digest of what was agreed
    run: str
    epoch: int  # counts who takes part: it changes when somebody leaves
    round: int
    numbers: tuple[int, ...]  # which of the protocol's questions; several where past ones are asked again
    sites: tuple[str, ...]  # who takes part
    body: np.ndarray
    since: tuple[int, ...] = ()  # of every site, the last round in which it took part: its state must not be an older one


class Answer(NamedTuple):
    run: str
    epoch: int
    round: int
    question: str  # its SHA-256
    site: str
    memory: str  # drawn when the site's state was made: another one tells that a state was lost
    refused: str  # "" or why, one of CODES
    message: str
    body: np.ndarray  # float64, or bytes


CODES = ("terms", "old", "lost", "sites", "rows", "question", "run", "failed", "range", "budget")
QUESTION = {"kind": str, "terms": str, "run": str, "epoch": int, "round": int, "numbers": list, "sites": list, "since": list}
ANSWER = {"run": str, "epoch": int, "round": int, "question": str, "site": str, "memory": str, "refused": str, "message": str}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def seal(header: Mapping[str, Any], body: bytes) -> bytes:
    text = _written(header)
    if len(text) > LARGEST_HEADER:
        raise Refused("question", f"a header of {len(text)} bytes; {LARGEST_HEADER} is the most.")
    data = b"".join((PREAMBLE.pack(MAGIC, VERSION, len(text), len(body)), text, body))
    return data + hashlib.sha256(data).digest()


def _written(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":"), allow_nan=False).encode()


def unseal(data: Any, schema: Mapping[str, type]) -> tuple[dict[str, Any], bytes]:
    """Header and body. What a message says of its own size is compared with its size, and nothing is made of that size."""
    if not isinstance(data, bytes) or len(data) < PREAMBLE.size + TRAILER:
        raise Refused("question", "is too short to be a message.")
    magic, version, header_length, body_length = PREAMBLE.unpack(data[: PREAMBLE.size])
    if magic != MAGIC:
        raise Refused("question", "is no message of a federation.")
    if version != VERSION:
        raise Refused("question", f"speaks version {version} of the protocol, and this is {VERSION}: install the same release everywhere.")
    if header_length > LARGEST_HEADER or PREAMBLE.size + header_length + body_length + TRAILER != len(data):
        raise Refused("question", "does not have the length that it declares.")
    if hashlib.sha256(memoryview(data)[:-TRAILER]).digest() != data[-TRAILER:]:
        raise Refused("question", "was damaged on the way: its SHA-256 does not match.")
    body = data[PREAMBLE.size + header_length : -TRAILER]
    text = data[PREAMBLE.size :][:header_length]
    try:
        header = json.loads(text)
        if _written(header) != text:  # a key twice, UTF-16, …: there is one way to write it
            raise ValueError
    except (ValueError, RecursionError):
        raise Refused("question", "has a header that cannot be read.") from None
    if not isinstance(header, dict) or set(header) != set(schema):
        raise Refused("question", "has a header of another kind.")
    for name, kind in schema.items():
        if type(header[name]) is not kind:  # not isinstance: True is no number here
            raise Refused("question", f"has a header whose {name} is no {kind.__name__}.")
        if kind is int and not 0 <= header[name] < 2**53:
            raise Refused("question", f"has a header whose {name} is out of range.")
    return header, body


def read_floats(body: bytes) -> np.ndarray:
    if len(body) % 8:
        raise Refused("question", "has a body that is no row of float64.")
    return np.frombuffer(body, "<f8").astype(np.float64)


def seal_question(question: Question) -> bytes:
    header = question._asdict()
    del header["body"]
    lists = {name: list(header[name]) for name in ("numbers", "sites", "since")}
    return seal(header | lists, question.body.astype("<f8").tobytes())


def read_question(data: Any) -> Question:
    header, body = unseal(data, QUESTION)
    if header["kind"] not in KINDS:
        raise Refused("question", "is of a kind that is not known.")
    if not all(type(k) is int and 0 <= k < 2**31 for k in header["numbers"] + header["since"]):
        raise Refused("question", "has numbers that are none.")
    if not all(type(name) is str for name in header["sites"]) or len(set(header["sites"])) < len(header["sites"]):
        raise Refused("question", "has sites that are no names, or one of them twice.")
    if len(header["since"]) != (len(header["sites"]) if header["kind"] in ("ask", "again") else 0):
        raise Refused("question", "does not say of every site when it took part last.")
    values = read_floats(body)
    if not np.all(np.isfinite(values)):
        raise Refused("question", "holds numbers that are NaN or infinite.")
    lists = {name: tuple(header[name]) for name in ("numbers", "sites", "since")}
    return Question(**header | lists, body=values)


def seal_answer(answer: Answer) -> bytes:
    header = answer._asdict()
    del header["body"]
    body = answer.body if answer.body.dtype == np.uint8 else answer.body.astype("<f8")
    return seal(header, body.tobytes())


def seal_masked(question: bytes, message: bytes) -> bytes:
    return seal({"question": len(question)}, question + message)


def read_masked(data: Any) -> tuple[bytes, bytes] | None:
    """A question and the message of the masks' protocol; None where it is a question alone."""
    try:
        header, body = unseal(data, MASKED)
    except Refused:
        return None  # whoever reads it as a question says what is wrong with it
    return body[: header["question"]], body[header["question"] :]


def _printable(text: str) -> str:
    """A sentence from elsewhere, for people: no commands for a terminal, and an end."""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_MESSAGE])


def read_answer(data: Any, expected: Mapping[str, int]) -> Answer | None:
    """An answer to one of the questions with as many floats as that asks for, all finite; or a refusal, which has none. None where it
    answers another question: one of an earlier round, run or federation."""
    header, body = unseal(data, ANSWER)
    if header["question"] not in expected:
        return None
    if header["refused"]:
        if header["refused"] not in CODES or body:
            raise Refused("question", "refuses for a reason that is not known.")
        return Answer(**header | {"message": _printable(header["message"])}, body=np.zeros(0))
    if expected[header["question"]] == BYTES:
        return Answer(**header, body=np.frombuffer(body, np.uint8))
    if len(body) != 8 * (floats := expected[header["question"]]):
        raise Refused("question", f"holds {len(body)} bytes, and {8 * floats} were asked for.")
    values = read_floats(body)
    if bad := int(np.count_nonzero(~np.isfinite(values))):
        raise Refused("question", f"holds {bad} numbers that are NaN or infinite.")
    return Answer(**header, body=values)
