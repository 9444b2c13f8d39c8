"""`solve(…, checkpoint=directory)`: killed at any instant, the same call goes on and ends with the bits of an unbroken run."""

import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from solve_child import CASES, Fate, digest, logistic, rows, solve, squared, steady
from test_checkpoint_file import SOURCE, TRACE, forged, needs_strace

import fedhybrid as fh
from fedhybrid import checkpoint, driver, result
from fedhybrid.status import CheckpointError, CheckpointWarning

pytestmark = pytest.mark.xdist_group("solve survives")  # its references are made once
CHILD = [sys.executable, str(Path(__file__).with_name("solve_child.py"))]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(SOURCE),
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    # a child that is killed must not leave half an entry in the compilation cache that the tests share: it only reads there
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9",
}
FILES = (checkpoint.CURRENT, checkpoint.PREVIOUS)
EVERY_ROUND = {"every": 1}


@functools.cache
def unbroken(case: str) -> fh.Result:
    """What every run must end like. It also puts what it compiles into the cache, from where a child has it at once."""
    return solve(case)


def task(case: str, directory: Path, **more: Any) -> dict[str, Any]:
    return {"case": case, "directory": str(directory), "checkpoint": EVERY_ROUND, **more}


def lines(text: str) -> list[dict[str, Any]]:
    """What a child said. A last line that it was killed in does not count."""
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def run(what: dict[str, Any], prefix: tuple = (), **options: Any) -> list[dict[str, Any]]:
    """What a child that came to its end said."""
    command = [*map(str, prefix), *CHILD, json.dumps(what)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return lines(done.stdout)


# Death at any instant


def by_hook(number: int, point: str) -> tuple[dict[str, Any], tuple, None]:
    return {"die": [number, point]}, (), None


def by_strace(call: str, number: int, directory: Path, name: str = checkpoint.TEMPORARY) -> tuple[dict[str, Any], tuple, None]:
    """At the n-th system call of this name upon a file."""
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
    return {}, (*TRACE, "-o", os.devnull, "-P", directory / name, *inject), None


def at_instant(saves: int, delay: float) -> tuple[dict[str, Any], tuple, tuple[int, float]]:
    """So many seconds after so many saves; after 0 saves: after the start of the process."""
    return {}, (), (saves, delay)


class Chain:
    """One directory, and process after process on it, each killed, until one comes to its end."""

    def __init__(self, case: str, directory: Path, **checkpoint: Any) -> None:
        self.case, self.directory, self.checkpoint = case, directory, checkpoint
        self.deaths = self.saved = self.lost = 0

    def live(self, more: dict[str, Any], prefix: tuple = (), instant: tuple[int, float] | None = None) -> dict[str, Any] | None:
        """One process; what it said at its end, or None if it was killed. Each has another hash seed and working directory."""
        what = task(self.case, self.directory, **more) | {"checkpoint": self.checkpoint}
        place = self.directory.with_name(f"cwd {self.deaths % 3}")
        place.mkdir(exist_ok=True)
        command = [*map(str, prefix), *CHILD, json.dumps(what)]
        environment = {**ENVIRONMENT, "PYTHONHASHSEED": str(self.deaths)}
        said = ""
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment, "cwd": place}
        with subprocess.Popen(command, **options) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            if instant is not None:
                saves, delay = instant
                while said.count('"saved"') < saves and (line := process.stdout.readline()):
                    said += line
                time.sleep(delay)
                process.kill()
            said += process.stdout.read()
            errors = process.stderr.read()
        told = lines(said)
        resumed = [line["resumed"] for line in told if "resumed" in line]
        assert all(steps >= self.saved for steps in resumed), "a round that was saved is lost"
        self.saved = max([self.saved, *resumed, *(line["saved"] for line in told if "saved" in line)])
        if process.returncode == -signal.SIGKILL:
            self.deaths += 1
            return None
        assert process.returncode == 0, errors
        return told[-1]


