"""Why there is no connection, in sentences; whom a site trusts; and its node's id, kept from one process to the next."""

import contextlib
import fcntl
import ipaddress
import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx

from fedhybrid.federation.link import ConnectionRefused
from fedhybrid.status import InvalidConfig

NOT_REGISTERED, TOO_EARLY = 4403, 2004  # our front's code, and Flower's


def trusting(ca: str | Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"{ca} cannot be used as the CA certificate: {error.strerror or error}.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class NodeMemory:
    """The node id of this site's last connection; in a locked file too, if there is one, for the next process."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor
        text = b"" if descriptor is None else os.pread(descriptor, 32, 0).strip()
        self.node_id = int(text) if text.isdigit() else None

    def keep(self, node_id: int) -> None:
        self.node_id = node_id
        if self.descriptor is not None:
            os.pwrite(self.descriptor, b"%-24d" % node_id, 0)


@contextlib.contextmanager
def only_user(path: Path | None) -> Iterator[NodeMemory]:
    if path is None:
        yield NodeMemory(None)
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield NodeMemory(descriptor)
    except BlockingIOError:
        raise ConnectionRefused(f"{path} is in use: this site is running already on this machine.") from None
    finally:
        os.close(descriptor)


def error_code(error: Exception) -> int | None:
    """The number that Flower, or our front, gives an error."""
    if isinstance(error, httpx.HTTPStatusError):
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            code = json.loads(error.response.text).get("code")
            return code if isinstance(code, int) else None
    return None


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def is_final(error: Exception) -> bool:
    """Whether it is no use to try again: the key is not registered, or TLS was refused while it was set up."""
    tls = _tls_error(error) if isinstance(error, httpx.ConnectError) else None
    return (tls is not None and not _is_cut_off(tls)) or error_code(error) == NOT_REGISTERED


def _is_cut_off(tls: ssl.SSLError) -> bool:
    return isinstance(tls, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "UNEXPECTED_EOF" in str(tls)


def refusal_of(error: Exception, address: str, insecure: bool, seconds: float) -> ConnectionRefused:
    """Why there is no connection, in a sentence."""
    tls, text = _tls_error(error), str(error)
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
    if isinstance(tls, ssl.SSLCertVerificationError):
        known = {
            9: "the server's certificate is not valid yet: check this machine's clock",
            10: "the server's certificate has expired: it needs a new one (fedhybrid federation renew)",
            62: "the server's certificate is for other host names: use one of them, or have one issued for this name",
            64: "the server's certificate is for other addresses: use its host name, or have one issued for this address",
        }
        why = known.get(tls.verify_code, "the server's certificate was not signed by the given CA: is ca.crt this federation's?")
    elif tls is not None and _is_cut_off(tls):
        why = "the server hung up while TLS was set up: is it the right port, does it speak TLS? It is tried again"
    elif tls is not None and any(word in str(tls) for word in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER", "PACKET_LENGTH")):
        why = "the server does not speak TLS there: is it the right port?"
    elif tls is not None and ("PROTOCOL" in str(tls) or "VERSION" in str(tls)):
        why = "the server offers no TLS version from 1.2 on"
    elif tls is not None:
        why = f"TLS could not be set up ({tls.reason or tls})"
    elif error_code(error) == NOT_REGISTERED:
        why = "this site's key is not registered there, or it was revoked: ask for its registration"
    elif error_code(error) == TOO_EARLY:
        why = "this site's last connection has not lapsed yet, or another process uses the same key; it is tried again"
    elif status == httpx.codes.UNAUTHORIZED:
        why = "the server no longer knows this connection, or the clocks differ by more than five minutes; it is tried again"
    elif status is not None:
        why = f"the server answered with status {status}; it is tried again"
    elif insecure and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        why = "the server hung up: if it speaks TLS, give its CA certificate"
    else:
        why = f"no connection ({text or type(error).__name__}); it is tried again"
    return ConnectionRefused(f"{address}: {why}{f' (for {seconds:.0f} s)' if seconds >= 1 else ''}.")
