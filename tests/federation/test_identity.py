"""Who is let in: TLS and keys in every wrong combination, a stranger with the CA's certificate, and a site that is not honest."""

import base64
import contextlib
import datetime
import socket
import ssl
import threading
import time
import warnings

import httpx
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

from fedhybrid.federation import keys
from fedhybrid.federation.fleet_api import is_lawful
from fedhybrid.federation.front import PATHS, Front
from fedhybrid.federation.link import ConnectionRefused
from tests.federation.conftest import NAMES, wait_until


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    """A federation with another authority, and a site of the same name as one of ours."""
    folder = tmp_path_factory.mktemp("other") / "federation"
    keys.create(folder, NAMES)
    return folder


@contextlib.contextmanager
def another_front(running, certificate, **options):
    """The same SuperLink behind a front of another make."""
    server = running.server
    front = Front("127.0.0.1", 0, (server._inner, server._ca), certificate, server.front.registered, is_lawful, **options)
    front.start()
    try:
        yield front
    finally:
        front.close()


def refused(site, sentence):
    with pytest.raises(ConnectionRefused, match=sentence):
        site.serve(lambda question: question)


def signed(key, stamp=None):
    """The headers of a request that the owner of `key` signs."""
    stamp = stamp or datetime.datetime.now(datetime.UTC).isoformat()
    return {
        "flwr-public-key": base64.b64encode(keys.public_pem(key)).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
        "content-type": "application/protobuf",
        "accept": "application/protobuf",
    }


def client(running):
    context = ssl.create_default_context(cafile=running.folder / keys.CA)
    return httpx.Client(base_url=f"https://{running.address}", verify=context, timeout=20.0, trust_env=False)


def test_a_site_without_tls_is_refused_at_a_tls_port(running):
    refused(running.site(NAMES[0], ca=None, patience=0.5), "if it speaks TLS, give its CA certificate")


def test_a_site_with_tls_is_refused_at_a_port_without(running):
    with another_front(running, None) as front:
        refused(running.site(NAMES[0], address=f"127.0.0.1:{front.port}", patience=3.0), "does it speak TLS")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_an_old_tls_version_is_refused(running, version):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(running.folder / keys.CA)
        context.set_ciphers("ALL:@SECLEVEL=0")  # else this end would not even offer it
        context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", running.server.port), 10) as plain,
        pytest.raises(ssl.SSLError, match=r"VERSION|PROTOCOL|EOF"),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_newer_tls_version_is_accepted(running, version):
    context = ssl.create_default_context(cafile=running.folder / keys.CA)
    context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", running.server.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="::1") as tls,
    ):
        assert tls.version() == version.name.replace("_", ".")


def test_a_server_of_another_authority_is_refused(running, another):
    refused(running.site(NAMES[0], ca=another / keys.CA), "not signed by the given CA")


def test_a_server_whose_certificate_has_expired_is_refused(running, tmp_path, monkeypatch):
    keys.create(tmp_path / "old", NAMES)
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=100)
    monkeypatch.setattr(keys.datetime, "datetime", type("Then", (datetime.datetime,), {"now": classmethod(lambda cls, zone: start)}))
    keys.renew_server(tmp_path / "old", days=30)
    monkeypatch.undo()
    with another_front(running, (tmp_path / "old" / keys.SERVER, tmp_path / "old" / keys.SERVER_KEY)) as front:
        site = running.site(NAMES[0], ca=tmp_path / "old" / keys.CA, address=f"127.0.0.1:{front.port}")
        refused(site, "has expired")


def test_a_certificate_for_another_host_is_refused(running, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "LOOPBACK", ())
    keys.create(tmp_path / "far", (), ["fl.example.org", "10.9.8.7"])
    with another_front(running, (tmp_path / "far" / keys.SERVER, tmp_path / "far" / keys.SERVER_KEY)) as front:
        refused(running.site(NAMES[0], ca=tmp_path / "far" / keys.CA, address=f"localhost:{front.port}"), "other host names")
        refused(running.site(NAMES[0], ca=tmp_path / "far" / keys.CA, address=f"127.0.0.1:{front.port}"), "other addresses")


def test_a_key_that_is_not_registered_is_refused(running, another):
    refused(running.site(NAMES[0], key=another / keys.SITES / NAMES[0]), "key is not registered there, or it was revoked")


