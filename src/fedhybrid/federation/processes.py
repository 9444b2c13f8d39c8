"""Flower's processes: started with the right flags, watched, started again, and ended with all that they started.

Our process executes the run itself (`--isolation process`): no ServerApp is unpacked and started, no `flower-superexec`, no `flwr run`;
the live view and Ctrl-C are ours, and the secret that a run's executor must show is known to nobody else on the machine. What is left is
one SuperLink, in memory and on loopback. It dies with us, by the kernel's hand if need be: our own journal is what lasts.

The other engine, `stock_site`, is an ordinary SuperNode, which unpacks and runs the app that the server ships.
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fedhybrid import checkpoint
from fedhybrid.clients.flower import GridLink
from fedhybrid.federation import keys
from fedhybrid.federation.fleet_api import Run, is_lawful
from fedhybrid.federation.front import Front
from fedhybrid.status import FedHybridError, Status

READY, END, RESTARTS = 60.0, 5.0, 5  # seconds to start and to end; restarts within ten minutes
LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG: ends with the thread that started it, which lives as long as we do
if os.getppid() != int(sys.argv[1]):            # which has ended in between
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
SENTENCES = {
    "address already in use": "its port was taken by another program",
    "No module named": "Flower is not installed as it should be: pip install 'fedhybrid[flower]'",
    "No space left on device": "the disk is full",
    "Cannot allocate memory": "there is not enough memory",
    "MemoryError": "there is not enough memory",
    "Too many open files": "too many files are open: raise the limit (ulimit -n)",
    "Failed to activate SuperNode": "the server refused this site's key: it is not registered, or its last connection has not lapsed yet",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate was not signed by the given CA, has expired, or is for another name",
    "Permission denied": "a file may not be read or written",
}
log = logging.getLogger(__name__)


class ProcessFailed(FedHybridError):
    """A process of Flower's that ends again and again. The message says what it said last."""

    status = Status.INTERRUPTED