def end(last: dict[str, Any] | None) -> str:
    assert last is not None
    assert "digest" in last, last
    return last["digest"]


@needs_strace
def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    expected = digest(unbroken("logistic"))
    directory = tmp_path / "state"
    chain = Chain("logistic", directory, every=1)
    rng = random.Random(0)
    for way in (
        at_instant(0, rng.uniform(0.0, 2.0)),
        by_strace("write", 41, directory),
        at_instant(25, rng.uniform(0.0, 0.01)),
        by_strace("rename", 42, directory),
        by_hook(27, "rotated"),
        by_strace("fsync", 43, directory),
        at_instant(5, rng.uniform(0.0, 0.01)),  # 80 rounds before the end: a slow machine kills late
    ):
        assert chain.live(*way) is None
    assert chain.deaths == 7
    assert chain.saved > 150
    assert end(chain.live({})) == expected


@pytest.mark.parametrize(
    ("case", "interval", "number", "saved"),
    [
        ("squared", EVERY_ROUND, 30, 25),
        ("serial", {}, 2, 25),  # slow enough for a second save before its end: saves are also spaced by the time that they take
        pytest.param("default", EVERY_ROUND, 5, 4, marks=pytest.mark.slow),  # all of it is seven steps
    ],
)
def test_a_killed_run_goes_on_in_another_process_with_the_same_bits(
    tmp_path: Path, case: str, interval: dict, number: int, saved: int
) -> None:
    """Under another hash seed, and in another working directory."""
    expected = digest(unbroken(case))
    chain = Chain(case, tmp_path / "state", **interval)
    assert chain.live({"die": [number, "renamed"]}) is None
    assert chain.saved >= saved
    assert digest(solve(case, checkpoint=tmp_path / "state")) == expected


def ways(rng: random.Random, directory: Path) -> Iterator[tuple]:
    """Deaths early in a process, so that a run can have many; some at any instant of its life, the start included."""
    calls = [("write", checkpoint.TEMPORARY), ("fsync", checkpoint.TEMPORARY), ("close", checkpoint.TEMPORARY)]
    calls += [("rename", name) for name in (checkpoint.TEMPORARY, checkpoint.CURRENT)]
    calls += [("openat", name) for name in (checkpoint.TEMPORARY, checkpoint.CURRENT)]
    while True:
        kind = rng.random()
        if kind < 0.35:
            yield by_hook(rng.randint(1, 6), rng.choice(Fate.POINTS))
        elif kind < 0.7:
            yield at_instant(rng.randint(1, 6), rng.uniform(0.0, 0.01))
        elif kind < 0.85:
            yield at_instant(0, rng.uniform(0.0, 4.0))
        else:
            call, name = rng.choice(calls)
            yield by_strace(call, rng.randint(2, 6), directory, name)


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize(("case", "every", "deaths"), [("logistic", 1, 80), ("squared", 1, 50), ("default", 1, 30), ("serial", 1, 20)])
def test_killed_200_times_runs_end_with_the_same_bits(tmp_path: Path, case: str, every: int, deaths: int) -> None:
    expected = digest(unbroken(case))
    rng = random.Random(f"{case} {every}")
    died = runs = mismatches = 0
    while died < deaths:
        runs += 1
        directory = tmp_path / f"state {runs}"
        chain = Chain(case, directory, every=every)
        last = None
        for way in ways(rng, directory):
            last = chain.live(*(way if died + chain.deaths < deaths else ({},)))
            if last is not None:
                break
        died += chain.deaths
        mismatches += end(last) != expected
    print(f"{case}, every={every}: {died} deaths in {runs} runs, {mismatches} mismatches")
    assert died >= deaths
    assert mismatches == 0


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every file that is saved in this process, in its order."""
    files: list[bytes] = []
    save = checkpoint.save

    def saving(directory: Path, *rest: Any) -> None:
        save(directory, *rest)
        files.append((directory / checkpoint.CURRENT).read_bytes())

    monkeypatch.setattr(checkpoint, "save", saving)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nothing here dies
    return files


def mismatches_from(case: str, saves: list[bytes], chosen: list[int], directory: Path) -> list[int]:
    """The rounds from whose checkpoint a run does not end like the unbroken one."""
    different = []
    directory.mkdir()
    for k in chosen:
        for name, data in ((checkpoint.CURRENT, saves[k]), (checkpoint.PREVIOUS, saves[k - 1] if k else None)):
            (directory / name).unlink(missing_ok=True)
            if data is not None:
                (directory / name).write_bytes(data)
        if digest(solve(case, checkpoint=fh.Checkpoint(directory, every=10**6))) != digest(unbroken(case)):
            different.append(k)
    return different


def certified(case: str) -> list[int]:
    """The steps after which more than the step's own round was counted."""
    return np.flatnonzero(np.diff(unbroken(case).trace.rounds) > 1).tolist()


