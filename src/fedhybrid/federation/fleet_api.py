"""The two ends of Flower's HTTP protocol, and the only file that uses what Flower calls internal: hence one pinned version.

`DirectSite` is a site's long-lived connection to the Fleet API. It asks often and answers in its own process, from its own installation;
code that the server ships is never even fetched. `Run` is the server's end: the Grid of one run, held by the process that made it.
"""

import contextlib
import logging
import random
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import DecodeError

from fedhybrid.clients.flower import RECORD, client_app
from fedhybrid.federation import keys
from fedhybrid.federation.connection import (
    NOT_REGISTERED,
    NodeMemory,
    error_code,
    is_final,
    is_loopback,
    only_user,
    refusal_of,
    trusting,
)
from fedhybrid.federation.link import Answer
from fedhybrid.federation.schema import host_of
from fedhybrid.status import InvalidConfig

HEARTBEAT, BEAT = 10.0, 4.0  # the shortest interval that Flower takes: a silent site counts as away after twice that; how often we send
FIRST_PAUSE, LAST_PAUSE = 0.01, 0.25
FIRST_BACKOFF, LAST_BACKOFF = 0.25, 8.0
REQUEST, OBJECT = 15.0, 30.0  # seconds for one request; for an object whose message is here already
APP = Path(__file__).parent / "app"
log = logging.getLogger(__name__)


class Unavailable(Exception):
    """What was announced did not arrive in time."""


class DirectSite:
    """A site that asks the SuperLink at `address` ("host:port") for questions, and answers them in this process.

    `ca`: the authority's certificate; None: no TLS, to an address on this machine only. `key`: the site's private key file.
    `memory`: a file that remembers the node id. With it a killed site is let in again at once; without, after 20 seconds. It also
    keeps a second process from using the same key. `patience`: seconds without a connection after which to give up; None: never.
    """

    def __init__(
        self, address: str, ca: str | Path | None, key: str | Path, *, memory: str | Path | None = None, patience: float | None = None
    ) -> None:
        self.address, self.patience = address, patience
        self._key = keys.private_key(key)
        self._memory = None if memory is None else Path(memory)
        self._context = None if ca is None else trusting(ca)
        if not is_loopback(host_of(address)) and ca is None:
            raise InvalidConfig(f"{address}: without a CA certificate nothing is encrypted, which is allowed on this machine only.")
        self.connected = threading.Event()

    def serve(self, answer: Answer, stop: threading.Event | None = None) -> None:
        """Answer questions until `stop` is set. Raises ConnectionRefused where trying again is no use."""
        stop, app, failures = stop or threading.Event(), client_app(answer), 0
        with only_user(self._memory) as memory:
            since = time.monotonic()
            while not stop.is_set():
                try:
                    with self._session(memory, stop) as session:
                        failures = 0
                        while not stop.is_set():
                            session.answer_next(app, stop)
                            since = time.monotonic()
                except (httpx.HTTPError, Unavailable, ValueError) as error:  # a ValueError where what came is no message of Flower's
                    self.connected.clear()
                    refusal = refusal_of(error, self.address, self._context is None, time.monotonic() - since)
                    log.info("%s", refusal)
                    if is_final(error) or (self.patience is not None and time.monotonic() - since > self.patience):
                        raise refusal from None
                    stop.wait(min(FIRST_BACKOFF * 2**failures, LAST_BACKOFF) * random.uniform(0.5, 1.0))
                    failures = min(failures + 1, 10)

    @contextlib.contextmanager
    def _session(self, memory: NodeMemory, stop: threading.Event) -> Iterator["_Session"]:
        scheme = "http" if self._context is None else "https"
        client = FleetHttpClient(f"{scheme}://{self.address}", interceptors=[NodeAuthHttpInterceptor(self._key, self._key.public_key())])
        _replace_transport(client, self._context or False, trust_env=True)
        with client:
            if (left_over := memory.node_id) is not None:
                with contextlib.suppress(httpx.HTTPStatusError):  # this site's own last connection, if the SuperLink still has it
                    client.DeactivateNode(DeactivateNodeRequest(node_id=left_over))
            request = ActivateNodeRequest(public_key=keys.public_pem(self._key), heartbeat_interval=HEARTBEAT)
            session = _Session(client, Node(node_id=client.ActivateNode(request).node_id))
            memory.keep(session.node.node_id)
            self.connected.set()
            session.heart.start()
            try:
                yield session
            finally:
                session.over.set()
                self.connected.clear()
                if stop.is_set():  # else the connection is lost, and the next one begins by this
                    with contextlib.suppress(httpx.HTTPError):
                        client.DeactivateNode(DeactivateNodeRequest(node_id=session.node.node_id))


