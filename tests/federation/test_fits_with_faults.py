"""Whole fits over Flower while sites are absent, slow, killed, stopped, gone or lying, and the server is killed. By `make faults`."""

import contextlib
import json
import random
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr")

from deployment import Clocked, Deployment, distance
from harness import NAMES
from samples import same_bits
from test_faults import processes_of
from test_run import LIES, altered

import fedhybrid as fh
from fedhybrid.federation import exchange, sums
from tests.federation.conftest import wait_until

pytestmark = pytest.mark.faults
VICTIM = "b"
AFTER = 14  # rounds, by which fedhybrid has found its parameters: until then, and for the certificate, everyone is needed


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def deploy(tmp_path, stack):
    return lambda *loss, **agreed: Deployment(tmp_path / "fl", stack, *loss, **agreed)


def resend_after(monkeypatch, seconds):
    monkeypatch.setattr(exchange, "RESEND", seconds)
    monkeypatch.setattr(sums, "RESEND", seconds)


def at_round(number, act):
    """A listener that acts once, when this many rounds are done."""
    done = []

    def listen(what, details):
        if what == "round" and details["round"] >= number and not done:
            done.append(True)
            act()

    return listen


# ── sites that are away ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("rate", "most"), [(0.1, 1.5), (0.3, 2.0)])
def test_sites_that_skip_questions_at_random_change_nothing_but_the_rounds(rate, most, secure, deploy, monkeypatch):
    resend_after(monkeypatch, 2.5)  # after the deadline: only what everybody has to answer is asked again
    for module in (exchange, sums):
        monkeypatch.setattr(module, "GRACE", 1.0)  # so that who answers is late by chance alone, and not by a busy machine
    deployment = deploy(method="fedhybrid", sums=secure, absent="bridge", deadline=2.0)
    undisturbed, chance, skipped = deployment.simulated(), random.Random(3), []

    def skipping(name, answer):
        def reply(question):
            if chance.random() < rate:
                skipped.append(name)
                raise TimeoutError
            return answer(question)

        return reply

    deployment.listen()
    deployment.connected({name: skipping(name, deployment.site(name).answer) for name in NAMES})
    clocked = Clocked()
    result = deployment.run(clocked)
    far, ratio = distance(result.x, deployment.optimum()), result.rounds / undisturbed.rounds
    bridged = len(clocked.of("bridged"))
    print(f"\n{rate:.0%} absent, secure={secure}: {far:.1e} from the optimum, {result.rounds} rounds ({ratio:.2f} times), ", end="")
    print(f"{len(skipped)} questions skipped, {bridged} rounds bridged")
    assert result.status is fh.Status.SOLVED
    assert bridged >= rate * result.rounds
    assert far <= 1e-10
    assert ratio <= most


def test_a_site_that_is_slower_than_every_deadline_takes_part_by_its_late_answers(deploy):
    deployment = deploy(method="fedhybrid", absent="bridge", deadline=0.5)
    undisturbed = deployment.simulated()
    answer = deployment.site(VICTIM).answer

    def slow(question):
        time.sleep(1.5)
        return answer(question)

    deployment.listen()
    deployment.connected({name: deployment.site(name).answer for name in NAMES if name != VICTIM} | {VICTIM: slow})
    clocked = Clocked()
    result = deployment.run(clocked)
    far = distance(result.x, deployment.optimum())
    print(f"\na site three times slower than the deadline: {far:.1e}, {result.rounds} rounds, {undisturbed.rounds} undisturbed")
    assert result.status is fh.Status.SOLVED
    assert len(clocked.of("bridged")) >= 10
    assert far <= 1e-10


