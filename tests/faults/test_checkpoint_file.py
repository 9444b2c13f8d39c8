"""The checkpoint file: no damage is accepted, no death at any instant loses more than the snapshot being written."""

import hashlib
import io
import itertools
import json
import math
import os
import pickle
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedhybrid import checkpoint
from fedhybrid.checkpoint import Checkpoint, Snapshot, load, lock, save
from fedhybrid.status import CheckpointError, CheckpointWarning, InvalidConfig

IDENTITY = {"problem": "p", "algorithm": "a"}
SOURCE = Path(checkpoint.__file__).parents[1]
CHILD = [sys.executable, str(Path(__file__).with_name("checkpoint_child.py")), str(SOURCE)]
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def snapshot(k: int, size: int = 1500) -> Snapshot:
    """As in the child: all of it says k, so a mixture of two would show."""
    return Snapshot({"k": k, "again": [float(k), str(k)]}, {"x": np.full(size, k, float), "n": np.full(7, k)})


def whole(found: Snapshot | None) -> int:
    """The k of a snapshot that says k everywhere."""
    assert found is not None
    k = found.scalars["k"]
    assert found.scalars["again"] == [float(k), str(k)]
    assert found.arrays["x"].shape == (1500,)
    assert set(found.arrays["x"]) == {float(k)}
    assert list(found.arrays["n"]) == [k] * 7
    return k


def stored(directory: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        return whole(load(directory, IDENTITY))


def run(*command: object, **options: object) -> list[str]:
    """The lines a child printed. It must have ended well."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=ENVIRONMENT, timeout=60, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def put(directory: Path, current: bytes | None, previous: bytes | None) -> None:
    directory.mkdir(exist_ok=True)
    for name, data in ((checkpoint.CURRENT, current), (checkpoint.PREVIOUS, previous)):
        (directory / name).unlink(missing_ok=True)
        if data is not None:
            (directory / name).write_bytes(data)


def signed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def forged(header: object, body: bytes = b"", version: int = checkpoint.FORMAT) -> bytes:
    """A file with the right lengths and checksum around any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return signed(checkpoint.PREAMBLE.pack(checkpoint.MAGIC, version, len(text), len(body)) + text + body)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[bytes, bytes]:
    """Two good files, of snapshots 2 and 1."""
    for k in (1, 2):
        save(tmp_path / "pair", IDENTITY, snapshot(k))
    folder = tmp_path / "pair"
    return (folder / checkpoint.CURRENT).read_bytes(), (folder / checkpoint.PREVIOUS).read_bytes()


# What is saved comes back


def test_every_bit_of_an_array_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 4000, dtype=np.uint64)
    special = np.array([0x7FF8_0000_0000_0001, 0x7FF0_0000_0000_0001, 0xFFF8_DEAD_BEEF_0000, 1, 1 << 63], np.uint64)
    arrays = {
        "bits": np.concatenate([bits, special]).view("<f8"),
        "columns": np.asfortranarray(rng.normal(size=(5, 7))),
        "strided": rng.normal(size=(6, 6))[::2, ::-3],
        "zero-dimensional": np.array(-0.0),
        "none": np.empty((0, 3)),
        "integers": np.array([[-(2**63), 2**63 - 1]]),
        "truths": np.array([True, False, True]),
        "bytes": np.frombuffer(b"\x00\xff\x10", np.uint8),
    }
    save(tmp_path, IDENTITY, Snapshot({}, arrays))
    found = load(tmp_path, IDENTITY)
    assert found is not None
    assert list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()
        assert found.arrays[name].flags.writeable