class _Session:
    """A connection while it lasts. Any failed request ends it; the next one's activation tells the server what may be lost."""

    def __init__(self, client: FleetHttpClient, node: Node) -> None:
        self.client, self.node, self.over, self.pause = client, node, threading.Event(), FIRST_PAUSE
        self.heart = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        while not self.over.wait(BEAT):
            with contextlib.suppress(httpx.HTTPError, RuntimeError):  # what is amiss shows in the next poll
                self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT))

    def answer_next(self, app: Callable[[Message, Context], Message], stop: threading.Event) -> None:
        asked = time.monotonic()
        response = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not response.messages_list:
            stop.wait(self.pause)
            held = time.monotonic() - asked > 2 * LAST_PAUSE  # by the front, which answers at once when there is a question
            self.pause = FIRST_PAUSE if held else min(1.3 * self.pause, LAST_PAUSE)
            return
        self.pause = FIRST_PAUSE
        message = message_from_proto(response.messages_list[0])
        run = message.metadata.run_id
        with _unless_run_is_over():
            try:
                record = _Object(run, _leaf(response.message_object_trees[0])).wait_for(self.client, self.node, stop)
                question = make_message(message.metadata, RecordDict({RECORD: record}))
                reply = app(question, Context(run, self.node.node_id, {}, RecordDict(), {}))
            except (httpx.HTTPError, Unavailable):
                raise
            except Exception as error:  # a malformed question, or a mistake in `answer`: the server is told so, and no data
                reply = Message(Error(code=0, reason=f"the site could not answer: {type(error).__name__}"), reply_to=message)
            self._push(reply)
            confirmation = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=message.metadata.message_id)
            self.client.ConfirmMessageReceived(confirmation)

    def _push(self, reply: Message) -> None:
        proto, tree, objects = _taken_apart(reply)
        request = PushMessagesRequest(node=self.node, messages_list=[proto], message_object_trees=[tree], clientapp_runtime_list=[0.0])
        _push_objects(self.client, self.node, reply.metadata.run_id, objects, self.client.PushMessages(request))