def test_a_revoked_key_is_refused_while_the_server_runs(running):
    front = running.server.front
    before, revoked = front.registered, keys.registered(running.folder)[NAMES[2]]
    ended = []

    def serve():
        try:
            running.site(NAMES[2]).serve(lambda question: question)
        except ConnectionRefused as refusal:
            ended.append(str(refusal))

    thread = threading.Thread(target=serve)
    thread.start()
    wait_until(lambda: NAMES[2] in running.server.link.present(), "site present")
    front.registered = before - {revoked}
    try:
        thread.join(30)
    finally:
        front.registered = before
    assert len(ended) == 1
    assert "it was revoked" in ended[0]


def test_no_key_at_all_is_refused(running):
    with client(running) as stranger:
        for path in PATHS:
            answer = stranger.post(path, content=b"")
            assert answer.status_code == 401, path
            assert answer.json()["detail"] == "this request is not signed as it must be"


def test_the_key_of_another_site_opens_nothing_without_its_private_half(running):
    mine, theirs = (keys.private_key(running.folder / keys.SITES / name) for name in NAMES[:2])
    headers = signed(mine) | {"flwr-public-key": signed(theirs)["flwr-public-key"]}
    body = ActivateNodeRequest(public_key=keys.public_pem(theirs), heartbeat_interval=10.0).SerializeToString()
    with client(running) as stranger:
        answer = stranger.post("/v1/fleet/activate-node", content=body, headers=headers)
        assert (answer.status_code, answer.json()["detail"]) == (401, "this request is not signed as it must be")
        # Signed as it must be, for a node that is another's: the SuperLink refuses.
        assert stranger.post("/v1/fleet/activate-node", content=body, headers=signed(mine)).status_code == 401


def test_an_old_signature_is_refused(running):
    key = keys.private_key(running.folder / keys.SITES / NAMES[0])
    for minutes in (-6, 6):
        stamp = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)).isoformat()
        with client(running) as replayer:
            answer = replayer.post("/v1/fleet/activate-node", headers=signed(key, stamp))
            assert (answer.status_code, answer.json()["detail"]) == (401, "the clocks differ by more than five minutes")


def test_a_stranger_with_the_certificate_of_the_authority_can_do_nothing(running, another):
    elsewhere = [
        "/",
        "/docs",
        "/openapi.json",
        "/health",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
    ]
    elsewhere += [
        f"/v1/control/{name}" for name in ("start-run", "register-node", "list-nodes", "list-runs", "stop-run", "list-federations")
    ]
    elsewhere += [f"/v1/runtime/{name}" for name in ("acquire-task", "get-nodes", "push-messages", "pull-messages", "create-task")]
    elsewhere += [
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "//v1/control/list-runs",
        "/V1/FLEET/ACTIVATE-NODE",
    ]
    elsewhere += [
        "/v1/fleet/activate-node?x=/v1/control/list-runs",
        "/v1/fleet/activate-node/",
        "/v1/fleet/activate-node/../../control/start-run",
    ]
    nodes = {node.node_id for node in running.server.run.get_nodes()}
    own, registered = (keys.private_key(folder / keys.SITES / NAMES[0]) for folder in (another, running.folder))
    for key in (None, own, registered):  # even a site that is registered may ask for nothing else
        headers = {} if key is None else signed(key)
        for path in elsewhere:
            for method in ("POST", "GET"):
                answer = raw(running, method, path, headers)
                assert answer.startswith(b"HTTP/1.1 404 "), (path, answer[:100])
                assert b"there is nothing here" in answer
    body = RegisterNodeFleetRequest(public_key=keys.public_pem(own)).SerializeToString()
    with client(running) as stranger:
        for path in PATHS:
            answer = stranger.post(path, content=body, headers=signed(own))
            assert (answer.status_code, answer.json()["code"]) == (403, 4403)
            assert answer.json()["detail"] == "this key is not registered here"
    assert {node.node_id for node in running.server.run.get_nodes()} == nodes