def test_every_scalar_comes_back_exactly(tmp_path: Path) -> None:
    rng = random.Random(0)
    floats = [0.1, -0.0, 5e-324, 2.0**-1022, 1.7976931348623157e308, math.inf, -math.inf, math.nan, -math.nan]
    floats += [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(1000)]
    scalars = {
        "floats": floats,
        "integers": [0, -1, 2**63, -(2**64), 10**5000, -(10**5000) + 1],
        "others": [None, True, False, "", "π\0\n\ud800", "0x10", [1, [2.0, []]]],
        "int": "a name like a tag",
        "float": 1,
    }
    save(tmp_path, IDENTITY, Snapshot(scalars, {}))
    found = load(tmp_path, IDENTITY)
    assert found is not None
    back = found.scalars
    assert list(back) == list(scalars)
    assert struct.pack(f"{len(floats)}d", *back.pop("floats")) == struct.pack(f"{len(floats)}d", *scalars.pop("floats"))
    assert back == scalars
    assert [type(value) for value in back["others"]] == [type(value) for value in scalars["others"]]
    assert type(back["float"]) is int


@pytest.mark.parametrize(
    ("scalars", "arrays", "named"),
    [
        ({"step": np.int64(1)}, {}, "step"),
        ({"step": [(1, 2)]}, {}, "step"),
        ({"step": {"a": 1}}, {}, "step"),
        ({}, {"x": np.zeros(2, np.float32)}, "'x' is float32"),
        ({}, {"x": np.array([None])}, "'x' is object"),
        ({}, {"x": np.zeros(2, ">f8")}, "x"),
        ({"trace": ["0" * checkpoint.MAX_HEADER]}, {}, "long lists as arrays"),
    ],
)
def test_what_could_not_come_back_is_refused_before_anything_is_written(tmp_path, scalars, arrays, named) -> None:
    save(tmp_path, IDENTITY, snapshot(1))
    with pytest.raises(CheckpointError, match=named):
        save(tmp_path, IDENTITY, Snapshot(scalars, arrays))
    assert stored(tmp_path) == 1
    assert os.listdir(tmp_path) == [checkpoint.CURRENT]


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert load(tmp_path / "absent", IDENTITY) is None
    assert load(tmp_path, IDENTITY) is None
    (tmp_path / checkpoint.TEMPORARY).write_bytes(b"half of a first checkpoint")
    assert load(tmp_path, IDENTITY) is None
    save(tmp_path, IDENTITY, snapshot(1))
    assert os.listdir(tmp_path) == [checkpoint.CURRENT]


def test_files_and_new_directories_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "newer"
    for k in (1, 2):
        save(directory, IDENTITY, snapshot(k))
    with lock(directory):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {checkpoint.CURRENT: 0o600, checkpoint.PREVIOUS: 0o600, checkpoint.LOCK: 0o600}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent)] == [0o700, 0o700]


def test_where_and_how_often_are_checked_when_they_are_given(tmp_path: Path) -> None:
    assert Checkpoint.of(str(tmp_path)) == Checkpoint.of(tmp_path) == Checkpoint(tmp_path, every=25)
    assert Checkpoint.of(Checkpoint(tmp_path, every=3)).every == 3
    assert Checkpoint.of(tmp_path / "absent").directory == tmp_path / "absent"
    (tmp_path / "file").touch()
    for value in (tmp_path / "file", str(tmp_path / "file"), "", None, 5):
        with pytest.raises(InvalidConfig, match="is not a directory"):
            Checkpoint.of(value)  # type: ignore[arg-type]  # the wrong type is the point
    for every in (0, -1, 2.5, True, "3"):
        with pytest.raises(InvalidConfig, match="every="):
            Checkpoint(tmp_path, every)  # type: ignore[arg-type]  # the wrong type is the point


# Damage


