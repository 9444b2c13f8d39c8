"""Who is who: a certificate authority, the server's certificate, and a key pair for every site.

    folder/ca.crt ca.key            signs server.crt; sites are given ca.crt
    folder/server.crt server.key    what the server shows to sites
    folder/sites/NAME NAME.pub      a site's key pair, EC P-384 in OpenSSH format; NAME is carried to the site, NAME.pub stays

A site is registered while its NAME.pub lies here. All files have mode 0600 and folders 0700; nothing is overwritten.
"""

import contextlib
import datetime
import ipaddress
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhybrid.status import InvalidConfig

CA, CA_KEY, SERVER, SERVER_KEY, SITES = "ca.crt", "ca.key", "server.crt", "server.key", "sites"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PEM, OPENSSH = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
PKCS8, PLAIN = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
MAX_KEY_FILE = 1 << 16


def site_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, sorted, if each is allowed and no two differ in case alone."""
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidConfig(f"site name {name!r}: use 1 to 64 letters, digits, hyphens and underscores.")
        if (twin := seen.setdefault(name.casefold(), name)) != name:
            raise InvalidConfig(f"site names {twin!r} and {name!r} differ in case only, which some file systems do not: rename one.")
    return tuple(sorted(seen.values()))


def create(folder: str | Path, sites: Iterable[str] = (), hosts: Iterable[str] = (), days: int = 825) -> None:
    """Make the authority, the server's certificate for `hosts` and this machine itself, and a key pair for every site."""
    folder, names = Path(folder), site_names(sites)
    with _writing(folder):
        for path in (folder, folder / SITES):
            _private_folder(path)
        for name in (CA, CA_KEY, SERVER, SERVER_KEY):
            _refuse_to_overwrite(folder / name)
        authority, key = _authority(days)
        write_private(folder / CA_KEY, key.private_bytes(PEM, PKCS8, PLAIN))
        write_private(folder / CA, authority.public_bytes(PEM))
        _issue(folder / SERVER, folder / SERVER_KEY, authority, key, hosts, days)
        for name in names:
            _write_pair(folder / SITES / name)


def renew_server(folder: str | Path, hosts: Iterable[str] = (), days: int = 825) -> None:
    """A new server certificate from the same authority: sites need nothing new. The old one is replaced."""
    folder = Path(folder)
    with _writing(folder):
        key = serialization.load_pem_private_key(_read(folder / CA_KEY), None)
        authority = x509.load_pem_x509_certificate(_read(folder / CA))
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidConfig(f"{folder / CA_KEY} is not a key that this program made.")
        _issue(folder / SERVER, folder / SERVER_KEY, authority, key, hosts, days, replace=True)


def add_site(folder: str | Path, name: str) -> Path:
    """A key pair for a new site. Returns the private key's path: carry it to the site, and delete it here."""
    folder = Path(folder)
    site_names([*registered(folder), name])
    with _writing(folder):
        _write_pair(folder / SITES / name)
    return folder / SITES / name


def rotate_site(folder: str | Path, name: str) -> Path:
    """A new key pair in the place of a site's old one, which is refused from the server's next start on."""
    path = _known(Path(folder), name)
    with _writing(path.parent):
        _write_pair(path, replace=True)
    return path


def revoke_site(folder: str | Path, name: str) -> None:
    """Remove a site's keys: it is refused from the server's next start on."""
    path = _known(Path(folder), name)
    with _writing(path.parent):
        path.with_name(f"{name}.pub").unlink()
        path.unlink(missing_ok=True)


def registered(folder: str | Path) -> dict[str, bytes]:
    """Every registered site's public key in PEM format, by name, in sorted order."""
    folder = Path(folder) / SITES
    with _writing(folder):
        files = {path.stem: path for path in folder.iterdir() if path.suffix == ".pub"}
    keys = {name: _public_pem(files[name]) for name in site_names(files)}
    owners: dict[bytes, str] = {}
    for name, key in keys.items():
        if (owner := owners.setdefault(key, name)) != name:
            raise InvalidConfig(f"{folder}: {owner} and {name} have the same key; rotate one of them.")
    return keys


