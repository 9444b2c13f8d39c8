"""Keys: made once, private, never overwritten; names that cannot leave the folder."""

import os
import ssl
import stat

import pytest

pytest.importorskip("flwr")

from fedhybrid.federation import keys
from fedhybrid.status import InvalidConfig


@pytest.fixture
def folder(tmp_path):
    keys.create(tmp_path / "federation", ["a", "B"], ["fl.example.org", "10.0.0.7"])
    return tmp_path / "federation"


def test_files_are_private_and_folders_too(folder):
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        *("ca.crt", "ca.key", "server.crt", "server.key"),
        *("sites/a", "sites/a.pub", "sites/B", "sites/B.pub"),
    }
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_server_certificate_names_its_hosts_and_is_signed_by_the_authority(folder):
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    assert context.verify_mode is ssl.CERT_REQUIRED
    names = ssl._ssl._test_decode_cert(str(folder / "server.crt"))["subjectAltName"]
    assert ("DNS", "localhost") in names
    assert ("DNS", "fl.example.org") in names
    assert ("IP Address", "127.0.0.1") in names
    assert ("IP Address", "10.0.0.7") in names
    assert ("IP Address", "0:0:0:0:0:0:0:1") in names


def test_a_private_key_belongs_to_its_registered_public_key(folder):
    known = keys.registered(folder)
    assert list(known) == ["B", "a"]
    assert keys.public_pem(keys.private_key(folder / "sites" / "a")) == known["a"]


def test_nothing_is_overwritten(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InvalidConfig, match="never overwritten"):
        keys.create(folder, ["c"])
    with pytest.raises(InvalidConfig, match="never overwritten"):
        keys.add_site(folder, "a")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_rotated_key_is_another_and_a_revoked_one_is_gone(folder):
    before = keys.registered(folder)
    keys.rotate_site(folder, "a")
    keys.revoke_site(folder, "B")
    after = keys.registered(folder)
    assert list(after) == ["a"]
    assert after["a"] != before["a"]
    assert keys.public_pem(keys.private_key(folder / "sites" / "a")) == after["a"]
    keys.add_site(folder, "B")
    assert keys.registered(folder)["B"] != before["B"]


def test_a_renewed_server_certificate_is_of_the_same_authority(folder):
    ca, before = (folder / "ca.crt").read_bytes(), (folder / "server.crt").read_bytes()
    keys.renew_server(folder, ["new.example.org"])
    assert (folder / "ca.crt").read_bytes() == ca
    assert (folder / "server.crt").read_bytes() != before


@pytest.mark.parametrize("name", ["", "../x", "/etc/x", "a/b", "a\0b", "~", ".", "a b", "x" * 65, "ü", "a\n", "$(x)", "A.pub"])
def test_a_name_outside_the_allowed_letters_is_refused(tmp_path, name):
    with pytest.raises(InvalidConfig, match="letters, digits"):
        keys.create(tmp_path / "federation", ["fine", name])
    assert not list(tmp_path.rglob("*.key"))


def test_names_that_differ_in_case_only_are_refused(folder):
    with pytest.raises(InvalidConfig, match="case only"):
        keys.add_site(folder, "b")
    with pytest.raises(InvalidConfig, match="case only"):
        keys.create(folder.parent / "other", ["Ward", "ward"])


@pytest.mark.parametrize("host", ["", "a b", "http://x", "x" * 300, "a..b", "*.example.org"])
def test_a_host_that_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(InvalidConfig, match="neither a host name"):
        keys.create(tmp_path / "federation", [], [host])


def test_a_folder_that_others_can_read_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(InvalidConfig, match="chmod 700"):
        keys.create(tmp_path / "open")


def test_a_key_that_others_can_read_is_refused(folder):
    os.chmod(folder / "sites" / "a", 0o640)
    with pytest.raises(InvalidConfig, match="chmod 600"):
        keys.private_key(folder / "sites" / "a")


def test_what_is_no_key_is_refused_with_a_sentence(folder):
    (folder / "sites" / "a").write_bytes(b"-----BEGIN OPENSSH PRIVATE KEY-----\nrubbish\n")
    with pytest.raises(InvalidConfig, match="not a private key in OpenSSH format"):
        keys.private_key(folder / "sites" / "a")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        keys.private_key(folder / "sites" / "none")
    (folder / "sites" / "a.pub").write_bytes(b"ssh-rsa AAAA")
    with pytest.raises(InvalidConfig, match=r"a\.pub is not an EC P-384"):
        keys.registered(folder)


def test_two_sites_with_one_key_are_refused(folder):
    (folder / "sites" / "a.pub").write_bytes((folder / "sites" / "B.pub").read_bytes())
    with pytest.raises(InvalidConfig, match="the same key"):
        keys.registered(folder)