def raw(running, method, path, headers):
    """A request whose path no library has tidied up."""
    context = ssl.create_default_context(cafile=running.folder / keys.CA)
    lines = [f"{method} {path} HTTP/1.1", "host: x", "content-length: 0", *(f"{name}: {value}" for name, value in headers.items())]
    with (
        socket.create_connection(("127.0.0.1", running.server.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        tls.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while part := tls.recv(4096):
            answer += part
    return answer


def test_smuggled_and_malformed_requests_are_cut_off(running):
    key = keys.private_key(running.folder / keys.SITES / NAMES[0])
    head = "".join(f"{name}: {value}\r\n" for name, value in signed(key).items())
    start = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n{head}"
    context = ssl.create_default_context(cafile=running.folder / keys.CA)
    for request in (
        start + "content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        start + "content-length: -1\r\n\r\n",
        start + "content-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nPOST /v1/control/list-runs HTTP/1.1\r\nhost: x\r\n\r\n",
        start + "content-length: 8796093022208\r\n\r\n" + "x" * 100_000,
        start + "x: " + "y" * 40_000 + "\r\n\r\n",
        "GET / HTTP/0.9\r\n\r\n",
        "\x16\x03\x01 rubbish\r\n\r\n" * 10,
    ):
        plain, answer = socket.create_connection(("127.0.0.1", running.server.port), 10), b""
        with plain, context.wrap_socket(plain, server_hostname="localhost") as tls, contextlib.suppress(ConnectionError, ssl.SSLError):
            tls.sendall(request.encode())
            while part := tls.recv(4096):
                answer += part
        assert b" 200 " not in answer, request[:200]
        assert b"run" not in answer, request[:200]


def test_a_body_that_is_too_long_is_refused_before_it_has_been_read(running):
    with another_front(running, None, largest=1 << 16) as front:
        key = keys.private_key(running.folder / keys.SITES / NAMES[0])
        with httpx.Client(base_url=f"http://127.0.0.1:{front.port}", trust_env=False) as site:
            answer = site.post("/v1/fleet/push-object", content=bytes(1 << 17), headers=signed(key))
            assert answer.status_code == 413
            assert site.post("/v1/fleet/push-messages", content=bytes(1 << 15), headers=signed(key)).status_code == 413


def test_idle_and_slow_strangers_do_not_keep_a_site_out(running):
    with another_front(running, None, connections=8) as front, contextlib.ExitStack() as stack:
        for number in range(40):
            idler = stack.enter_context(socket.create_connection(("127.0.0.1", front.port), 10))
            if number % 2:
                idler.sendall(b"POST /v1/fleet/pull")
        stop = threading.Event()
        site = running.site(NAMES[1], ca=None, address=f"127.0.0.1:{front.port}")
        thread = threading.Thread(target=site.serve, args=(lambda question: question[::-1], stop))
        thread.start()
        wait_until(site.connected.is_set, "site connected", 20)
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", front.port), 10))
        started = time.monotonic()
        answers = running.ask({NAMES[1]: b"through"})
        assert answers == {NAMES[1]: b"hguorht"}
        assert time.monotonic() - started < 10
        assert len(front._open) <= 8
        stop.set()
        thread.join(20)


def test_a_site_may_reply_in_its_own_name_only_and_in_one_form():
    def request(source=7, node=7, tree=None, messages=1, **error):
        tree = tree or ObjectTree(object_id="m", children=[ObjectTree(object_id="d", children=[ObjectTree(object_id="c")])])
        message = Message(metadata=Metadata(src_node_id=source), **error)
        made = PushMessagesRequest(node=Node(node_id=node), messages_list=[message] * messages, message_object_trees=[tree] * messages)
        return is_lawful("/v1/fleet/push-messages", made.SerializeToString())

    wide = ObjectTree(object_id="m", children=[ObjectTree(object_id=str(number)) for number in range(100)])
    deep = ObjectTree(object_id="leaf")
    for _ in range(50):
        deep = ObjectTree(object_id="m", children=[deep])
    assert request()
    assert request(tree=ObjectTree(object_id="m"), error=Error(code=1))
    assert not request(source=8)
    assert not request(messages=0)
    assert not request(messages=2)
    assert not request(tree=wide)
    assert not request(tree=deep)
    assert not request(tree=ObjectTree(object_id="m"))
    assert not is_lawful("/v1/fleet/push-messages", b"\xff\xff rubbish")
