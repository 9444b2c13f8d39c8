"""Flower's message API: one bytes value each way, in a ConfigRecord.

A site has one question at a time: a newer one goes out when the one before is answered, so that nothing piles up at a site that is slow.
A question is sent again when its site has connected anew since, for then it may be lost; also after a long silence. So a site may be
asked twice, and answers the second time from what it has stored; an answer to any copy counts. Answers are matched by the question's
message id alone: Flower's own error replies have the SuperLink as their source.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedhybrid.federation.link import Answer

RECORD, KEY, ACTION = "fedhybrid", "bytes", "fedhybrid"
FIRST_PAUSE, LAST_PAUSE, ROLL_CALL = 0.01, 0.25, 1.0
SILENCE, LIFE = 60.0, 12 * 3600.0
log = logging.getLogger(__name__)


def _asleep(seconds: float, replies: int) -> None:
    time.sleep(seconds)


def packed(data: bytes) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({KEY: data})})


def unpacked(content: RecordDict) -> bytes:
    """The one bytes value of a message; ValueError if it holds anything else."""
    record: Any = content.get(RECORD)
    data = record.get(KEY) if isinstance(record, ConfigRecord) and len(content) == len(record) == 1 else None
    if not isinstance(data, bytes):
        raise ValueError("a message must hold one bytes value and nothing else")
    return data


def client_app(answer: Answer) -> ClientApp:
    """An ordinary ClientApp that gives each question's bytes to `answer`. Both engines run it."""
    app = ClientApp()

    @app.query(ACTION)
    def query(message: Message, context: Context) -> Message:
        return Message(packed(answer(unpacked(message.content))), reply_to=message)

    return app


@dataclass
class Post:
    """What a site is asked, and what it has been sent."""

    question: bytes | None = None  # the newest; None when it is answered
    sent: bytes | None = None  # the last that went out, and to which of the site's connections (node, time of its activation)
    went_to: tuple[int, str] | None = None
    when: float = 0.0
    silence: float = SILENCE
    flying: dict[str, bytes] = field(default_factory=dict)  # by message id: what may still be answered, in the order in which it went out

    def due(self, node: tuple[int, str], now: float) -> bool:
        if self.question is None:
            return False
        free = not self.flying and self.sent != self.question
        if not free and self.went_to == node and now - self.when <= self.silence:
            return False
        self.silence = 2 * self.silence if not free and self.went_to == node else SILENCE
        return True

    def answered(self, question: bytes, later: dict[str, bytes]) -> None:
        """Forget its other copies, and what went out before it: sites answer in that order."""
        self.flying = {message_id: other for message_id, other in later.items() if other != question}
        if question == self.question:
            self.question = self.sent = None


class GridLink:
    """A Link over a Grid. `names`: each registered public key (PEM) and the name of its site; other nodes are not seen.

    `sent` is called after questions have gone out. `wait(seconds, replies)` waits until so many have come, but not longer than this.
    """

    def __init__(
        self,
        grid: Grid,
        names: Mapping[bytes, str],
        sent: Callable[[], None] = lambda: None,
        wait: Callable[[float, int], object] | None = None,
    ) -> None:
        self.grid, self.names, self._sent = grid, dict(names), sent
        self._wait, self._first = (_asleep, FIRST_PAUSE) if wait is None else (wait, LAST_PAUSE)
        self.refused: dict[str, int] = {}  # replies that were an error or not of the agreed form, by site
        self._posts: dict[str, Post] = {}
        self._nodes: dict[str, tuple[int, str]] = {}
        self._called = 0.0

    def push(self, messages: Mapping[str, bytes]) -> None:
        for site in messages:
            if site not in self.names.values():
                raise KeyError(f"there is no registered site {site!r}")
        for site, data in messages.items():
            post = self._posts.setdefault(site, Post())
            if not post.flying:
                post.sent = None  # asked once more after an error, say
            post.question = bytes(data)
        try:
            self._send()
        except ConnectionError:
            self._forget()  # it goes out in a later pull

    def pull(self, timeout: float) -> list[tuple[str, bytes]]:
        """Looks when all may be there, or after a pause: a look in vain keeps the SuperLink from the sites."""
        deadline, pause = time.monotonic() + timeout, self._first
        while True:
            try:
                self._send()
                flying = sum(len(post.flying) for post in self._posts.values())
                self._wait(min(pause, max(0.0, deadline - time.monotonic())), flying)
                answers = list(self._answers())
            except ConnectionError:  # the SuperLink is being started again: what is on its way is lost
                self._forget()
                answers = []
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            left = deadline - time.monotonic()
            if answers or left <= 0:
                return answers
            pause = min(1.5 * pause, LAST_PAUSE)

    def present(self) -> frozenset[str]:
        try:
            self._roll_call()
        except ConnectionError:
            return frozenset()
        return frozenset(self._nodes)

    def close(self) -> None:
        self._posts.clear()

    def _roll_call(self) -> None:
        if time.monotonic() - self._called >= ROLL_CALL:
            nodes: Iterable[Any] = self.grid.get_nodes()
            known = [(self.names[bytes(node.public_key)], node) for node in nodes if bytes(node.public_key) in self.names]
            self._nodes = {site: (node.node_id, node.last_activated_at) for site, node in known}
            self._called = time.monotonic()

    def _send(self) -> None:
        self._roll_call()
        now, due = time.monotonic(), []
        for site, post in self._posts.items():
            node = self._nodes.get(site)
            if node is None or not post.due(node, now):
                continue
            if post.went_to is not None and post.went_to[0] != node[0]:
                post.flying.clear()  # another SuperLink, which does not know them
            assert post.question is not None
            post.sent, post.went_to, post.when = post.question, node, now
            due.append((post, Message(packed(post.question), node[0], f"query.{ACTION}", ttl=LIFE)))
        if due:
            for (post, _), message_id in zip(due, self.grid.push_messages([message for _, message in due]), strict=True):
                if message_id and post.sent is not None:
                    post.flying[message_id] = post.sent
                else:  # the node is no longer there
                    post.went_to = None
            self._sent()

    def _answers(self) -> Iterable[tuple[str, bytes]]:
        asked = {message_id: site for site, post in self._posts.items() for message_id in post.flying}
        replies = {reply.metadata.reply_to_message_id: reply for reply in (self.grid.pull_messages(asked) if asked else ())}
        for message_id, site in asked.items():
            post = self._posts[site]
            if message_id not in replies or message_id not in post.flying:  # a copy of what has been answered
                continue
            reply, flying = replies[message_id], list(post.flying.items())
            question = post.flying.pop(message_id)
            try:
                if reply.has_error():
                    raise ValueError(f"error {reply.error.code}: {reply.error.reason}")
                data = unpacked(reply.content)
            except ValueError as error:
                self.refused[site] = self.refused.get(site, 0) + 1
                log.warning("%s did not answer: %s", site, error)
                continue  # it is asked again when it connects anew, or after a silence
            post.answered(question, dict(flying[flying.index((message_id, question)) + 1 :]))
            yield site, data

    def _forget(self) -> None:
        self._called = 0.0
        for post in self._posts.values():
            post.flying.clear()
            post.went_to = None
