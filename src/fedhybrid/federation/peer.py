"""The two connections of the front: HTTP/1.1 over asyncio, with limits on what is read and on every wait."""

import asyncio
import json
import ssl
import time
from collections.abc import Coroutine
from typing import Any

import h11

MAX_HEADER = 16 << 10
UPSTREAM = 30.0
REUSE = 2.0  # an idle connection to the SuperLink is closed by it after five seconds


class Refused(Exception):
    """An answer without the SuperLink: a status, a code of ours, a sentence."""

    def __init__(self, status: int, sentence: str, code: int = 0) -> None:
        super().__init__(sentence)
        self.status, self.body = status, json.dumps({"code": code, "detail": sentence}).encode()


class Peer:
    """One end of an HTTP/1.1 connection."""

    def __init__(self, role: type[h11.CLIENT] | type[h11.SERVER], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEADER)
        self.reader, self.writer = reader, writer

    async def event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(1 << 16))
        return event

    async def body(self, most: int) -> bytes:
        """What follows the head. Refused as soon as it is too long, whatever length was declared."""
        parts, size = [], 0
        while not isinstance(event := await self.event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise EOFError
            parts.append(bytes(event.data))
            size += len(event.data)
            if size > most:
                raise Refused(413, f"a body may have {most} bytes here")
        return b"".join(parts)

    async def answer(self, status: int, body: bytes, kind: bytes, last: bool = False) -> None:
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await self.send(h11.Response(status_code=status, headers=headers + [(b"connection", b"close")] * last), body)

    async def send(self, head: h11.Request | h11.Response, body: bytes) -> None:
        data = [self.http.send(head), self.http.send(h11.Data(data=body)), self.http.send(h11.EndOfMessage())]
        self.writer.write(b"".join(part for part in data if part))
        await self.writer.drain()


class Upstream:
    """One kept connection to the SuperLink."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._port, self._context = port, context
        self._peer: Peer | None = None
        self._used = 0.0

    async def ask(self, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
        try:
            return await within(UPSTREAM, self._ask(path, headers, body))
        except (OSError, TimeoutError, EOFError, h11.ProtocolError):
            self.close()
            raise Refused(503, "the server is being started, or does not answer") from None

    async def _ask(self, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
        if self._peer is None or time.monotonic() - self._used > REUSE or self._peer.http.our_state is not h11.IDLE:
            self.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)
            self._peer = Peer(h11.CLIENT, reader, writer)
        peer = self._peer
        fixed = [(b"host", b"127.0.0.1"), (b"content-length", b"%d" % len(body))]
        await peer.send(h11.Request(method=b"POST", target=path, headers=fixed + headers), body)
        response = await peer.event()
        if not isinstance(response, h11.Response):
            raise EOFError
        answer = await peer.body(1 << 30)
        if peer.http.our_state is h11.DONE and peer.http.their_state is h11.DONE:
            peer.http.start_next_cycle()
            self._used = time.monotonic()
        else:
            self.close()
        return response.status_code, answer

    def close(self) -> None:
        if self._peer is not None:
            self._peer.writer.transport.abort()
            self._peer = None


async def within(seconds: float, wait: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wait_for(wait, seconds)