# ── a site that dies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("without_state", [False, True])
def test_a_site_that_is_killed_and_comes_back_changes_no_bit(without_state, secure, deploy):
    deployment = deploy(method="fedhybrid", sums=secure)
    undisturbed, chance = deployment.simulated(), random.Random(4)
    deployment.listen()
    deployment.connected({name: deployment.site(name).answer for name in NAMES if name != VICTIM})
    children = [deployment.site_child(VICTIM)]
    children[0].wait_for("Connected.")
    waits = []

    def die():
        time.sleep(chance.uniform(0.0, 0.3))  # somewhere in the next round
        children[-1].kill()
        started = time.monotonic()
        if without_state:
            shutil.rmtree(deployment.folder / VICTIM / "state")
        children.append(deployment.site_child(VICTIM))
        children[-1].wait_for("Connected.")
        waits.append(time.monotonic() - started)

    deaths = [threading.Thread(target=die) for _ in range(3)]
    listeners = [at_round(number, death.start) for number, death in zip((5, 18, 32), deaths, strict=True)]
    result = deployment.run(*listeners)
    for death in deaths:
        death.join(60)
    lost = [note for note in result.notes if "lost their state" in note]
    print(f"\nkilled {len(waits)} times, secure={secure}: back after {max(waits):.1f} s at most; {lost}")
    assert result.status is fh.Status.SOLVED
    assert same_bits(result.trace.x0, undisturbed.trace.x0)
    assert same_bits(result.x, undisturbed.x)
    assert distance(result.x, deployment.optimum()) <= 1e-10
    assert bool(lost) == without_state


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("absent", ["wait", "bridge", "drop", "abort"])
def test_a_site_that_is_gone_for_good_is_noticed_and_the_policy_is_followed(absent, secure, deploy):
    patience, deadline = 12.0, 6.0
    deployment = deploy(method="fedhybrid", sums=secure, absent=absent, patience=patience, deadline=deadline)
    deployment.simulated()  # compiles
    deployment.listen()
    deployment.connected({name: deployment.site(name).answer for name in NAMES if name != VICTIM})
    child, clocked, gone = deployment.site_child(VICTIM), Clocked(), []
    child.wait_for("Connected.")

    def die():
        child.kill()
        gone.append(time.monotonic())

    result = deployment.run(clocked, at_round(AFTER, die))
    noticed = next(when for when, what, _ in clocked.events if what in ("bridged", "missing") and when > gone[0]) - gone[0]
    decided = next(when for when, what, _ in clocked.events if what == "missing") - gone[0]
    print(f"\n{absent}, secure={secure}: {result.status}; noticed after {noticed:.1f} s, decided after {decided:.1f} s. {result.message}")
    usual = float(np.median(np.diff([when for when in clocked.times("round") if when < gone[0]])))  # of secure sums a second trip follows
    limit = {"wait": patience, "bridge": deadline, "drop": patience, "abort": deadline}[absent]
    assert noticed <= limit + 1.0 + (usual if secure else 0.0)
    if absent == "drop":
        far = distance(result.x, deployment.optimum(without=VICTIM))
        print(f"{far:.1e} from the optimum of the rest")
        assert result.status is fh.Status.SOLVED
        assert result.names == tuple(name for name in NAMES if name != VICTIM)
        assert any(note.startswith(f"{VICTIM} took no part to the end") for note in result.notes)
        assert far <= 1e-10
        return
    assert result.status is fh.Status.QUORUM_LOST
    assert VICTIM in result.message
    assert np.all(np.isfinite(result.x))
    deployment.site_child(VICTIM).wait_for("Connected.")
    again = deployment.run()  # from its record
    assert again.status is fh.Status.SOLVED
    assert distance(again.x, deployment.optimum()) <= 1e-10


@pytest.mark.parametrize("absent", ["wait", "bridge"])
def test_a_site_that_stands_still_for_a_minute_goes_on(absent, deploy):
    deadline = 30.0 if absent == "wait" else 2.0
    deployment = deploy(method="fedhybrid", absent=absent, deadline=deadline, patience=180.0)
    undisturbed = deployment.simulated()
    deployment.listen()
    deployment.connected({name: deployment.site(name).answer for name in NAMES if name != VICTIM})
    child, clocked, woken = deployment.site_child(VICTIM), Clocked(), []
    child.wait_for("Connected.")

    def wake():
        child.signal(signal.SIGCONT)
        woken.append(time.monotonic())

    def stand_still():
        child.signal(signal.SIGSTOP)
        threading.Timer(60.0, wake).start()

    result = deployment.run(clocked, at_round(AFTER, stand_still))
    ends = [0.0, *clocked.times("round")]
    closed = [when - max(end for end in ends if end < when) for when in clocked.times("bridged")]
    after = min((when for when in clocked.times("round") if woken and when > woken[0]), default=0.0) - woken[0]
    print(f"\n{absent}: {result.rounds} rounds ({undisturbed.rounds} undisturbed), {len(closed)} bridged, ", end="")
    print(f"closed after {max(closed, default=0.0):.2f} s at most; first round {after:.1f} s after it went on")
    assert result.status is fh.Status.SOLVED
    assert distance(result.x, deployment.optimum()) <= 1e-10
    if absent == "wait":
        assert same_bits(result.trace.x0, undisturbed.trace.x0)
    else:
        assert closed
        assert max(closed) <= deadline + 1.0


# ── a server that dies ────────────────────────────────────────────────────────────────────────────────────────────────────────


def events_of(folder):
    path = folder / "run" / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.mark.parametrize("secure", [False, True])