def flips(data: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    """Every bit of the preamble and of the trailer, and `count` anywhere."""
    bits = len(data) * 8
    for bit in [*range(256), *range(bits - 256, bits), *(rng.randrange(bits) for _ in range(count))]:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def cuts(data: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    """Cut at every length up to 300 and from the last 100, at `count` others; and longer than it was."""
    for length in [*range(300), *range(len(data) - 100, len(data)), *(rng.randrange(len(data)) for _ in range(count))]:
        yield data[:length]
    yield from (data + b"\0", data + data, data[:32] + data, bytes(len(data)))


def silently_accepted(directory: Path, damaged: Iterator[bytes], good: bytes) -> tuple[int, int]:
    """How many were tried, and how many passed: without an error where both are bad, or a warning where one is."""
    tried = passed = 0
    for data in damaged:
        tried += 1
        put(directory, data, data)
        try:
            load(directory, IDENTITY)
            passed += 1
        except CheckpointError as error:
            passed += not (checkpoint.CURRENT in str(error) and checkpoint.PREVIOUS in str(error))
        put(directory, data, good)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = load(directory, IDENTITY)
        told = [w for w in caught if w.category is CheckpointWarning and checkpoint.CURRENT in str(w.message)]
        passed += not (len(told) == 1 and whole(found) == 1)
    return tried, passed


def test_no_flipped_bit_is_accepted(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    tried, passed = silently_accepted(tmp_path, flips(pair[0], 1500, random.Random(1)), pair[1])
    assert tried >= 1000
    assert passed == 0


def test_no_other_length_is_accepted(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    tried, passed = silently_accepted(tmp_path, cuts(pair[0], 300, random.Random(2)), pair[1])
    assert tried >= 500
    assert passed == 0


@pytest.mark.slow
def test_no_flipped_bit_is_accepted_anywhere_in_the_file(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    every = (pair[0][:i] + bytes([pair[0][i] ^ 1 << b]) + pair[0][i + 1 :] for i in range(len(pair[0])) for b in range(8))
    tried, passed = silently_accepted(tmp_path, every, pair[1])
    assert tried == 8 * len(pair[0])
    assert passed == 0


def an_unreadable_place(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")
    (path.parent / "elsewhere").write_bytes(b"")


def another_place_that_is_good(path: Path) -> None:
    save(path.parent / "else", IDENTITY, snapshot(9))
    path.symlink_to(path.parent / "else" / checkpoint.CURRENT)


GOOD = [list(IDENTITY.items()), [], []]
DEEP = b"[" * 100_000 + b"]" * 100_000
IN_ITS_PLACE: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty file": (Path.touch, "is empty"),
    "a directory": (Path.mkdir, "Is a directory"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "symbolic link"),
    "a link to a file": (an_unreadable_place, "symbolic link"),
    "a link to a good checkpoint": (another_place_that_is_good, "symbolic link"),
    "a pipe": (os.mkfifo, "is empty"),
    "a text": (lambda path: path.write_text("x" * 1000), "is not a checkpoint"),
    "an older version": (lambda path: path.write_bytes(forged(GOOD, version=checkpoint.FORMAT - 1)), "written by an older version"),
    "a newer version": (lambda path: path.write_bytes(forged(GOOD, version=checkpoint.FORMAT + 1)), "written by a newer version"),
    "no JSON": (lambda path: path.write_bytes(forged(b"{")), "expected form"),
    "not UTF-8": (lambda path: path.write_bytes(forged(b"\xff\xfe\xfd")), "expected form"),
    "deep JSON": (lambda path: path.write_bytes(forged(DEEP)), "expected form"),
    "a number of 10⁵ digits": (lambda path: path.write_bytes(forged(b"9" * 100_000)), "expected form"),
    "a header of 5 MB": (lambda path: path.write_bytes(forged(b" " * 5_000_000)), "declares a header"),
    "another form": (lambda path: path.write_bytes(forged({"identity": {}})), "expected form"),
    "a field too many": (lambda path: path.write_bytes(forged([*GOOD, []])), "expected form"),
    "a strange number": (lambda path: path.write_bytes(forged([GOOD[0], [["k", {"int": 5}]], []])), "expected form"),
    "half a float": (lambda path: path.write_bytes(forged([GOOD[0], [["k", {"float": "00"}]], []])), "expected form"),
}
ARRAYS = {
    "objects": [["x", "|O", [1]]],
    "a dtype with fields": [["x", [["a", "<f8"]], [1]]],
    "float32": [["x", "<f4", [2]]],
    "too long": [["x", "<f8", [2]]],
    "too short": [["x", "<f8", [0]]],
    "none": [],
    "negative": [["x", "|u1", [-2, -4]]],
    "fractional": [["x", "<f8", [1.0]]],
    "huge and empty": [["x", "<f8", [1]], ["y", "<f8", [0, 2**70]]],
    "overflowing": [["x", "<f8", [2**62, 8]]],
    "twice": [["x", "|u1", [4]], ["x", "|u1", [4]]],
}
for label, listed in ARRAYS.items():
    data = forged([GOOD[0], [], listed], bytes(8))
    IN_ITS_PLACE[f"arrays: {label}"] = (lambda path, data=data: path.write_bytes(data), "expected form")


def test_the_forger_of_these_tests_can_make_a_good_file(tmp_path: Path) -> None:
    put(tmp_path, forged([GOOD[0], [["k", {"int": "0x7"}]], [["x", "<f8", [1]]]], bytes(8)), None)
    assert load(tmp_path, IDENTITY) == Snapshot({"k": 7}, {"x": np.zeros(1)})


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_anything_else_in_its_place_is_refused(tmp_path: Path, pair: tuple[bytes, bytes], what: str) -> None:
    place, reason = IN_ITS_PLACE[what]
    put(tmp_path, None, None)
    place(tmp_path / checkpoint.CURRENT)
    with pytest.raises(CheckpointError, match=re.escape(reason)) as refused:
        load(tmp_path, IDENTITY)
    assert f"{tmp_path / checkpoint.CURRENT} " in str(refused.value)
    assert f"delete {tmp_path}" in str(refused.value)
    (tmp_path / checkpoint.PREVIOUS).write_bytes(pair[1])
    with pytest.warns(CheckpointWarning, match=re.escape(reason)):
        assert whole(load(tmp_path, IDENTITY)) == 1
    if what == "a directory":
        with pytest.raises(CheckpointError, match="Is a directory"):
            save(tmp_path, IDENTITY, snapshot(3))
        assert stored(tmp_path) == 1
    else:
        save(tmp_path, IDENTITY, snapshot(3))
        assert whole(load(tmp_path, IDENTITY)) == 3
        assert (tmp_path / checkpoint.PREVIOUS).read_bytes() == pair[1], "the bad one has replaced the good one"


def test_a_checkpoint_of_another_run_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    for k in (1, 2):
        save(tmp_path, IDENTITY, snapshot(k))
    for other, reason in (
        ({**IDENTITY, "problem": "q"}, "is of another problem"),
        ({**IDENTITY, "algorithm": "b"}, "is of another algorithm"),
        ({"problem": "q", "algorithm": "b"}, "is of another problem and another algorithm"),
        ({"problem": "p"}, "is of another algorithm"),
        ({**IDENTITY, "seed": "1"}, "is of another seed"),
    ):
        with pytest.raises(CheckpointError, match=reason) as refused:
            load(tmp_path, other)
        assert str(refused.value).count(reason) == 2


def test_a_missing_newest_one_falls_back_with_a_warning(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    put(tmp_path, None, pair[1])
    with pytest.warns(CheckpointWarning, match=rf"{checkpoint.CURRENT} is missing"):
        assert whole(load(tmp_path, IDENTITY)) == 1


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        load(tmp_path / "file", IDENTITY)


@pytest.mark.parametrize("field", ["header", "body", "both, and the file is as long (it is sparse)"])
def test_a_length_of_8_terabytes_is_refused_at_once_and_without_memory(tmp_path: Path, field: str) -> None:
    header, body = (8 << 40 if field == "header" else 2), (0 if field == "header" else 8 << 40)
    path = tmp_path / checkpoint.CURRENT
    path.write_bytes(checkpoint.PREAMBLE.pack(checkpoint.MAGIC, checkpoint.FORMAT, header, body) + b"[]")
    if "sparse" in field:
        try:
            os.truncate(path, checkpoint.PREAMBLE.size + header + body + checkpoint.TRAILER)
        except OSError as error:
            pytest.skip(f"no sparse file of this size here: {error.strerror}")
        if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1":
            pytest.skip("this kernel promises any amount of memory")
    tracemalloc.start()
    try:
        start = time.process_time()
        with pytest.raises(CheckpointError, match=r"declares|not enough memory"):
            load(tmp_path, IDENTITY)
        assert time.process_time() - start < 0.1
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_its_place_is_refused_and_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pickled = pickle.dumps(Canary(canary))
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, np.array([Canary(canary)], object), allow_pickle=True)
    np.savez(npz, x=np.array([Canary(canary)], object))
    body = forged([GOOD[0], [], [["x", "|O", [1]]]], pickled)
    for data in (pickled, npy.getvalue(), npz.getvalue(), body):
        put(tmp_path, data, data)
        with pytest.raises(CheckpointError, match=r"is not a checkpoint|expected form"):
            load(tmp_path, IDENTITY)
    assert not canary.exists()
    pickle.loads(pickled)
    assert canary.exists(), "the canary does not sing"


# Death at any instant

SYSCALLS = "write,fsync,rename,openat,unlink,close,read,newfstatat"
TRACE = ["strace", "-f", "-qq"]  # not --seccomp-bpf: strace 6.1 then silently injects no signals


def crash_points(directory: Path, saves: int) -> list[tuple[str, int]]:
    """(syscall, n): the n-th call of this name in a child is one that it makes upon the checkpoint's directory."""
    child = [*CHILD, directory, "save", 1, 1 + saves]
    run(*child)  # so that the compiled modules are there
    shutil.rmtree(directory)
    log = directory.with_suffix(".log")
    run(*TRACE, "-y", "-o", log, "-e", f"trace={SYSCALLS}", *child)
    shutil.rmtree(directory)
    counts: dict[str, int] = {}
    points = []
    for line in log.read_text().splitlines():
        called = re.match(r"\d+ +(\w+)\(", line)
        if called:
            name = called[1]
            counts[name] = counts.get(name, 0) + 1
            if str(directory) in line:
                points.append((name, counts[name]))
    return points


def survives(directory: Path, reported: list[str]) -> bool:
    """Whether what was reported is there, or the next one; and the next save works."""
    last = int(reported[-1]) if reported else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        found = load(directory, IDENTITY)
    k = whole(found) if found else 0
    save(directory, IDENTITY, snapshot(k + 1))
    tidy = set(os.listdir(directory)) <= {checkpoint.CURRENT, checkpoint.PREVIOUS}
    return k in (last, last + 1) and whole(load(directory, IDENTITY)) == k + 1 and tidy


def kill_at(points: list[tuple[str, int]], directory: Path, saves: int) -> tuple[int, int]:
    """How many children were killed, and how many directories were not what they should be."""
    killed = mismatches = 0
    for name, n in points:
        shutil.rmtree(directory, ignore_errors=True)
        inject = ["-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={n}"]
        command = [*TRACE, *inject, *CHILD, directory, "save", 1, 1 + saves]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
        killed += done.returncode == -signal.SIGKILL
        mismatches += not survives(directory, done.stdout.splitlines())
    return killed, mismatches


@needs_strace
def test_a_death_at_a_system_call_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    points = crash_points(directory, saves=3)
    assert {name for name, _ in points} == set(SYSCALLS.split(","))
    wanted = {"write": 2, "fsync": 4, "rename": 4, "openat": 2, "unlink": 1}
    chosen = [point for name, count in wanted.items() for point in [p for p in points if p[0] == name][-count:]]
    assert kill_at(chosen, directory, saves=3) == (len(chosen), 0)


@needs_strace
@pytest.mark.slow
def test_a_death_at_every_system_call_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "state"
    points = crash_points(directory, saves=6)
    assert len(points) >= 100
    assert kill_at(points, directory, saves=6) == (len(points), 0)


def kill_at_random_instants(directory: Path, deaths: int, rng: random.Random) -> int:
    """Each child resumes where the last one died; the mismatches."""
    mismatches = k = 0
    for _ in range(deaths):
        child = [*CHILD, directory, "save", k + 1, 10**9]
        with subprocess.Popen([*map(str, child)], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
            assert process.stdout is not None
            reported = [process.stdout.readline() for _ in range(rng.randrange(1, 6))]
            instant = time.perf_counter() + rng.uniform(0, 0.01)
            while time.perf_counter() < instant:
                pass
            process.kill()
            reported += process.stdout.readlines()
        found = stored(directory)
        mismatches += found not in (int(reported[-1]), int(reported[-1]) + 1)
        k = found
    return mismatches


def test_a_death_at_a_random_instant_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    assert kill_at_random_instants(tmp_path / "state", 10, random.Random(3)) == 0


@pytest.mark.slow
def test_a_death_at_200_random_instants_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    assert kill_at_random_instants(tmp_path / "state", 200, random.Random(4)) == 0


# A power cut: what was not fsynced may be gone


def recorded(monkeypatch: pytest.MonkeyPatch, directory: Path, k: int) -> list[tuple[str, ...]]:
    """What `save` asks of the disk, in its order."""
    operations: list[tuple[str, ...]] = []
    fsync, rename, openat = os.fsync, os.rename, os.open

    def noted_open(path, flags, *rest, **options):
        if flags & os.O_CREAT:
            operations.append(("create", Path(path).name))
        return openat(path, flags, *rest, **options)

    def noted_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        operations.append(("fsync directory",) if path == directory else ("fsync", path.name))
        fsync(descriptor)

    def noted_rename(old, new):
        operations.append(("rename", Path(old).name, Path(new).name))
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", noted_open)
        patch.setattr(os, "fsync", noted_fsync)
        patch.setattr(os, "rename", noted_rename)
        save(directory, IDENTITY, snapshot(k))
    return operations


def after_power_cut(operations: list[tuple[str, ...]], disk: dict[str, bytes], new: bytes) -> Iterator[tuple[bool, dict[str, bytes]]]:
    """(whether save had returned, the files): each prefix, any of the un-fsynced names, and no un-fsynced byte sure."""
    for end in range(len(operations) + 1):
        done = operations[:end]
        safe = ("fsync", checkpoint.TEMPORARY) in done
        contents = [new] if safe else [new, b"", new[: len(new) // 2], bytes(len(new)), new[:-1] + b"\0"]
        named = [operation for operation in done if operation[0] in ("create", "rename")]
        lasting = [named] if ("fsync directory",) in done else powerset(named)
        for content, names in itertools.product(contents, lasting):
            files = dict(disk)
            for kind, *paths in names:
                if kind == "create":
                    files[paths[0]] = content
                else:
                    moved = content if paths[0] == checkpoint.TEMPORARY else files.get(paths[0], b"")
                    files[paths[1]] = moved
                    files.pop(paths[0], None)
            yield end == len(operations), files


def powerset(items: list[tuple[str, ...]]) -> list[list[tuple[str, ...]]]:
    return [list(some) for n in range(len(items) + 1) for some in itertools.combinations(items, n)]


def bad_outcomes(scratch: Path, outcomes: Iterator[tuple[bool, dict[str, bytes]]], old: int, new: int) -> list[str]:
    bad = []
    for returned, files in outcomes:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        for name, data in files.items():
            (scratch / name).write_bytes(data)
        try:
            k = stored(scratch)
        except CheckpointError as error:
            bad.append(str(error))
        else:
            if k not in ((new,) if returned else (old, new)):
                bad.append(f"snapshot {k}")
    return bad


@pytest.mark.parametrize("damaged", [False, True])
def test_a_power_cut_leaves_a_complete_checkpoint(tmp_path, monkeypatch, damaged: bool) -> None:
    directory = tmp_path / "state"
    for k in (1, 2):
        save(directory, IDENTITY, snapshot(k))
    if damaged:  # the newest was lost before: the previous one is all there is
        (directory / checkpoint.CURRENT).write_bytes(b"rot")
    disk = {path.name: path.read_bytes() for path in directory.iterdir()}
    operations = recorded(monkeypatch, directory, 3)
    rotation = [] if damaged else [("rename", checkpoint.CURRENT, checkpoint.PREVIOUS)]
    assert operations == [
        ("create", checkpoint.TEMPORARY),
        ("fsync", checkpoint.TEMPORARY),
        *rotation,
        ("rename", checkpoint.TEMPORARY, checkpoint.CURRENT),
        ("fsync directory",),
    ]
    new = (directory / checkpoint.CURRENT).read_bytes()
    old = 1 if damaged else 2
    assert bad_outcomes(tmp_path / "scratch", after_power_cut(operations, disk, new), old, 3) == []
    for careless in (("fsync", checkpoint.TEMPORARY), ("fsync directory",)):
        without = [operation for operation in operations if operation != careless]
        assert bad_outcomes(tmp_path / "scratch", after_power_cut(without, disk, new), old, 3), "the model sees nothing"


def test_a_new_directory_is_fsynced_into_the_one_above(tmp_path, monkeypatch) -> None:
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    save(tmp_path / "a" / "b", IDENTITY, snapshot(1))
    assert synced[:2] == [str(tmp_path), str(tmp_path / "a")]


# The disk says no


@needs_strace
@pytest.mark.parametrize(
    ("name", "error", "which", "says", "holds"),
    [
        ("write", "ENOSPC", 2, "No space left on device", 1),
        ("write", "EIO", 2, "Input/output error", 1),
        ("fsync", "EIO", 3, "Input/output error", 1),
        ("fsync", "EIO", 4, "Input/output error", 2),  # of the directory: the names were changed already
        ("openat", "EMFILE", -3, "Too many open files", 1),  # the temporary file, the current one, the directory
        ("openat", "EMFILE", -1, "Too many open files", 2),
        ("rename", "EIO", 2, "Input/output error", 1),
        ("rename", "EIO", 3, "Input/output error", 1),
    ],
)
def test_an_error_of_the_disk_keeps_the_old_checkpoint(tmp_path, name, error, which, says, holds) -> None:
    directory = tmp_path / "state"
    if which < 0:
        which = [n for call, n in crash_points(directory, saves=2) if call == name][which]
    else:
        directory.mkdir()
    log = tmp_path / "log"
    tamper = ["-e", f"trace={SYSCALLS}", "-e", f"inject={name}:error={error}:when={which}"]
    told = run(*TRACE, "-y", "-o", log, *tamper, *CHILD, directory, "try", 1500, 1500)
    assert told[0] == "saved 1"
    assert says in told[1]
    assert checkpoint.CURRENT in told[1]
    files = [checkpoint.CURRENT, checkpoint.PREVIOUS] if holds == 2 else [checkpoint.CURRENT]
    if (name, which) == ("rename", 3):
        files = [checkpoint.PREVIOUS]
    assert told[2] == f"holds {holds} and {files}"
    assert stored(directory) == holds
    fsyncs = re.findall(r"fsync\(.*", log.read_text())
    assert len(fsyncs) <= 4, "a failed fsync was tried again"
    save(directory, IDENTITY, snapshot(5))
    assert whole(load(directory, IDENTITY)) == 5


@needs_strace
@pytest.mark.parametrize(("name", "error"), [("write", "ENOSPC"), ("fsync", "EIO")])
def test_a_disk_that_never_takes_anything_is_an_error_and_leaves_nothing(tmp_path, name, error) -> None:
    tamper = ["-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:error={error}:when=1+"]
    told = run(*TRACE, *tamper, *CHILD, tmp_path, "try", 1500, 1500)
    assert [checkpoint.CURRENT in line for line in told] == [True, True, False]
    assert told[2] == "holds None and []"
    save(tmp_path, IDENTITY, snapshot(1))
    assert whole(load(tmp_path, IDENTITY)) == 1


def on_tmpfs(script: str, directory: Path, *rest: object) -> list[str]:
    """Run a shell script in a name space of its own, with 16 KiB of disk at `directory`."""
    allowed = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=16k", "none", str(directory)]
    if shutil.which("unshare") is None or subprocess.run(allowed, capture_output=True).returncode != 0:
        pytest.skip("unshare -Urm and a tmpfs are not permitted here")
    mount = 'mount -t tmpfs -o size=16k none "$1" && '
    return run("unshare", "-Urm", "sh", "-ec", mount + script, "sh", directory, *rest)


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    told = on_tmpfs('shift; exec "$@"', tmp_path, *CHILD, tmp_path, "try", 10, 20, 10_000, 30)
    assert told[0:2] == ["saved 1", "saved 2"]
    assert "No space left on device" in told[2]
    assert told[3] == "saved 4"
    assert told[4] == f"holds 4 and {[checkpoint.CURRENT, checkpoint.PREVIOUS]}"


def test_a_read_only_disk_is_an_error_that_names_it(tmp_path: Path) -> None:
    told = on_tmpfs('mount -o remount,ro "$1"; shift; exec "$@"', tmp_path, *CHILD, tmp_path, "try", 10)
    assert "Read-only file system" in told[0]
    assert str(tmp_path / checkpoint.TEMPORARY) in told[0]
    assert told[1] == "holds None and []"


def test_a_limit_on_file_sizes_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    told = run(*CHILD, tmp_path, "limit")
    assert told[0] == "saved 1"
    assert "File too large" in told[1]
    assert told[2] == f"holds 1 and {[checkpoint.CURRENT]}"
    assert told[3:] == ["saved 3", f"holds 3 and {[checkpoint.CURRENT, checkpoint.PREVIOUS]}"]


def test_a_file_where_a_directory_should_be_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match=re.escape(str(directory))):
            save(directory, IDENTITY, snapshot(1))
        with pytest.raises(CheckpointError, match=re.escape(str(directory))), lock(directory):
            pass


def test_a_write_that_takes_only_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reluctant(io.FileIO):
        def write(self, data):  # type: ignore[override]  # a file that writes short
            return super().write(bytes(data)[:1000])

    def reluctant(path, mode, opener):
        made = Reluctant(path, mode.replace("b", ""), opener=opener)
        return io.BufferedWriter(made) if "x" in mode else io.BufferedReader(made)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "open", reluctant, raising=False)
        save(tmp_path, IDENTITY, snapshot(1))
    assert whole(load(tmp_path, IDENTITY)) == 1


# Two processes


def test_a_second_process_is_refused_until_the_first_has_died(tmp_path: Path) -> None:
    command = [*CHILD, str(tmp_path), "hold"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match=rf"{tmp_path} is in use by process {first.pid}:"), lock(tmp_path):
            pass
        first.kill()
        first.wait()
        with lock(tmp_path):
            pass


def test_a_lock_is_refused_to_the_same_process_too_and_given_back_at_the_end(tmp_path: Path) -> None:
    with lock(tmp_path / "new"):
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}:"), lock(tmp_path / "new"):
            pass
        save(tmp_path / "new", IDENTITY, snapshot(1))
    with pytest.raises(KeyError), lock(tmp_path / "new"):
        raise KeyError
    with lock(tmp_path / "new"):
        assert whole(load(tmp_path / "new", IDENTITY)) == 1


def test_a_lock_given_back_is_free_although_a_fork_lives_on(tmp_path: Path) -> None:
    assert run(*CHILD, tmp_path, "fork") == ["held", "held again"]
