"""The way between the server and the sites: bytes there, bytes back. Nothing here knows what they say."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol


class Link(Protocol):
    def push(self, messages: Mapping[str, bytes]) -> None:
        """Send each site its question. Returns at once; whoever is away gets it when it comes back, or never."""
        ...

    def pull(self, timeout: float) -> list[tuple[str, bytes]]:
        """Answers as they come, each with the name of the site whose identity was proved; waits so many seconds for the first."""
        ...

    def close(self) -> None: ...


class Loopback:
    """Sites in this process: a simulation, with the very bytes that a network would carry."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]]) -> None:
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

    def close(self) -> None:
        self.waiting.clear()
