"""The seam between the server's arithmetic and the network: opaque bytes, and sites by their names."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from ..status import InvalidConfig

Answer = Callable[[bytes], bytes]  # the site's side: question → answer. It never raises; errors are answers


class Link(Protocol):
    """The server's side."""

    def push(self, messages: Mapping[str, bytes]) -> None:
        """Send each named site its question. Returns at once; a site that is away gets it when it is back."""

    def pull(self, timeout: float) -> list[tuple[str, bytes]]:
        """Answers as they come, each with the name of the site that gave it; [] if none came in `timeout` seconds."""

    def present(self) -> frozenset[str]:
        """The sites that are connected now, as far as is known."""

    def close(self) -> None: ...


class Loopback:
    """Sites in this process: a simulation, with the very bytes that a network would carry."""

    def __init__(self, sites: Mapping[str, Answer]) -> None:
        self.sites = dict(sites)
        self.waiting: deque[tuple[str, bytes]] = deque()

    def push(self, messages: Mapping[str, bytes]) -> None:
        self.waiting.extend((name, message) for name, message in messages.items() if name in self.sites)

    def pull(self, timeout: float) -> list[tuple[str, bytes]]:
        if not self.waiting:
            time.sleep(timeout)
            return []
        name, message = self.waiting.popleft()
        return [(name, self.sites[name](message))]

    def present(self) -> frozenset[str]:
        return frozenset(self.sites)

    def close(self) -> None:
        self.waiting.clear()


class ConnectionRefused(InvalidConfig):
    """A connection that will not come about, however often it is tried: the message says why and what to do."""