def environment(home: Path) -> dict[str, str]:
    """Ours, with a home of its own for Flower, and nothing that calls out."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_LOG_LEVEL": "WARNING"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))  # a SuperNode looks for its children there
    ours = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_HOME": str(home), "PATH": path, "PYTHONUNBUFFERED": "1"}
    return {**kept, **quiet, **ours}


class Process:
    """A command that is kept running from `start` to `close`, in a process group of its own.

    A thread starts it, waits for it and starts it again; `ready` is called after each start, and what it raises ends the process.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        env: Mapping[str, str],
        output: Path,
        ready: Callable[["Process"], None],
        restarts: float = RESTARTS,
    ) -> None:
        self.name, self.output, self.failed = name, output, ""
        self._command, self._env, self._ready, self._restarts = command, dict(env), ready, restarts
        self._child: subprocess.Popen[bytes] | None = None
        self._closing, self._first = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def start(self) -> None:
        """Returns when it is ready for the first time; ProcessFailed if it cannot be."""
        self._thread.start()
        if not self._first.wait(2 * READY + 2 * END):
            self.failed = f"{self.name} was not ready after {2 * READY:.0f} s. Its messages are in {self.output}."
        self.check()

    def check(self) -> None:
        if self.failed:
            raise ProcessFailed(self.failed)

    def running(self) -> bool:
        return self.pid is not None and not self._closing.is_set()

    def close(self) -> None:
        self._closing.set()
        _end_group(self._child)
        if self._thread.is_alive():
            self._thread.join(2 * END + 1.0)

    def _keep(self) -> None:
        ends: list[float] = []
        while not self._closing.is_set():
            reason = self._once()
            if self._closing.is_set():
                break
            ends = [*(end for end in ends if end > time.monotonic() - 600.0), time.monotonic()]
            if not self._first.is_set() or len(ends) > self._restarts:
                again = f"{len(ends)} times in ten minutes" if len(ends) > 1 else "at once"
                self.failed = f"{self.name} ended {again}: {reason}. Its messages are in {self.output}."
                break
            log.warning("%s ended (%s) and is started again", self.name, reason)
            self._closing.wait(min(0.2 * 2 ** len(ends), 5.0))
        self._first.set()

    def _once(self) -> str:
        """One life of the process, and why it ended."""
        with open(self.output, "wb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as output:
            try:
                command = [sys.executable, "-I", "-c", LAUNCH, str(os.getpid()), *self._command()]
                self._child = subprocess.Popen(
                    command, env=self._env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            except OSError as error:
                return f"it cannot be started: {error.strerror}"
        try:
            self._ready(self)
            self._first.set()
            self._child.wait()
            reason = f"exit status {self._child.returncode}"
        except (ConnectionError, ProcessFailed, FedHybridError) as error:
            reason = str(error)
        finally:
            _end_group(self._child)
        return self._in_words() or reason

    def _in_words(self) -> str:
        text = self.output.read_bytes()[-20_000:].decode("utf-8", "replace")
        return next((sentence for sign, sentence in SENTENCES.items() if sign in text), "")


class Server:
    """The server's end of a federation: a SuperLink, its front on `host`:`port`, and a run. `link` leads to the sites.

    `folder` holds the keys (see `keys`). Everything that Flower writes goes to folder/flower; one server at a time uses it.
    """

    def __init__(
        self,
        folder: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        insecure: bool = False,
        largest: int = 8 << 20,
        fab: bytes | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._host, self._port, self._insecure, self._largest, self._fab = host, port, insecure, largest, fab
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Server":
        with contextlib.ExitStack() as stack:
            home = self.folder / "flower"
            stack.enter_context(checkpoint.lock(home))
            self._files(home)
            sites = keys.registered(self.folder)
            self.superlink = Process("flower-superlink", self._command, environment(home), home / "superlink.log", self._begin)
            certificate = None if self._insecure else (self.folder / keys.SERVER, self.folder / keys.SERVER_KEY)
            self._inner = _free_port()
            self.front = Front(
                self._host, self._port, (self._inner, self._ca), certificate, sites.values(), is_lawful, largest=self._largest
            )
            stack.callback(self.front.close)
            self.port = self.front.port
            self.run = Run(f"127.0.0.1:{self._inner}", self._ca, self._secret, sites, self._fab)
            self.link: GridLink = _WatchedLink(self.run, {key: name for name, key in sites.items()}, self.superlink, self.front)
            stack.callback(self.superlink.close)
            stack.callback(self.run.finish)
            self.superlink.start()
            self.front.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _files(self, home: Path) -> None:
        self._secret, self._ca = secrets.token_bytes(32), None
        if not self._insecure:
            self._ca, self._certificate, self._key = keys.make_loopback(home)
        self._secret_file = home / "secret"
        keys.write_private(self._secret_file, self._secret, replace=True)

    def _command(self) -> list[str]:
        tls = ["--insecure"]
        if not self._insecure:
            tls = ["--ssl-ca-certfile", str(self._ca), "--ssl-certfile", str(self._certificate), "--ssl-keyfile", str(self._key)]
            tls += ["--enable-supernode-auth"]
        private = ["--isolation", "process", "--superexec-auth-secret-file", str(self._secret_file)]
        where = ["--host", "127.0.0.1", "--port", str(self._inner)]
        return [*_script("flower-superlink"), *where, *private, *tls, "--disable-runtime-dependency-installation"]

    def _begin(self, process: Process) -> None:
        _wait_for_port(self._inner, process)
        deadline = time.monotonic() + READY
        while True:
            try:
                self.run.start()
                return
            except ConnectionError:
                if time.monotonic() > deadline or not process.running():
                    raise
                time.sleep(0.1)


class _WatchedLink(GridLink):
    """A GridLink that hears from the front when to look, and ends with a sentence when the SuperLink has failed for good."""

    def __init__(self, run: Run, names: Mapping[bytes, str], process: Process, front: Front) -> None:
        super().__init__(run, names, front.wake, front.wait_for_replies)
        self._process = process

    def push(self, messages: Mapping[str, bytes]) -> None:
        self._process.check()
        super().push(messages)

    def pull(self, timeout: float) -> list[tuple[str, bytes]]:
        self._process.check()
        return super().pull(timeout)


@contextlib.contextmanager
def stock_site(address: str, ca: str | Path, key: str | Path, answer: str, env: Mapping[str, str] | None = None) -> Iterator[Process]:
    """The other engine: an ordinary SuperNode, which runs what the server ships. `answer`: "module:function", from this installation."""
    keys.private_key(key)
    home = Path(tempfile.mkdtemp(prefix="fedhybrid-"))
    command = [*_script("flower-supernode"), "--superlink", address, "--root-certificates", str(ca), "--host", "127.0.0.1"]
    command += ["--auth-supernode-private-key", str(key)]
    settings = {**environment(home), **(env or {}), "FEDHYBRID_ANSWER": answer}
    process = Process("flower-supernode", lambda: [*command, "--port", str(_free_port())], settings, home / "log", lambda _: None, 1e9)
    try:
        process.start()
        yield process
    finally:
        process.close()
        shutil.rmtree(home, ignore_errors=True)


def _script(name: str) -> list[str]:
    return [sys.executable, str(Path(sysconfig.get_path("scripts")) / name)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: Process) -> None:
    deadline = time.monotonic() + READY
    while process.running() and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.05)
    raise ProcessFailed("it did not become ready" if process.running() else "it ended while starting")


def _end_group(child: subprocess.Popen[bytes] | None) -> None:
    """End a process and all that are in its group, also those that outlive it."""
    if child is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END)
