"""Flower's message API: one bytes value each way, in a ConfigRecord.

A question is sent again when its site has connected anew since, for then it may be lost; also after a long silence. So a site may be
asked twice, and answers the second time from what it has stored. Answers are matched by the question's message id alone: Flower's own
error replies have the SuperLink as their source.
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
class Question:
    """What a site was asked last, and to which of its connections (node, time of its activation) it went."""

    data: bytes
    went_to: tuple[int, str] | None = None
    sent: float = 0.0
    silence: float = SILENCE
    ids: set[str] = field(default_factory=set)


class GridLink:
    """A Link over a Grid. `names`: each registered public key (PEM) and the name of its site; other nodes are not seen.

    `sent` is called after questions have gone out. `wait` waits so many seconds at most, less where it knows that an answer came.
    """

    def __init__(
        self,
        grid: Grid,
        names: Mapping[bytes, str],
        sent: Callable[[], None] = lambda: None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.grid, self.names, self._sent, self._wait = grid, dict(names), sent, wait
        self.refused: dict[str, int] = {}  # replies that were an error or not of the agreed form, by site
        self._open: dict[str, Question] = {}
        self._nodes: dict[str, tuple[int, str]] = {}
        self._called = 0.0

    def push(self, messages: Mapping[str, bytes]) -> None:
        for site in messages:
            if site not in self.names.values():
                raise KeyError(f"there is no registered site {site!r}")
        self._open.update({site: Question(bytes(data)) for site, data in messages.items()})
        try:
            self._send()
        except ConnectionError:
            self._forget()  # it goes out in a later pull

    def pull(self, timeout: float) -> list[tuple[str, bytes]]:
        deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
        while True:
            try:
                self._send()
                answers = list(self._answers())
            except ConnectionError:  # the SuperLink is being started again: what is on its way is lost
                self._forget()
                answers = []
            left = deadline - time.monotonic()
            if answers or left <= 0:
                return answers
            self._wait(min(pause, left))
            pause = min(1.5 * pause, LAST_PAUSE)

    def present(self) -> frozenset[str]:
        try:
            self._roll_call()
        except ConnectionError:
            return frozenset()
        return frozenset(self._nodes)

    def close(self) -> None:
        self._open.clear()

    def _roll_call(self) -> None:
        if time.monotonic() - self._called >= ROLL_CALL:
            nodes: Iterable[Any] = self.grid.get_nodes()
            known = [(self.names[bytes(node.public_key)], node) for node in nodes if bytes(node.public_key) in self.names]
            self._nodes = {site: (node.node_id, node.last_activated_at) for site, node in known}
            self._called = time.monotonic()

    def _send(self) -> None:
        if any(not question.ids for question in self._open.values()) or time.monotonic() - self._called >= ROLL_CALL:
            self._roll_call()
        now, due = time.monotonic(), []
        for site, question in self._open.items():
            node = self._nodes.get(site)
            silent = now - question.sent > question.silence
            if node is not None and (silent or question.went_to != node):
                question.silence = 2 * question.silence if question.went_to == node else SILENCE
                if question.went_to is not None and question.went_to[0] != node[0]:
                    question.ids.clear()  # another SuperLink, which does not know them
                question.went_to, question.sent = node, now
                due.append((question, Message(packed(question.data), node[0], f"query.{ACTION}", ttl=LIFE)))
        if due:
            for (question, _), message_id in zip(due, self.grid.push_messages([message for _, message in due]), strict=True):
                if message_id:
                    question.ids.add(message_id)
                else:  # the node is no longer there
                    question.went_to = None
            self._sent()

    def _answers(self) -> Iterable[tuple[str, bytes]]:
        asked = {message_id: site for site, question in self._open.items() for message_id in question.ids}
        for reply in self.grid.pull_messages(asked) if asked else ():
            site = asked.get(reply.metadata.reply_to_message_id)
            if site is None or site not in self._open:  # the answer to the same question came twice
                continue
            self._open[site].ids.discard(reply.metadata.reply_to_message_id)
            try:
                if reply.has_error():
                    raise ValueError(f"error {reply.error.code}: {reply.error.reason}")
                data = unpacked(reply.content)
            except ValueError as error:
                self.refused[site] = self.refused.get(site, 0) + 1
                log.warning("%s did not answer: %s", site, error)
                continue  # it is asked again when it connects anew, or after a silence
            del self._open[site]
            yield site, data

    def _forget(self) -> None:
        self._called = 0.0
        for question in self._open.values():
            question.ids.clear()
            question.went_to = None
