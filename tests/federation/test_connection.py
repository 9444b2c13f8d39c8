"""Bytes from the server to direct sites and back, over TLS and node authentication; and what happens when either end is killed."""

import os
import signal
import threading
import time

import pytest

pytest.importorskip("flwr")

from flwr.proto.runtime_pb2 import PushTaskOutputRequest

from fedhybrid.federation.fleet_api import app_bundle, is_lawful
from fedhybrid.federation.front import Front
from fedhybrid.federation.link import ConnectionRefused
from fedhybrid.federation.processes import Server
from fedhybrid.status import CheckpointError, InvalidConfig
from tests.federation.conftest import NAMES, wait_until


def backwards(question):
    return question[::-1]


def test_bytes_arrive_exactly_and_under_the_right_names(running):
    stop = running.threads({name: lambda question, name=name: name.encode() + question[::-1] for name in NAMES})
    every = bytes(range(256))
    for size in (0, 1, 256, 1 << 20):
        questions = {name: (name.encode() + every * (size // 256 + 1))[:size] for name in NAMES}
        assert running.ask(questions) == {name: name.encode() + question[::-1] for name, question in questions.items()}
    same = dict.fromkeys(NAMES, b"the same question for all")
    assert running.ask(same) == {name: name.encode() + question[::-1] for name, question in same.items()}
    assert running.ask({NAMES[1]: b"one"}) == {NAMES[1]: NAMES[1].encode() + b"eno"}
    with pytest.raises(KeyError, match="no registered site"):
        running.server.link.push({"hospital-x": b""})
    stop.set()
    wait_until(lambda: not running.server.link.present(), "sites signed off")


def test_a_site_that_comes_late_gets_its_question_and_an_error_at_a_site_harms_no_other(running):
    def broken(question):
        raise RuntimeError("patient 17 has pneumonia")

    link = running.server.link
    link.push({NAMES[0]: b"early", NAMES[1]: b"early"})
    assert link.pull(0.3) == []
    stop = running.threads({NAMES[0]: backwards, NAMES[1]: broken})
    answers, deadline = [], time.monotonic() + 20
    while time.monotonic() < deadline and not (answers and link.refused.get(NAMES[1])):
        answers += link.pull(0.5)
    assert answers == [(NAMES[0], b"ylrae")]
    assert link.refused == {NAMES[1]: 1}
    assert "pneumonia" not in (running.folder / "flower" / "superlink.log").read_text()
    stop.set()


def test_a_second_process_with_the_same_key_is_refused(running):
    stop = running.threads({NAMES[2]: backwards})
    with pytest.raises(ConnectionRefused, match="running already on this machine"):
        running.site(NAMES[2], memory=running.folder / f"{NAMES[2]}.node").serve(backwards)
    with pytest.raises(ConnectionRefused, match="has not lapsed yet, or another process uses the same key"):
        running.site(NAMES[2], patience=1.0).serve(backwards)  # as from another machine, with a copy of the key
    assert running.ask({NAMES[2]: b"still there"}) == {NAMES[2]: b"ereht llits"}
    stop.set()


def test_a_second_server_on_one_folder_is_refused(running):
    with pytest.raises(CheckpointError, match="in use by process"), Server(running.folder):
        pass


def test_a_killed_superlink_is_started_again_and_nothing_is_lost(federation):
    server = federation.serve()
    federation.threads(dict.fromkeys(NAMES, backwards))
    assert federation.ask(dict.fromkeys(NAMES, b"one")) == dict.fromkeys(NAMES, b"eno")
    before = server.superlink.pid
    server.link.push(dict.fromkeys(NAMES, b"two"))
    os.kill(before, signal.SIGKILL)
    answers = {}
    while len(answers) < len(NAMES):
        answers.update(server.link.pull(1.0))
    assert answers == dict.fromkeys(NAMES, b"owt")
    assert server.superlink.pid != before
    assert federation.ask(dict.fromkeys(NAMES, b"three")) == dict.fromkeys(NAMES, b"eerht")


def test_a_run_that_the_superlink_has_given_up_is_followed_by_another(running):
    stop, run = running.threads(dict.fromkeys(NAMES, backwards)), running.server.run
    before = run.run.run_id
    running.server.link.push(dict.fromkeys(NAMES, b"one"))
    run._client.PushTaskOutput(PushTaskOutputRequest(sub_status="failed", details=""))  # as when this machine slept for more than a minute
    answers = {}
    while len(answers) < len(NAMES):
        answers.update(running.server.link.pull(1.0))
    assert answers == dict.fromkeys(NAMES, b"eno")
    assert run.run.run_id != before
    stop.set()


def test_what_is_no_address_is_refused(running):
    for address in ("", "fl.example.org", "https://fl.example.org:1", "a:0", "a:70000", "a b:1", "a:1/x", "[::1"):
        with pytest.raises(InvalidConfig, match="is not an address"):
            running.site(NAMES[0], address=address)


def test_altered_app_code_from_the_server_does_nothing_at_a_direct_site(federation, tmp_path):
    canary = tmp_path / "canary"
    project = b"""[project]
name = "fedhybrid-site"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "mallory"
[tool.flwr.app.components]
serverapp = "evil:app"
clientapp = "evil:app"
[tool.flwr.app.config]
"""
    code = f"open({str(canary)!r}, 'w').write('was here')\napp = None\n".encode()
    federation.serve(fab=app_bundle({"pyproject.toml": project, "evil.py": code}))
    federation.threads(dict.fromkeys(NAMES, backwards))
    assert federation.ask(dict.fromkeys(NAMES, b"one")) == dict.fromkeys(NAMES, b"eno")
    assert not canary.exists()


def test_without_tls_everything_stays_on_this_machine(federation):
    federation.serve(insecure=True)
    with pytest.raises(InvalidConfig, match="this machine only"):
        federation.site(NAMES[0], ca=None, address="10.0.0.1:9000")
    with pytest.raises(InvalidConfig, match="this machine only"):
        Front("0.0.0.0", 0, (1, None), None, (), is_lawful)
    stop, answers = threading.Event(), []
    thread = threading.Thread(target=federation.site(NAMES[0], ca=None).serve, args=(backwards, stop))
    thread.start()
    answers = federation.ask({NAMES[0]: b"plain"})
    stop.set()
    thread.join(20)
    assert answers == {NAMES[0]: b"nialp"}