class Run(HttpGrid):
    """The Grid of one run of the SuperLink at `address`, which this process has started and executes itself.

    `sites`: public keys (PEM) by name; they are registered. No wait is longer than one request; a SuperLink that does not answer is a
    ConnectionError, after which `start` makes a new run. `fab`: the app that stock nodes run.
    """

    def __init__(self, address: str, ca: Path | None, secret: bytes, sites: Mapping[str, bytes], fab: bytes | None = None) -> None:
        super().__init__(address, ca is None, token="none yet")
        self._verify: ssl.SSLContext | bool = False if ca is None else trusting(ca)
        self._secret, self._sites, self._fab = secret, dict(sites), fab or app_bundle()
        self._coming: dict[str, _Object] = {}  # replies that were announced, by the question's id
        self._taken: list[str] = []  # replies that may be deleted
        self._is_over = False
        self._over, self._lock = threading.Event(), threading.RLock()

    def start(self) -> None:
        with self._lock, _as_connection_error():
            self._close_client()
            version = RuntimeVersionHttpInterceptor("fedhybrid")
            with self._connection(ControlHttpClient, [version]) as control:
                for name, key in self._sites.items():
                    with contextlib.suppress(httpx.HTTPStatusError):  # registered already; if it were refused, it could not connect
                        control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
                run_id = control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", self._fab, {})))).run_id
            acquire = SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"})
            with self._connection(RuntimeHttpClient, [version, acquire]) as client:
                acquired = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if acquired.task.run_id != run_id:
                raise ConnectionError("the SuperLink has runs that are not ours: is another server using it?")
            self._client = self._connection(RuntimeHttpClient, [version, RuntimeTokenHttpInterceptor(acquired.token)])
            task = self._client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, task.run.run_id, task.context.node_id
            self.set_run(run_from_proto(task.run))
            self._coming.clear()
            self._taken.clear()
            self._is_over = False
            self._over = threading.Event()
            threading.Thread(target=self._beat, args=(self._client, self._over), daemon=True).start()

    def finish(self) -> None:
        """End the run, so that stock nodes forget it."""
        with self._lock, contextlib.suppress(httpx.HTTPError, RuntimeError):
            if self._client is not None:
                self._client.PushTaskOutput(PushTaskOutputRequest(sub_status="completed", details=""))
        self._close_client()

    def get_nodes(self) -> Iterable[Any]:
        with self._lock, self._renewed_if_over():
            return super().get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """The ids of the messages, in order; "" for a node that is not there any more."""
        protos, trees, objects = zip(*[_taken_apart(message) for message in messages], strict=True)
        request = PushAppMessagesRequest(messages_list=protos, message_object_trees=trees)
        with self._lock, self._renewed_if_over():
            response = self._runtime_client.PushMessages(request)
            every = sorted((item for message in objects for item in message), key=lambda item: item[0])
            _push_objects(self._runtime_client, self.node, self.run.run_id, every, response)
            return list(response.message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are complete; those that are still being uploaded come in a later call, or as errors."""
        wanted = set(message_ids)
        with self._lock, self._renewed_if_over():
            while self._taken:  # here, and not at once, for now the sites are at work
                taken = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=self._taken.pop())
                self._runtime_client.ConfirmMessageReceived(taken)
            for stale in self._coming.keys() - wanted:
                del self._coming[stale]
            replies: list[Message] = []
            if wanted - self._coming.keys():
                response = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=wanted - self._coming.keys()))
                for proto, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                    message = message_from_proto(proto)
                    if message.has_error():
                        replies.append(message)
                    else:
                        with contextlib.suppress(ValueError):  # not of the form that the front lets through
                            self._coming[message.metadata.reply_to_message_id] = _Object(self.run.run_id, _leaf(tree), message)
            for question, coming in list(self._coming.items()):
                reply = coming.reply(self._runtime_client, self.node)
                if reply is not None:
                    del self._coming[question]
                    self._taken.append(coming.message_id)
                    replies.append(reply)
            return replies

    @contextlib.contextmanager
    def _renewed_if_over(self) -> Iterator[None]:
        """After a call that the SuperLink refused because the run is over (our heartbeat lapsed), the next one starts a new run."""
        if self._is_over:
            self.start()
        with _as_connection_error():
            try:
                yield
            except httpx.HTTPStatusError as error:
                self._is_over = error.response.status_code in (401, 403)
                raise

    def _beat(self, client: RuntimeHttpClient, over: threading.Event) -> None:
        while not over.wait(BEAT):
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def _connection(self, kind: Any, interceptors: list[Any]) -> Any:
        client = kind(f"{'https' if self._verify else 'http'}://{self._addr}", interceptors=interceptors)
        _replace_transport(client, self._verify, trust_env=False)
        return client

    def _connect(self) -> None:
        raise ConnectionError("the run has not been started")

    def _close_client(self) -> None:
        self._over.set()
        if self._client is not None:
            self._client.close()
            self._client = None


class _Object:
    """The one object of a message that holds bytes. Only it is fetched: the message's metadata has come with its announcement."""

    def __init__(self, run: int, identity: str, message: Message | None = None) -> None:
        self.run, self.identity, self.message, self.until = run, identity, message, time.monotonic() + OBJECT

    @property
    def message_id(self) -> str:
        return "" if self.message is None else str(self.message.metadata.message_id)

    def fetch(self, client: Any, node: Node) -> ConfigRecord | None:
        response = client.PullObject(PullObjectRequest(node=node, run_id=self.run, object_id=self.identity))
        if response.object_found and response.object_available:
            return ConfigRecord.inflate(response.object_content)
        if not response.object_found or time.monotonic() > self.until:
            raise Unavailable("a message was announced and did not arrive")
        return None

    def wait_for(self, client: Any, node: Node, stop: threading.Event) -> ConfigRecord:
        while (record := self.fetch(client, node)) is None:
            if stop.wait(FIRST_PAUSE):
                raise Unavailable("stopped")
        return record

    def reply(self, client: Any, node: Node) -> Message | None:
        assert self.message is not None
        try:
            record = self.fetch(client, node)
            if record is None:
                return None
            return make_message(self.message.metadata, RecordDict({RECORD: record}))
        except httpx.HTTPError:
            raise
        except Exception as error:  # bytes from a site that are no record
            return make_message(self.message.metadata, error=Error(code=0, reason=f"unreadable: {type(error).__name__}"))


def app_bundle(files: Mapping[str, bytes] | None = None) -> bytes:
    """The app for stock nodes, as Flower ships it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what Flower calls in another package
        return build_fab_from_files(files or {path.name: path.read_bytes() for path in APP.iterdir() if path.is_file()})[0]


def is_lawful(path: str, body: bytes) -> bool:
    """Whether a Fleet request is one that a site has reason to send: replies in its own name only, and of our one form.

    Flower checks that the requests's node is the one that signs, but not that the reply in it is that node's.
    """
    if path != "/v1/fleet/push-messages":
        return True
    try:
        request = PushMessagesRequest.FromString(body)
        (message,), (tree,) = request.messages_list, request.message_object_trees
        if not message.HasField("error"):
            _leaf(tree)
    except (DecodeError, ValueError):
        return False
    return message.metadata.src_node_id == request.node.node_id


def _taken_apart(message: Message) -> tuple[Any, ObjectTree, list[tuple[int, str, bytes]]]:
    """A message's metadata, the tree of its parts, and the parts themselves from the outermost to the bytes: (depth, id, content)."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = reversed(get_all_nested_objects(message).items())
        objects = [(depth, identity, part.deflate()) for depth, (identity, part) in enumerate(parts)]
        return message_to_proto(remove_content_from_message(message)), get_object_tree(message), objects


def _push_objects(client: Any, node: Node, run: int, objects: Iterable[tuple[int, str, bytes]], response: Any) -> None:
    """Upload what is missing, the bytes last: they are all that is fetched, and when they are there the rest is too."""
    missing = set(response.objects_to_push)
    for _, identity, content in objects:
        if identity in missing:
            missing.remove(identity)
            parts = {"object_id": identity, "object_content": content, "session_id": response.session_id}
            client.PushObject(PushObjectRequest(node=node, run_id=run, **parts))


def _leaf(tree: ObjectTree) -> str:
    """Message → RecordDict → ConfigRecord: the id of the last. ValueError for any other shape."""
    (content,) = tree.children
    (record,) = content.children
    if record.children:
        raise ValueError("a record has no parts")
    return str(record.object_id)


def _replace_transport(client: Any, verify: ssl.SSLContext | bool, trust_env: bool) -> None:
    """No redirects, a limit on every wait, and (trust_env=False) no proxy between two processes of one machine."""
    client._client.close()
    client._client = httpx.Client(verify=verify, timeout=REQUEST, follow_redirects=False, trust_env=trust_env)


@contextlib.contextmanager
def _unless_run_is_over() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.FORBIDDEN or error_code(error) == NOT_REGISTERED:
            raise


@contextlib.contextmanager
def _as_connection_error() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, RuntimeError) as error:  # a RuntimeError where another thread has closed the client
        raise ConnectionError(f"the SuperLink did not answer: {error}") from error