def private_key(path: str | Path) -> ec.EllipticCurvePrivateKey:
    """A site's private key. A file that others on the machine can read is refused."""
    path = Path(path)
    data = _read(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InvalidConfig(f"{path}: others on this machine can read this private key. Run: chmod 600 {path}")
    try:
        key = serialization.load_ssh_private_key(data, None)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidConfig(f"{path} is not a private key in OpenSSH format without a passphrase.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InvalidConfig(f"{path} is not an EC P-384 key, which Flower's node authentication needs.")
    return key


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def make_loopback(folder: Path) -> tuple[Path, Path, Path]:
    """A certificate for traffic that stays on this machine, signed by an authority whose key is thrown away: ca, certificate, key.

    So the SuperLink's TLS does not depend on the names in the server's own certificate, nor on its end date.
    """
    authority, key = _authority(days=3650)
    paths = folder / "loopback-ca.crt", folder / "loopback.crt", folder / "loopback.key"
    write_private(paths[0], authority.public_bytes(PEM), replace=True)
    _issue(paths[1], paths[2], authority, key, (), 3650, replace=True)
    return paths


def _authority(days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedHybrid federation CA")])
    builder = _certificate(name, name, key, max(days, 3650)).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)
    return builder.add_extension(usage, critical=True).sign(key, hashes.SHA384()), key


def _issue(
    certificate: Path,
    key_file: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Iterable[str],
    days: int,
    replace: bool = False,
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    names = [_general_name(host) for host in dict.fromkeys((*LOOPBACK, *hosts))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedHybrid server")])
    builder = (
        _certificate(subject, authority.subject, key, days, authority_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    write_private(key_file, key.private_bytes(PEM, PKCS8, PLAIN), replace)
    write_private(certificate, builder.sign(authority_key, hashes.SHA384()).public_bytes(PEM), replace)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks differ
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer_key or key).public_key())
    return (
        x509.CertificateBuilder(
            issuer, subject, key.public_key(), x509.random_serial_number(), start, start + datetime.timedelta(days=days)
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*", host):
        raise InvalidConfig(f"host {host!r} is neither a host name nor an IP address.")
    return x509.DNSName(host)


def _known(folder: Path, name: str) -> Path:
    names = registered(folder)
    if name not in names:
        raise InvalidConfig(f"{folder}: there is no site {name!r} here. There are: {', '.join(names) or 'none'}.")
    return folder / SITES / name


def _public_pem(path: Path) -> bytes:
    try:
        key = serialization.load_ssh_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InvalidConfig(f"{path} is not an EC P-384 public key in OpenSSH format.")
    return key.public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _write_pair(path: Path, replace: bool = False) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_private(path, key.private_bytes(PEM, OPENSSH, PLAIN), replace)
    write_private(path.with_name(f"{path.name}.pub"), public + f" {path.name}\n".encode(), replace)


def write_private(path: Path, data: bytes, replace: bool = False) -> None:
    """Write a private file: all of it or nothing. Where one is already it is left alone, unless it is to be replaced."""
    if not replace:
        _refuse_to_overwrite(path)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if replace:
        os.replace(temporary, path)
    else:
        try:
            os.link(temporary, path)  # unlike a rename, it fails where there is a file
        except FileExistsError:
            _refuse_to_overwrite(path)
        finally:
            temporary.unlink()


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read(MAX_KEY_FILE)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}.") from None


def _private_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InvalidConfig(f"{path}: keys need a folder of their own that nobody else can read. Run: chmod 700 {path}, or name a new one.")


def _refuse_to_overwrite(path: Path) -> None:
    if os.path.lexists(path):
        raise InvalidConfig(f"{path} is there already, and keys are never overwritten: name another folder, or rotate the key.")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidConfig(f"{error.filename or folder}: {error.strerror}.") from None
