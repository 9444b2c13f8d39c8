"""What faces the network: TLS, and behind it the Fleet API's paths alone, for registered keys alone.

The SuperLink itself listens on loopback: whoever reaches it may register nodes and start runs. A connection's first request must be
signed by a registered key, and the others on it must bear the same key; else nothing of it reaches the SuperLink. A request is read
whole, within its limits, before it is passed on. All waits have an end, and who has shown no key yet gives way to newcomers.

A site that asks for questions when there are none is kept waiting a little, until `wake` says that there are new ones; and
`wait_for_replies` ends when sites ask again after their replies. So neither end needs to ask the SuperLink over and over, which costs it
5 ms of processor time for every request.
"""

import asyncio
import base64
import binascii
import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import h11
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedhybrid.federation.peer import MAX_HEADER, Peer, Refused, Upstream, within
from fedhybrid.status import InvalidConfig

PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
        *("get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
    )
)
KEY, TIMESTAMP, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
PASSED_ON = {KEY, TIMESTAMP, SIGNATURE, b"content-type", b"accept", b"flwr-package-name", b"flwr-package-version", b"flwr-component-name"}
MAX_BODY = 16 << 10  # a body with an object in it has a limit of its own
HANDSHAKE, HEADER, BODY, IDLE = 5.0, 10.0, 60.0, 75.0
CLOCKS = 305.0
PULL, PUSH, HOLD = "/v1/fleet/pull-messages", "/v1/fleet/push-messages", 2.0