@pytest.mark.parametrize("case", ["logistic", "squared", "lbfgs", "separable"])
def test_a_run_goes_on_from_any_round(tmp_path: Path, saves: list[bytes], case: str) -> None:
    assert digest(solve(case, checkpoint=fh.Checkpoint(tmp_path / "whole", every=1))) == digest(unbroken(case))
    assert len(saves) == len(unbroken(case).trace) - 1  # at its end there is nothing to go on with
    around = [k + shift for k in certified(case) for shift in (-1, 0)]
    spread = random.Random(1).sample(range(len(saves)), min(5, len(saves)))
    chosen = sorted({0, len(saves) - 1, *around, *spread} & {*range(len(saves))})
    assert mismatches_from(case, saves, chosen, tmp_path / "state") == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_from_every_round(tmp_path: Path, saves: list[bytes], case: str) -> None:
    solve(case, checkpoint=fh.Checkpoint(tmp_path / "whole", every=1))
    step = max(1, len(saves) // 400)
    assert mismatches_from(case, saves, [*range(0, len(saves), step)], tmp_path / "state") == []


def test_a_trace_too_large_to_keep_is_given_up_in_the_same_run(tmp_path, monkeypatch, saves: list[bytes]) -> None:
    monkeypatch.setattr(result, "KEEP_X0", 700.0)
    expected = solve("logistic")
    assert expected.trace.x0 is None
    solve("logistic", max_rounds=200, checkpoint=fh.Checkpoint(tmp_path, every=1))
    assert digest(solve("logistic", checkpoint=tmp_path)) == digest(expected)


def test_the_certificates_before_a_death_count_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: list[bytes]) -> None:
    monkeypatch.setattr(driver, "MOST_CERTIFICATES", 3)
    expected = solve("logistic")
    assert expected.status is fh.Status.SOLVED_INACCURATE
    solve("logistic", max_rounds=expected.rounds - 10, checkpoint=fh.Checkpoint(tmp_path, every=1))
    assert digest(solve("logistic", checkpoint=tmp_path)) == digest(expected)


# The disk says no


def stopped(told: list[dict[str, Any]], says: str, directory: Path) -> int:
    """That the last thing told is a result with an error of the disk; the steps that are safe."""
    *before, last = told
    assert last["status"] == "CHECKPOINT_ERROR"
    assert says in last["message"]
    assert str(directory / checkpoint.CURRENT) in last["message"]
    assert last["finite"]
    assert last["warned"] == []
    saved = [line["saved"] for line in before if "saved" in line]
    assert len(saved) > 5
    assert last["steps"] == saved[-1] + 1, "it went on without a checkpoint"
    return saved[-1]


