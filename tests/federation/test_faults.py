"""Either end killed, stopped or left behind, as processes; and what a round costs. By `make faults`."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedhybrid.clients import flower
from fedhybrid.federation import keys
from fedhybrid.federation.processes import _free_port, stock_site
from tests.federation.conftest import NAMES, wait_until

pytestmark = pytest.mark.faults
HERE = Path(__file__).parent


def processes_of(folder):
    """Every process that Flower's home in this folder was given to."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"FLWR_HOME={folder}/".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def memory(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class ServerChild:
    def __init__(self, federation, port):
        command = [sys.executable, str(HERE / "server_child.py"), str(federation.folder), str(port), *NAMES]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        federation.stack.callback(self.process.stdout.close)
        federation.stack.callback(self.process.wait, 30)
        federation.stack.callback(self.process.kill)
        self.superlink = int(self.line().split()[1])

    def line(self):
        return self.process.stdout.readline().strip()

    def read_until(self, number):
        """Answers up to the first of a round with at least this number."""
        while True:
            word, round_number, name, answer = self.line().split()
            assert (word, answer) == ("answer", round_number[::-1])
            assert name in NAMES
            if int(round_number) >= number:
                return int(round_number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_that_ends_in_any_way_leaves_no_process_behind(federation, number):
    child = ServerChild(federation, _free_port())
    assert processes_of(federation.folder)
    os.kill(child.process.pid, number)
    child.process.wait(30)
    wait_until(lambda: not processes_of(federation.folder), "no process left", 10)


def test_a_server_that_is_killed_again_and_again_goes_on_with_the_same_sites(federation):
    port = _free_port()
    server = ServerChild(federation, port)
    federation.server = type("Address", (), {"port": port})
    sites = [federation.child(name) for name in NAMES]
    waits = []
    for _ in range(5):
        server.read_until(3)
        server.process.kill()
        server.process.wait(30)
        started = time.monotonic()
        server = ServerChild(federation, port)
        server.read_until(0)
        waits.append(time.monotonic() - started)
    server.read_until(10)
    assert all(site.poll() is None for site in sites)
    print(f"from a server's new start to the first answer: {max(waits):.1f} s at most")
    assert max(waits) < 60


def test_a_killed_site_is_back_at_once_and_gets_its_question_again(federation):
    federation.serve()
    children = {name: federation.child(name, seconds=0.2) for name in NAMES}
    wait_until(lambda: len(federation.server.link.present()) == 3, "sites present")
    waits = []
    for number in range(6):
        name = NAMES[number % 3]
        questions = dict.fromkeys(NAMES, b"%d" % (1234 + number))
        federation.server.link.push(questions)
        time.sleep(0.1 * number)  # before, while and after it has taken the question
        children[name].kill()
        children[name].wait(30)
        started = time.monotonic()
        children[name] = federation.child(name)
        answers = {}
        while len(answers) < 3:
            answers.update(federation.server.link.pull(1.0))
            assert time.monotonic() - started < 120
        assert answers == {site: question[::-1] for site, question in questions.items()}
        waits.append(time.monotonic() - started)
    print(f"from a site's new start to its answer: {max(waits):.1f} s at most")


def test_a_stopped_site_is_counted_as_away_and_answers_when_it_goes_on(federation):
    federation.serve()
    children = {name: federation.child(name) for name in NAMES}
    link = federation.server.link
    wait_until(lambda: len(link.present()) == 3, "sites present")
    os.kill(children[NAMES[0]].pid, signal.SIGSTOP)
    started = time.monotonic()
    link.push(dict.fromkeys(NAMES, b"abc"))
    answers = []
    while time.monotonic() - started < 60:
        answers += link.pull(1.0)
    assert sorted(answers) == [(name, b"cba") for name in NAMES[1:]]
    assert link.present() == set(NAMES[1:])
    os.kill(children[NAMES[0]].pid, signal.SIGCONT)
    started = time.monotonic()
    while not (answer := link.pull(1.0)):
        assert time.monotonic() - started < 30
    assert answer == [(NAMES[0], b"cba")]
    assert federation.ask({NAMES[0]: b"more"}) == {NAMES[0]: b"erom"}


def test_a_stock_site_that_is_asked_again_while_it_is_at_work_gets_through(federation, monkeypatch):
    """Asked once a second, it takes four seconds to answer, and some six more for a SuperNode to fetch and send."""
    monkeypatch.setattr(flower, "SILENCE", 20.0)
    server, waits = federation.serve(), []
    key = federation.folder / keys.SITES / NAMES[0]
    with stock_site(federation.address, federation.folder / keys.CA, key, "answers:slowly", {"PYTHONPATH": str(HERE)}):
        wait_until(server.link.present, "stock site present")
        for number in range(4):
            question, answers, started = {NAMES[0]: b"%d" % (1234 + number)}, [], time.monotonic()
            while not answers:
                server.link.push(question)
                answers = server.link.pull(1.0)
                assert time.monotonic() - started < 120
            assert answers == [(name, question[::-1]) for name, question in question.items()]
            waits.append(time.monotonic() - started)
    print(f"a stock site asked once a second answers after {statistics.median(waits):.1f} s, {max(waits):.1f} s at most")
    assert min(waits) > 2.0  # else this shows nothing


def test_a_direct_round_is_much_quicker_than_a_stock_round(federation, record_property):
    server = federation.serve()
    children = [federation.child(name) for name in NAMES]
    wait_until(lambda: len(server.link.present()) == 3, "direct sites present")
    direct, before = [], 0.0
    for number in range(500):
        started = time.monotonic()
        federation.ask(dict.fromkeys(NAMES, number.to_bytes(2) * 400))
        direct.append(time.monotonic() - started)
        if number == 100:
            before = [memory(pid) for pid in (server.superlink.pid, os.getpid(), children[0].pid)]
    after = [memory(pid) for pid in (server.superlink.pid, os.getpid(), children[0].pid)]
    for child in children:
        child.terminate()
        child.wait(30)
    wait_until(lambda: not server.link.present(), "direct sites away", 60)
    stock, where = [], {"PYTHONPATH": str(HERE)}
    with contextlib.ExitStack() as stack:
        homes = []
        for name in NAMES:
            key = federation.folder / keys.SITES / name
            process = stack.enter_context(stock_site(federation.address, federation.folder / keys.CA, key, "answers:backwards", where))
            homes.append(process.output.parent)
        wait_until(lambda: len(server.link.present()) == 3, "stock sites present")
        for number in range(8):
            started = time.monotonic()
            questions = dict.fromkeys(NAMES, number.to_bytes(2) * 400)
            assert federation.ask(questions) == {name: question[::-1] for name, question in questions.items()}
            stock.append(time.monotonic() - started)
    for home in homes:
        assert not processes_of(home.parent / home.name)
    figures = {
        "direct": round(statistics.median(direct), 3),
        "direct p95": round(sorted(direct)[475], 3),
        "stock": round(statistics.median(stock[1:]), 3),
        "ratio": round(statistics.median(direct) / statistics.median(stock[1:]), 4),
        "MB superlink, server, site at round 100": [round(value) for value in before],
        "MB superlink, server, site at round 500": [round(value) for value in after],
        "load": os.getloadavg()[0],
    }
    print(json.dumps(figures))
    record_property("figures", figures)
    assert figures["ratio"] <= 0.15
    assert all(late < early + 10 for early, late in zip(before, after, strict=True))
