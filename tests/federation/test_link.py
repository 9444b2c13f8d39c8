"""What goes out to a site, and when again: a GridLink over a grid whose sites answer when the test says so."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedhybrid.clients import flower
from fedhybrid.clients.flower import GridLink, packed, unpacked

A, B = "hospital-a", "hospital-b"


class Grid:
    """One node for each site. What a site was sent waits in its queue, until it answers the first of it."""

    def __init__(self):
        self.nodes = {A: [1, b"key a", "t0"], B: [2, b"key b", "t0"]}
        self.queues = {A: [], B: []}
        self.replies = {}
        self.count = 0

    def get_nodes(self):
        return [SimpleNamespace(node_id=i, public_key=key, last_activated_at=when) for i, key, when in self.nodes.values()]

    def push_messages(self, messages):
        found = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = f"m{self.count}"
            self.queues[A if message.metadata.dst_node_id == 1 else B].append(message)
            found.append(f"m{self.count}")
        return found

    def pull_messages(self, message_ids):
        return [self.replies.pop(each) for each in list(message_ids) if each in self.replies]

    def waiting(self, site):
        return [unpacked(message.content) for message in self.queues[site]]

    def answer(self, site, error=False):
        message = self.queues[site].pop(0)
        content = {"error": Error(code=0)} if error else {"content": packed(unpacked(message.content)[::-1])}
        self.replies[message.metadata.message_id] = Message(**content, reply_to=message)


@pytest.fixture
def grid():
    return Grid()


@pytest.fixture
def link(grid, monkeypatch):
    monkeypatch.setattr(flower, "ROLL_CALL", 0.0)
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return GridLink(grid, {b"key a": A, b"key b": B})


@pytest.fixture
def now(monkeypatch):
    """A clock that the test moves."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(flower, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda seconds: None))
    return clock


def later(now, seconds):
    now.now += seconds


def test_a_question_that_is_asked_again_is_not_sent_again_to_a_site_that_is_at_work(grid, link, now):
    for _ in range(50):
        link.push({A: b"abc"})
        later(now, 0.5)
        assert link.pull(0.0) == []
    assert grid.waiting(A) == [b"abc"]
    grid.answer(A)
    assert link.pull(0.0) == [(A, b"cba")]


def test_after_a_silence_a_copy_goes_out_and_then_ever_more_seldom(grid, link, now):
    link.push({A: b"abc"})
    for _ in range(1000):
        later(now, 1.0)
        link.push({A: b"abc"})
        link.pull(0.0)
    assert grid.waiting(A) == [b"abc"] * 5  # at 0, and after 60, 180, 420 and 900 seconds


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_the_answer_to_any_copy_counts_and_the_others_do_not(copies, grid, link, now):
    link.push({A: b"abc"})
    for seconds in (61.0, 121.0, 241.0)[:copies]:
        later(now, seconds)
        link.pull(0.0)
    assert grid.waiting(A) == [b"abc"] * (copies + 1)
    grid.answer(A)
    assert link.pull(0.0) == [(A, b"cba")]
    for _ in range(copies):
        grid.answer(A)
    assert link.pull(0.0) == []
    link.push({A: b"abd"})
    grid.answer(A)
    assert link.pull(0.0) == [(A, b"dba")]


def test_a_slow_site_gets_the_newest_question_when_it_has_answered_the_one_before(grid, link, now):
    link.push({A: b"r0", B: b"r0"})
    for number in range(1, 30):
        grid.answer(B)
        assert link.pull(0.0) == [(B, (b"r%d" % (number - 1))[::-1])]
        link.push({A: b"r%d" % number, B: b"r%d" % number})
    assert grid.waiting(A) == [b"r0"]
    grid.answer(A)
    assert link.pull(0.0) == [(A, b"0r")]  # late, and of use to who asked
    assert link.pull(0.0) == []
    assert grid.waiting(A) == [b"r29"]


def test_a_site_that_connects_anew_gets_the_newest_question_at_once(grid, link, now):
    link.push({A: b"old"})
    link.push({A: b"new"})
    grid.nodes[A][2] = "t1"
    link.pull(0.0)
    assert grid.waiting(A) == [b"old", b"new"]
    grid.queues[A].pop(0)  # lost with the site's last life
    grid.answer(A)
    assert link.pull(0.0) == [(A, b"wen")]
    link.pull(0.0)
    assert grid.waiting(A) == []


def test_after_an_error_a_site_is_asked_again_when_somebody_asks_and_not_over_and_over(grid, link, now):
    link.push({A: b"abc"})
    grid.answer(A, error=True)
    for _ in range(100):
        assert link.pull(0.0) == []
    assert grid.waiting(A) == []
    assert link.refused == {A: 1}
    link.push({A: b"abc"})
    assert grid.waiting(A) == [b"abc"]
    grid.answer(A, error=True)
    link.pull(0.0)
    later(now, 61.0)
    link.pull(0.0)
    grid.answer(A)
    assert link.pull(0.0) == [(A, b"cba")]


def test_the_same_question_may_be_asked_again_when_it_was_answered(grid, link, now):
    for _ in range(2):
        link.push({A: b"abc"})
        grid.answer(A)
        assert link.pull(0.0) == [(A, b"cba")]