class Front:
    """A thread that listens on `host`:`port` (0: any free one) from `start` to `close`.

    `upstream`: the SuperLink's loopback port, and the CA certificate of its TLS or None. `certificate`: the files of the certificate
    and its key; None: no TLS, on loopback only. `registered`: the public keys (PEM) that are let in. `is_lawful`: a last look at each
    request's path and body. `largest`: the most bytes of one object.
    """

    def __init__(
        self,
        host: str,
        port: int,
        upstream: tuple[int, Path | None],
        certificate: tuple[Path, Path] | None,
        registered: Iterable[bytes],
        is_lawful: Callable[[str, bytes], bool],
        *,
        largest: int = 8 << 20,
        connections: int = 256,
    ) -> None:
        self.registered = frozenset(registered)  # may be replaced while it runs
        self._is_lawful, self._largest, self._most = is_lawful, largest, connections
        self._context = None if certificate is None else _server_context(*certificate)
        self._upstream_port, ca = upstream
        self._upstream_context = None if ca is None else ssl.create_default_context(cafile=ca)
        self._socket = _listen(host, port, insecure=certificate is None)
        self.port: int = self._socket.getsockname()[1]
        self._open: dict[asyncio.Task[None], bool] = {}  # in order of arrival; whether it has shown a key
        self._arrival, self._replies = threading.Condition(), 0
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._main = self._loop.create_task(self._accept(self._loop))
        self._thread.start()

    def wake(self) -> None:
        """There are questions: let those who wait for one ask again."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed already
                self._loop.call_soon_threadsafe(self._wake)

    def wait_for_replies(self, seconds: float, count: int) -> None:
        """Wait until sites have sent so many whole replies since the last time, but not longer than this."""
        with self._arrival:
            self._arrival.wait_for(lambda: self._replies >= max(1, count), seconds)
            self._replies = 0

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(10.0)
        self._socket.close()

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(self._main)
        loop.close()

    async def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await self._accept_each(loop)
        finally:
            tasks = list(self._open)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.05)  # transports close in the loop's next turns

    async def _accept_each(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except OSError:  # out of descriptors, or the caller is gone already
                await asyncio.sleep(0.1)
                continue
            if len(self._open) >= self._most and not self._make_room():
                accepted.close()
                continue
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            mine = [accepted]
            task = loop.create_task(self._connection(loop, mine))
            self._open[task] = False
            task.add_done_callback(lambda done, mine=mine: self._ended(done, mine))  # type: ignore[misc]  # a default binds the loop's variable

    def _ended(self, task: "asyncio.Task[None]", unused: list[socket.socket]) -> None:
        self._open.pop(task, None)
        for accepted in unused:  # its task was ended before it began
            accepted.close()

    def _make_room(self) -> bool:
        """End the oldest connection that has shown no key."""
        for task, known in self._open.items():
            if not known:
                task.cancel()
                del self._open[task]
                return True
        return False

    async def _connection(self, loop: asyncio.AbstractEventLoop, mine: list[socket.socket]) -> None:
        accepted = mine.pop()
        reader = asyncio.StreamReader(limit=1 << 16)
        protocol = asyncio.StreamReaderProtocol(reader)
        timeout = None if self._context is None else HANDSHAKE
        try:
            transport, _ = await asyncio.wait_for(
                loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._context, ssl_handshake_timeout=timeout),
                HANDSHAKE + 1.0,
            )
        except (OSError, TimeoutError, asyncio.CancelledError):
            accepted.close()
            return
        client = Peer(h11.SERVER, reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        upstream = Upstream(self._upstream_port, self._upstream_context)
        try:
            await self._requests(client, upstream)
        except (OSError, TimeoutError, EOFError, h11.ProtocolError, asyncio.CancelledError):
            pass
        finally:
            transport.abort()
            upstream.close()

    async def _requests(self, client: Peer, upstream: Upstream) -> None:
        key: bytes | None = None
        replied, asked = False, None
        while client.http.our_state is h11.IDLE:
            try:
                request = await within(IDLE if key else HEADER, client.event())
                if not isinstance(request, h11.Request):
                    return
                path, headers = self._admitted(request), dict(request.headers)
                key = self._signer(headers, key)
                if (task := asyncio.current_task()) in self._open:
                    self._open[task] = True
                body = await within(BODY, client.body(self._largest + 1024 if path.endswith("-object") else MAX_BODY))
                if not self._is_lawful(path, body):
                    raise Refused(400, "this is not a message that a site sends")
                if replied and path == PULL:
                    with self._arrival:
                        self._replies += 1
                        self._arrival.notify_all()
                replied = path == PUSH or (replied and path != PULL)
                if path == PULL:
                    if asked is self._news:  # nothing can be there that was not there before
                        with contextlib.suppress(TimeoutError):
                            await within(HOLD, asked.wait())
                        if client.reader.at_eof():
                            return
                    asked = self._news
                status, answer = await upstream.ask(path, [pair for pair in headers.items() if pair[0] in PASSED_ON], body)
            except Refused as refused:
                await within(HEADER, client.answer(refused.status, refused.body, b"application/json", last=True))
                return
            await within(BODY, client.answer(status, answer, b"application/protobuf" if status == 200 else b"application/json"))
            client.http.start_next_cycle()

    def _admitted(self, request: h11.Request) -> str:
        path = request.target.decode("ascii", "replace")
        if request.method != b"POST" or path not in PATHS:
            raise Refused(404, "there is nothing here")
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            raise Refused(411, "a request says how long it is")
        if sum(len(name) + len(value) for name, value in request.headers) > MAX_HEADER:
            raise Refused(431, f"headers may have {MAX_HEADER} bytes here")
        return path

    def _signer(self, headers: dict[bytes, bytes], before: bytes | None) -> bytes:
        """The key that a request bears. The SuperLink checks every signature; here the first one on a connection is checked."""
        try:
            pem = base64.b64decode(headers[KEY], validate=True)
            if before is not None and pem != before:
                raise Refused(403, "one connection, one key")
            if pem not in self.registered:
                raise Refused(403, "this key is not registered here", code=4403)
            if before is None:
                stamp = headers[TIMESTAMP]
                age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
                key = serialization.load_pem_public_key(pem)
                if not isinstance(key, ec.EllipticCurvePublicKey) or not abs(age) < CLOCKS:
                    raise Refused(401, "the clocks differ by more than five minutes")
                key.verify(base64.b64decode(headers[SIGNATURE], validate=True), stamp, ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error, InvalidSignature):
            raise Refused(401, "this request is not signed as it must be") from None
        return pem


def _server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"{certificate} and {key} cannot be used: {error.strerror or error}.") from None
    return context


def _listen(host: str, port: int, insecure: bool) -> socket.socket:
    if insecure and host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidConfig(f"{host}: without TLS the server listens on this machine only; leave the address out, or use TLS.")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        raise InvalidConfig(f"{host}:{port} cannot be listened on: {error.strerror}.") from None
    listener.setblocking(False)
    return listener