def calls_in(told: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    starts = [k for k, line in enumerate(told) if "resumed" in line]
    return [told[a:b] for a, b in zip(starts, [*starts[1:], len(told)], strict=True)]


@needs_strace
def test_an_error_of_the_disk_ends_the_call_and_the_same_call_goes_on(tmp_path: Path) -> None:
    expected = digest(unbroken("logistic"))
    directory, log = tmp_path / "state", tmp_path / "log"
    faults = {"write": ("ENOSPC", 30), "fsync": ("EIO", 60), "openat": ("EMFILE", 90)}
    inject = [f"inject={call}:error={error}:when={n}" for call, (error, n) in faults.items()]
    tamper = ["-e", f"trace={','.join(faults)}", *(word for each in inject for word in ("-e", each))]
    what = task("logistic", directory, calls=5, largest_file=12_000, lift_limit_before=5)
    told = run(what, (*TRACE, "-o", log, "-P", directory / checkpoint.TEMPORARY, *tamper))
    *failed, last = calls_in(told)
    safe = 0
    for call, says in zip(failed, ("No space left on device", "Input/output error", "Too many open files", "File too large"), strict=True):
        assert call[0]["resumed"] == safe
        safe = stopped(call, says, directory)
    assert last[0]["resumed"] == safe
    assert end(last[-1]) == expected
    fsyncs = re.findall(r"fsync\(.*", log.read_text())
    assert len(fsyncs) == sum("saved" in line for line in told) + 1, "a failed fsync was tried again"


def test_a_full_disk_ends_the_call_and_with_more_space_the_same_call_goes_on(tmp_path: Path) -> None:
    allowed = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=48k", "none", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(allowed, check=False, capture_output=True).returncode != 0:
        pytest.skip("unshare -Urm and a tmpfs are not permitted here")
    expected = digest(unbroken("logistic"))
    script = 'mount -t tmpfs -o size=48k none "$1"; d="$1"; shift; "$@"; mount -o remount,size=1m "$d"; exec "$@"'
    told = run(task("logistic", tmp_path / "state"), ("unshare", "-Urm", "sh", "-ec", script, "sh", tmp_path))
    failed, last = calls_in(told)
    assert last[0]["resumed"] == stopped(failed, "No space left on device", tmp_path / "state")
    assert end(last[-1]) == expected


@pytest.mark.parametrize("operation", ["rotation", "rename", "directory"])
def test_an_error_after_the_data_were_written_loses_nothing(tmp_path, monkeypatch, operation: str) -> None:
    rename, fsync = os.rename, os.fsync
    saves = 0

    def failing(*arguments: Any) -> None:
        nonlocal saves
        if isinstance(arguments[0], int):
            kind = "file" if os.readlink(f"/proc/self/fd/{arguments[0]}").endswith(checkpoint.TEMPORARY) else "directory"
            saves += kind == "file"
        else:
            kind = "rotation" if arguments[1].name == checkpoint.PREVIOUS else "rename"
        if kind == operation and saves == 20:
            raise OSError(5, "Input/output error")
        (fsync if isinstance(arguments[0], int) else rename)(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        patch.setattr(os, "fsync", failing)
        found = solve("logistic", checkpoint=fh.Checkpoint(tmp_path, every=1))
    assert found.status is fh.Status.CHECKPOINT_ERROR
    assert str(tmp_path / checkpoint.CURRENT) in found.message
    assert np.isfinite(found.x).all()
    assert len(found.trace) == 20
    if operation == "rename":  # the newest is already the previous one
        with pytest.warns(CheckpointWarning, match="is missing"):
            assert digest(solve("logistic", checkpoint=tmp_path)) == digest(unbroken("logistic"))
    else:
        assert digest(solve("logistic", checkpoint=tmp_path)) == digest(unbroken("logistic"))


# What is found at the start


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that stopped half-way."""
    directory = tmp_path_factory.mktemp("half")
    assert solve("logistic", max_rounds=150, checkpoint=fh.Checkpoint(directory, every=1)).status is fh.Status.MAX_ROUNDS
    return directory


@pytest.fixture
def begun(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "begun"))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != checkpoint.LOCK}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a flipped bit": flip,
    "cut short": cut,
    "empty": lambda path: os.truncate(path, 0),
    "missing": Path.unlink,
    "a newer version": lambda path: path.write_bytes(forged([], version=checkpoint.FORMAT + 1)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_used(begun: Path, damage: str) -> None:
    DAMAGE[damage](begun / checkpoint.CURRENT)
    with pytest.warns(CheckpointWarning, match=re.escape(str(begun / checkpoint.CURRENT))):
        found = solve("logistic", checkpoint=begun)
    assert digest(found) == digest(unbroken("logistic"))


@pytest.mark.parametrize("damage", [damage for damage in DAMAGE if damage != "missing"])
def test_where_both_checkpoints_are_damaged_nothing_is_started(begun: Path, damage: str) -> None:
    for name in FILES:
        DAMAGE[damage](begun / name)
    before = contents(begun)
    with pytest.raises(CheckpointError, match=re.escape(str(begun / checkpoint.CURRENT))) as refused:
        solve("logistic", checkpoint=begun)
    assert isinstance(refused.value, ValueError)
    assert refused.value.status is fh.Status.CHECKPOINT_ERROR
    assert checkpoint.PREVIOUS in str(refused.value)
    assert contents(begun) == before


def test_a_missing_checkpoint_beside_a_damaged_one_is_not_a_new_run(begun: Path) -> None:
    (begun / checkpoint.CURRENT).unlink()
    flip(begun / checkpoint.PREVIOUS)
    with pytest.raises(CheckpointError, match="damaged"):
        solve("logistic", checkpoint=begun)


def other_data() -> fh.Fleet:
    sites = rows("logistic")
    sites[2][0][7, 1] = np.nextafter(sites[2][0][7, 1], 9.0)
    return fh.Fleet(sites, loss=fh.logistic, reg=0.01, update=("gradient", "newton") * 2, intercept=True)


def other_updates() -> fh.Fleet:
    return fh.Fleet(rows("logistic"), loss=fh.logistic, reg=0.01, update=("newton", "gradient") * 2, intercept=True)


def no_intercept() -> fh.Fleet:
    return fh.Fleet(rows("logistic"), loss=fh.logistic, reg=0.01, update=("gradient", "newton") * 2)


OTHERS: dict[str, tuple[Callable[[], fh.Fleet], Callable[[], fh.Algorithm | None], dict[str, Any], str]] = {
    "data": (lambda: logistic(seed=1), steady, {}, "problem"),
    "last bit of one entry": (other_data, steady, {}, "problem"),
    "reg": (lambda: logistic(reg=0.02), steady, {}, "problem"),
    "weighting": (lambda: logistic(weighting="client"), steady, {}, "problem"),
    "updates": (other_updates, steady, {}, "problem"),
    "intercept": (no_intercept, steady, {}, "problem"),
    "loss": (squared, steady, {}, "problem"),
    "mu": (logistic, lambda: steady(mu=0.11), {}, "algorithm"),
    "a": (logistic, lambda: steady(a=(2.0, 0.81)), {}, "algorithm"),
    "b, per client": (logistic, lambda: steady(b=np.full(4, 0.01)), {}, "algorithm"),
    "method": (logistic, lambda: fh.gd(step_size=0.1), {}, "algorithm"),
    "default method": (logistic, lambda: None, {}, "algorithm"),
    "start": (logistic, steady, {"x0": np.ones(5)}, "start"),
    "transport": (logistic, steady, {"transport": fh.Serial}, "transport"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_checkpoint_of_another_run_is_refused(begun: Path, what: str) -> None:
    fleet, algorithm, options, named = OTHERS[what]
    before = contents(begun)
    with pytest.raises(CheckpointError, match=f"of another {named}") as refused:
        fh.solve(fleet(), algorithm(), checkpoint=begun, tol=1e-5, **options)
    assert refused.value.status is fh.Status.CHECKPOINT_ERROR
    assert str(begun) in str(refused.value)
    assert contents(begun) == before
    assert digest(solve("logistic", checkpoint=begun)) == digest(unbroken("logistic"))


def goes_on_as_another(first: tuple, then: tuple, directory: Path) -> bool:
    """Whether a run takes up the checkpoint of another one."""
    fh.solve(*first, tol=1e-6, max_rounds=30, checkpoint=fh.Checkpoint(directory, every=1))
    try:
        fh.solve(*then, tol=1e-6, max_rounds=60, checkpoint=fh.Checkpoint(directory, every=1))
    except CheckpointError:
        return False
    return True


def test_a_pair_of_step_sizes_is_not_an_array_of_two(tmp_path: Path) -> None:
    def two() -> fh.Fleet:
        return fh.Fleet(rows("squared")[:2], loss=fh.squared, reg=0.1, update=("newton", "gradient"))

    pair = fh.fedhybrid(mu=0.2, a=(0.3, 0.8), b=(0.02, 0.1))
    array = fh.fedhybrid(mu=0.2, a=np.array([0.3, 0.8]), b=np.array([0.02, 0.1]))
    assert not goes_on_as_another((two(), pair), (two(), array), tmp_path)


def test_another_function_of_the_same_name_is_another_problem(tmp_path: Path) -> None:
    one, other = (
        fh.Fleet(rows("squared")[:2], loss=loss, reg=0.1) for loss in (lambda z, y: 0.5 * (z - y) ** 2, lambda z, y: (z - y) ** 2)
    )
    algorithm = fh.fedhybrid(mu=0.2, a=0.8, b=0.1)
    assert not goes_on_as_another((one, algorithm), (other, algorithm), tmp_path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(fh.InvalidConfig, match=re.escape(str(file))):
        solve("logistic", checkpoint=file)
    with pytest.raises(CheckpointError, match=re.escape(str(file))):
        solve("logistic", checkpoint=file / "below")
    assert file.read_text() == "mine"


def test_of_two_processes_the_second_is_refused_until_the_first_has_died(tmp_path: Path) -> None:
    expected = digest(unbroken("logistic"))
    command = [*CHILD, json.dumps(task("logistic", tmp_path / "state"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as first:
        assert first.stdout is not None
        while '"saved": 9,' not in first.stdout.readline():
            assert first.poll() is None
        first.send_signal(signal.SIGSTOP)
        with pytest.raises(CheckpointError, match=f"in use by process {first.pid}") as refused:
            solve("logistic", checkpoint=tmp_path / "state")
        assert refused.value.status is fh.Status.CHECKPOINT_ERROR
        first.kill()
        first.wait()
    assert digest(solve("logistic", checkpoint=tmp_path / "state")) == expected


# The same call, or nearly


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that each run in this process begins with."""
    steps: list[int] = []
    load = checkpoint.load

    def loading(*arguments: Any) -> checkpoint.Snapshot | None:
        found = load(*arguments)
        steps.append(0 if found is None else len(found.arrays["trace.rounds"]))
        return found

    monkeypatch.setattr(checkpoint, "load", loading)
    return steps


def test_a_finished_run_called_again_gives_the_same_bits_at_once(tmp_path: Path, resumed: list[int]) -> None:
    for _ in range(3):
        found = solve("logistic", checkpoint=fh.Checkpoint(tmp_path, every=1))
        assert digest(found) == digest(unbroken("logistic"))
    assert resumed == [0, len(found.trace) - 1, len(found.trace) - 1]


def test_a_larger_limit_on_rounds_goes_on(begun: Path, resumed: list[int]) -> None:
    early = solve("logistic", max_rounds=200, checkpoint=fh.Checkpoint(begun, every=1))
    assert early.status is fh.Status.MAX_ROUNDS
    late = solve("logistic", checkpoint=begun)
    assert digest(late) == digest(unbroken("logistic"))
    assert early.trace.x0.tobytes() == late.trace.x0[: len(early.trace)].tobytes()
    assert early.trace.rounds.tobytes() == late.trace.rounds[: len(early.trace)].tobytes()
    assert resumed[1] == len(early.trace) > resumed[0] > 100


def test_a_smaller_limit_on_rounds_ends_at_once(begun: Path, resumed: list[int]) -> None:
    found = solve("logistic", max_rounds=20, checkpoint=begun)
    assert found.status is fh.Status.MAX_ROUNDS
    assert len(found.trace) == resumed[0] > 100
    assert digest(solve("logistic", checkpoint=begun)) == digest(unbroken("logistic"))


def test_a_smaller_tolerance_goes_on_from_the_solution_of_a_larger(tmp_path: Path, resumed: list[int]) -> None:
    rough = solve("logistic", tol=1e-2, checkpoint=fh.Checkpoint(tmp_path, every=1))
    fine = solve("logistic", tol=1e-7, checkpoint=fh.Checkpoint(tmp_path, every=1))
    assert rough.status is fine.status is fh.Status.SOLVED
    assert fine.error_bound <= 1e-7 * max(1.0, np.linalg.norm(fine.x))
    assert resumed == [0, len(rough.trace) - 1]
    direct = solve("logistic", tol=1e-7)
    steps = min(len(fine.trace), len(direct.trace))
    assert fine.trace.x0[:steps].tobytes() == direct.trace.x0[:steps].tobytes()
    assert (np.diff(fine.trace.rounds) >= 1).all()
    assert fine.rounds <= direct.rounds + 5


def test_a_larger_tolerance_ends_at_once(begun: Path, resumed: list[int]) -> None:
    found = solve("logistic", tol=1e-1, checkpoint=begun)
    assert found.status is fh.Status.SOLVED
    assert len(found.trace) <= resumed[0] + 1


def test_a_changed_tolerance_survives_death_too(begun: Path, saves: list[bytes]) -> None:
    """What counts is the checkpoint and the call, not which process wrote the one or makes the other."""
    copy = Path(shutil.copytree(begun, begun.with_name("copy")))
    expected = solve("logistic", tol=1e-6, checkpoint=fh.Checkpoint(copy, every=1))
    assert len(saves) > 20
    for k in (0, len(saves) // 2, len(saves) - 1):
        (begun / checkpoint.CURRENT).write_bytes(saves[k])
        assert digest(solve("logistic", tol=1e-6, checkpoint=fh.Checkpoint(begun, every=10**6))) == digest(expected)


def test_calls_with_a_limit_on_seconds_come_to_an_end_together(tmp_path: Path, resumed: list[int]) -> None:
    for _ in range(3):
        assert solve("logistic", max_seconds=1e-3, checkpoint=tmp_path).status is fh.Status.TIME_LIMIT
    assert resumed[2] > resumed[1] > 0


RESUMED = {
    "fednl": lambda: fh.fednl(compressor="randk", k=2),
    "disco": lambda: fh.disco(mu=1.0),
    "cocoa": lambda: fh.cocoa(passes=1),
    "scaffold": lambda: fh.scaffold(step_size=0.5, local_steps=2),
    "esom": lambda: fh.esom(alpha=1.0, eps=1.0),
}


@pytest.mark.parametrize("method", RESUMED)
def test_other_methods_also_go_on_from_a_checkpoint_with_the_same_bits(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sites = [(A := rng.normal(size=(rows, 3)), (A[:, 0] + rng.normal(size=rows) > 0) * 1.0) for rows in (9, 20, 5)]
    fleet = fh.Fleet(sites, loss=fh.logistic, reg=0.5)
    place = fh.Checkpoint(tmp_path, every=1)
    whole = fh.solve(fleet, RESUMED[method](), tol=1e-9, max_rounds=400)
    assert whole.status is fh.Status.SOLVED
    fh.solve(fleet, RESUMED[method](), tol=1e-9, max_rounds=max(2, whole.rounds // 2), checkpoint=place)
    again = fh.solve(fleet, RESUMED[method](), tol=1e-9, max_rounds=400, checkpoint=place)
    assert again.status is fh.Status.SOLVED
    assert again.x.tobytes() == whole.x.tobytes()
