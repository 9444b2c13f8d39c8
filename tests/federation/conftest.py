"""A server with its SuperLink and front on free loopback ports, and sites of every kind, all of which end with the test."""

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedhybrid.federation import keys
from fedhybrid.federation.fleet_api import DirectSite
from fedhybrid.federation.processes import Server

NAMES = ("hospital-a", "hospital-b", "hospital-c")
PATIENCE = 60.0


def wait_until(condition, what, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


class Federation:
    """A folder of keys, and what runs with them."""

    def __init__(self, folder, stack):
        self.folder, self.stack = Path(folder), stack

    def serve(self, **options):
        self.server = self.stack.enter_context(Server(self.folder, **options))
        return self.server

    @property
    def address(self):
        return f"127.0.0.1:{self.server.port}"

    def site(self, name, **options):
        where = {"address": self.address, "ca": self.folder / keys.CA, "key": self.folder / keys.SITES / name}
        return DirectSite(**{**where, **options})

    def threads(self, answers):
        """A direct site for each name, in a thread of this process; they stop at the end."""
        stop = threading.Event()
        for name, answer in answers.items():
            thread = threading.Thread(target=self.site(name, memory=self.folder / f"{name}.node").serve, args=(answer, stop))
            thread.start()
            self.stack.callback(thread.join, PATIENCE)
        self.stack.callback(stop.set)
        wait_until(lambda: self.server.link.present() == set(answers), "all sites present")
        return stop

    def child(self, name, seconds=0.0):
        """A direct site in a process of its own, which turns the bytes round."""
        files = [self.folder / keys.CA, self.folder / keys.SITES / name, self.folder / f"{name}.node"]
        command = [sys.executable, str(Path(__file__).with_name("site_child.py")), self.address, *map(str, files), str(seconds)]
        child = subprocess.Popen(command)
        self.stack.callback(child.wait, PATIENCE)
        self.stack.callback(child.kill)
        return child

    def ask(self, questions, seconds=PATIENCE, link=None):
        """Push, and pull until all have answered."""
        link, answers, deadline = link or self.server.link, {}, time.monotonic() + seconds
        link.push(questions)
        while len(answers) < len(questions):
            for name, answer in link.pull(1.0):
                assert name not in answers, f"{name} answered twice"
                answers[name] = answer
            assert time.monotonic() < deadline, f"no answer from {questions.keys() - answers.keys()} in {seconds} s"
        return answers


@pytest.fixture(scope="module")
def key_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "federation"
    keys.create(folder, NAMES)
    return folder


@pytest.fixture
def federation(tmp_path):
    """One of its own for a test that kills or changes something."""
    keys.create(tmp_path / "federation", NAMES)
    with contextlib.ExitStack() as stack:
        yield Federation(tmp_path / "federation", stack)


@pytest.fixture(scope="module")
def running(key_folder):
    """One for all tests of a file that leave it as it was."""
    with contextlib.ExitStack() as stack:
        federation = Federation(key_folder, stack)
        federation.serve()
        yield federation