def test_a_server_killed_at_random_instants_loses_no_round_and_no_bit(secure, deploy):
    """Every kill comes at a random time after the server's first round since its start, so that each run is of many lives."""
    deployment = deploy(method="fedhybrid", sums=secure)
    undisturbed, chance, wanted = deployment.simulated(), random.Random(5), 12
    deployment.connected()
    home = deployment.folder / "flower"
    kills, runs, recovery = 0, 0, []
    while kills < wanted or runs == 0:
        before, started, server = rounds_done(deployment.folder), time.monotonic(), deployment.server_child()
        while server.process.poll() is None and rounds_done(deployment.folder) <= before:
            time.sleep(0.02)
            assert time.monotonic() - started < 120, server.said
        if server.process.poll() is None:
            recovery.append(time.monotonic() - started)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(chance.uniform(0.0, 1.5) if kills < wanted else 120.0)
        if server.process.poll() is None:
            server.kill()
            kills += 1
            wait_until(lambda: not processes_of(home), "no process left", 10)
            continue
        assert server.process.returncode == 0, server.said
        runs += 1
        answer = json.loads((deployment.folder / "run" / "result.json").read_text())
        assert answer["status"] == "SOLVED"
        assert same_bits(np.array(answer["x"]), undisturbed.x)
        assert answer["rounds"] == undisturbed.rounds
        check_no_round_was_lost(events_of(deployment.folder))
        (deployment.folder / "run").rename(deployment.folder / f"run-{runs}")
    wait_until(lambda: not processes_of(home), "no process left", 10)
    print(f"\nsecure={secure}: {kills} kills in {runs} runs, every answer the same to the last bit, 0 rounds lost; ", end="")
    print(f"from a server's start to its first new round {np.median(recovery):.1f} s, {max(recovery):.1f} s at most")
    assert max(recovery) <= 90.0


def rounds_done(folder):
    return max((event["round"] for event in events_of(folder) if event["what"] == "round"), default=0)


def check_no_round_was_lost(events):
    """What was told as done is on record at the next start, beside who is there and the beginning."""
    done = 0
    for event in events:
        if event["what"] == "epoch" and done:
            assert event["rounds_on_record"] - 2 >= done
        elif event["what"] == "round":
            done = max(done, event["round"])


# ── a site that lies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lie", ["NaN", "huge", "1e6", "too short"])
@pytest.mark.parametrize("method", ["krylov", "fedhybrid"])
def test_a_site_that_lies_is_put_out_and_the_answer_is_that_of_the_others(method, lie, deploy, monkeypatch):
    resend_after(monkeypatch, 0.3)
    deployment = deploy(method=method, largest_gradient=1000.0)
    answer, count, clocked = deployment.site(VICTIM).answer, [0], Clocked()

    def liar(question):
        count[0] += 1
        return altered(answer(question), LIES[lie]) if count[0] > 5 else answer(question)

    deployment.listen()
    deployment.connected({name: deployment.site(name).answer for name in NAMES if name != VICTIM} | {VICTIM: liar})
    result = deployment.run(clocked)
    far = distance(result.x, deployment.optimum(without=VICTIM))
    print(f"\n{method}, {lie}: {far:.1e} from the optimum of the honest sites. {clocked.of('gone')[0]['why']}")
    assert result.status is fh.Status.SOLVED
    assert VICTIM not in result.names
    assert [event["site"] for event in clocked.of("unusable")] == [VICTIM] * 3
    assert far <= 1e-10


# ── the order of arrival ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secure", [False, True])
def test_one_trace_whatever_the_order_of_arrival_and_wherever_it_is_resumed(secure, deploy):
    class Ended(BaseException):
        pass

    def end():
        raise Ended

    deployment = deploy("logistic", method="krylov", sums=secure)
    digests, orders = {deployment.simulated().trace.x0.tobytes()}, set()
    deployment.listen()
    for run in range(20):
        chance, order = random.Random(run), []

        def delayed(name, answer, chance=chance, order=order):
            def reply(question):
                time.sleep(chance.uniform(0.0, 0.15))
                order.append(name)
                return answer(question)

            return reply

        stop = deployment.connected({name: delayed(name, deployment.site(name).answer) for name in NAMES})
        try:
            with contextlib.suppress(Ended):
                deployment.run(at_round(2 + run % 10, end) if run else lambda *_: None, folder=f"run-{run}")
            digests.add(deployment.run(folder=f"run-{run}").trace.x0.tobytes())
        finally:
            stop.set()
        wait_until(lambda: not deployment.server.link.present(), "sites signed off")
        orders.add(tuple(order))
    print(f"\nsecure={secure}: {len(orders)} orders of arrival, 19 of the runs resumed, {len(digests)} trace")
    assert len(orders) == 20
    assert len(digests) == 1
