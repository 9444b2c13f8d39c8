"""A run's state in `state.fhc`, the one before in `state.prev.fhc`: a crash leaves one complete, damage is refused.

A file is magic "FedHybCk" · format, header length, body length (little-endian u64) · header · body · SHA-256 of it all:
    header: strict JSON [[[name, text], …], [[name, scalar], …], [[name, dtype, shape], …]]: identity, scalars, arrays;
            a float is {"float": its 64 bits in hex} and an integer {"int": hex}: exact, for NaN and at any size
    body: the arrays' bytes in C order, one after the other
"""

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedhybrid.status import CheckpointError, CheckpointWarning, InvalidConfig

CURRENT, PREVIOUS, TEMPORARY, LOCK = "state.fhc", "state.prev.fhc", "state.tmp", "lock"
MAGIC, FORMAT, PREAMBLE, TRAILER = b"FedHybCk", 3, struct.Struct("<8sQQQ"), 32
DTYPES, MAX_HEADER, MISSING = ("<f8", "<i8", "<i4", "<u4", "|b1", "|u1"), 4 << 20, "is missing"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run keeps its state, and at least how many steps lie between two writes of it.

    Writes are further apart where they would take more than a tenth of the time; every=1 is kept to the letter.
    """

    directory: Path
    every: int = 25

    def __post_init__(self) -> None:
        named = isinstance(self.directory, str | Path) and str(self.directory) != ""
        if not named or (os.path.lexists(self.directory) and not os.path.isdir(self.directory)):
            raise InvalidConfig(f"checkpoint={str(self.directory)!r} is not a directory: name one, or a new one.")
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise InvalidConfig(f"checkpoint every={self.every!r}: give a whole number of rounds, 1 or more.")
        object.__setattr__(self, "directory", Path(self.directory))

    @classmethod
    def of(cls, value: "str | Path | Checkpoint") -> "Checkpoint":
        """`value` itself, or the directory that it names with the default interval."""
        return value if isinstance(value, Checkpoint) else cls(value)  # type: ignore[arg-type]  # __post_init__ takes a str too


class Snapshot(NamedTuple):
    """What is saved. Scalars: float, int, str, bool, None, lists of them. Arrays: float64, int64, bool, uint8."""

    scalars: dict[str, Any]
    arrays: dict[str, np.ndarray]


def save(directory: str | Path, identity: dict[str, str], snapshot: Snapshot) -> None:
    """Make `snapshot` the current checkpoint: on the disk when this returns; if it raises, what was there still is."""
    directory = Path(directory).absolute()
    current, previous, temporary = (directory / name for name in (CURRENT, PREVIOUS, TEMPORARY))
    data = _pack(identity, snapshot)
    try:
        _make(directory)
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # never retried: after a failure the kernel may have dropped the pages
        if isinstance(_read(current, identity), Snapshot):  # a damaged one must not replace a good previous one
            os.rename(current, previous)
        os.rename(temporary, current)
        _sync(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        message = f"{current} could not be written: {error.strerror} ({error.filename or temporary})."
        raise CheckpointError(f"{message} What was saved before is intact: remove the cause and resume.") from error


def load(directory: str | Path, identity: dict[str, str]) -> Snapshot | None:
    """The newest good checkpoint of this identity; None only where nothing was ever saved."""
    directory = Path(directory).absolute()
    reasons: list[str] = []
    for name in (CURRENT, PREVIOUS):
        found = _read(directory / name, identity)
        if isinstance(found, Snapshot):
            if reasons:
                warnings.warn(f"{reasons[0]}: the one before it is used, {name}.", CheckpointWarning, stacklevel=2)
            return found
        reasons.append(f"{directory / name} {found}")
    if all(reason.endswith(MISSING) for reason in reasons):
        return None
    raise CheckpointError(f"{'; '.join(reasons)}. To start again, delete {directory} or name another.")


@contextlib.contextmanager
def lock(directory: str | Path) -> Iterator[None]:
    """Hold `directory` for this process. The kernel lets go when the process, and any fork of it, has ended."""
    path = Path(directory).absolute() / LOCK
    with contextlib.ExitStack() as stack:
        try:
            _make(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # closing is not enough where a fork has it open
            os.pwrite(descriptor, b"%-20d" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "(unknown)"
            raise CheckpointError(f"{path.parent} is in use by process {holder}: wait for it or end it.") from None
        except OSError as error:
            raise CheckpointError(f"{path} could not be locked: {error.strerror}.") from error
        yield


def _pack(identity: dict[str, str], snapshot: Snapshot) -> bytes:
    arrays = {name: np.asarray(array) for name, array in snapshot.arrays.items()}
    for name, array in arrays.items():
        if array.dtype.str not in DTYPES:
            raise CheckpointError(f"array {name!r} is {array.dtype}; a checkpoint holds {', '.join(DTYPES)}.")
    scalars = [(name, _encode(name, value)) for name, value in snapshot.scalars.items()]
    listed = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    header = json.dumps([list(identity.items()), scalars, listed], allow_nan=False).encode()
    if len(header) > MAX_HEADER:
        raise CheckpointError(f"the scalars take more than {MAX_HEADER} bytes; save long lists as arrays.")
    preamble = PREAMBLE.pack(MAGIC, FORMAT, len(header), sum(array.nbytes for array in arrays.values()))
    data = b"".join((preamble, header, *(array.tobytes() for array in arrays.values())))
    return data + hashlib.sha256(data).digest()


def _read(path: Path, identity: dict[str, str]) -> Snapshot | str:
    """The snapshot in a file, or what is wrong with it. Its size, then its checksum, come before anything it says."""
    try:  # O_NONBLOCK: a pipe in the file's place must not hang us; its size is 0
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            size = os.fstat(file.fileno()).st_size
            preamble = file.read(PREAMBLE.size) if size >= PREAMBLE.size else bytes(PREAMBLE.size)
            magic, version, length, body_length = PREAMBLE.unpack(preamble)
            age = "a newer" if version > FORMAT else "an older"
            for wrong, reason in (
                (size < PREAMBLE.size, "is empty or cut short"),
                (magic != MAGIC, "is not a checkpoint"),
                (version != FORMAT, f"was written by {age} version of fedhybrid (format {version}, not {FORMAT})"),
                (length > MAX_HEADER, f"declares a header of {length} bytes, and {MAX_HEADER} is the most"),
                (PREAMBLE.size + length + body_length + TRAILER != size, "does not have the length that it declares"),
            ):
                if wrong:
                    return reason
            data = memoryview(preamble + file.read(size - PREAMBLE.size))
    except FileNotFoundError:
        return MISSING
    except (OSError, MemoryError) as error:
        reason = "it is a symbolic link" if path.is_symlink() else getattr(error, "strerror", "not enough memory")
        return f"cannot be read: {reason}"
    if hashlib.sha256(data[:-TRAILER]).digest() != data[-TRAILER:]:
        return "is damaged: its SHA-256 does not match"
    header, body = data[PREAMBLE.size :][:length], data[PREAMBLE.size + length : -TRAILER]
    try:
        written, scalars, listed = json.loads(bytes(header), object_hook=_number)
        snapshot, written = Snapshot(dict(scalars), {}), dict(written)
        for name, dtype, shape in listed:
            snapshot.arrays[name] = np.ndarray(shape, DTYPES[DTYPES.index(dtype)], body).copy()
            body = body[snapshot.arrays[name].nbytes :]
        if len(body) or len(snapshot.arrays) != len(listed):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
        return "has a header that is not of the expected form"
    differs = [f"another {key}" for key in {**identity, **written} if identity.get(key) != written.get(key)]
    return f"is of {' and '.join(differs)}" if differs else snapshot


def _encode(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list):
        return [_encode(name, item) for item in value]
    if isinstance(value, int | float):
        return {"int": hex(value)} if isinstance(value, int) else {"float": struct.pack(">d", value).hex()}
    raise CheckpointError(f"scalar {name!r} holds a {type(value).__name__}, which a checkpoint cannot.")


def _number(tagged: dict[str, str]) -> int | float:
    ((kind, text),) = tagged.items()
    return int(text, 16) if kind == "int" else float(struct.unpack(">d", bytes.fromhex(text))[0])


def _make(directory: Path) -> None:
    """The directory and what is missing above it: private, and on the disk."""
    if not directory.exists():
        _make(directory.parent)
        directory.mkdir(0o700, exist_ok=True)
        _sync(directory.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
