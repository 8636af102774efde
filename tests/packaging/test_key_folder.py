"""Private keys are their owner's alone from the moment they exist, and nothing is ever written over."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest
import rooted

from edgekit.packaging.key_folder import KeyFolder, default_folder
from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.writer import load_signing_key

posix = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path):
    return KeyFolder(tmp_path / "settings" / "keys")


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])
def test_a_private_key_is_0600_in_a_folder_of_0700_whatever_the_umask(folder, umask):
    """S11"""
    folder.path.parent.mkdir()
    before = os.umask(umask)
    try:
        made = folder.create("alice")
    finally:
        os.umask(before)
    assert (mode(folder.path) & 0o077, mode(made.private), mode(made.public)) == (0, 0o600, 0o644)


@posix
def test_a_folder_that_others_may_enter_takes_no_key(folder):
    """S11"""
    folder.path.mkdir(parents=True)
    folder.path.chmod(0o755)
    with pytest.raises(KeysError, match="other users can read this directory") as caught:
        folder.create("alice")
    assert f"chmod 700 {folder.path}" in caught.value.do
    assert list(folder.path.iterdir()) == []


def test_a_key_signs_and_its_public_half_checks(folder):
    made = folder.create("alice")
    signer = load_signing_key(made.private)
    assert (signer.keyid, signer.public) == (made.keyid, made.raw)
    assert folder.public("alice").raw == made.raw


def test_openssl_reads_what_was_made(folder, tmp_path):
    made = folder.create("alice", b"correct horse")
    told = subprocess.run(
        ["openssl", "pkey", "-in", made.private, "-passin", "pass:correct horse", "-pubout"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert told.stdout == made.public.read_bytes()


def test_a_key_with_a_passphrase_is_of_no_use_without_it(folder):
    """S11"""
    made = folder.create("alice", b"correct horse")
    assert b"ENCRYPTED" in made.private.read_bytes()
    for given, words in ((None, "no passphrase was given"), (b"wrong", "wrong passphrase")):
        with pytest.raises(Exception, match=words):
            load_signing_key(made.private, lambda _, given=given: given)
    assert load_signing_key(made.private, lambda _: b"correct horse").keyid == made.keyid


def test_nobody_is_asked_for_a_passphrase_that_is_not_needed(folder):
    made = folder.create("alice")
    load_signing_key(made.private, lambda path: pytest.fail(f"asked for {path}"))


@pytest.mark.parametrize("there", ["alice.pem", "alice.pub.pem", "a link that leads nowhere"])
def test_nothing_is_written_over(folder, there):
    folder.create("other")
    path = folder.path / ("alice.pem" if "link" in there else there)
    path.symlink_to(folder.path.parent / "elsewhere") if "link" in there else path.write_text("mine")
    with pytest.raises(KeysError, match="a key named 'alice' already exists"):
        folder.create("alice")
    assert not (folder.path.parent / "elsewhere").exists()
    assert "link" in there or path.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["", "../alice", "a/b", ".hidden", "-x", "a b", "ä", "n" * 65, "alice.pem", "x\0y", "x.pub"]
)
def test_a_name_is_a_files_name(folder, name):
    with pytest.raises(KeysError, match="not a valid key name"):
        folder.create(name)


def test_an_empty_passphrase_is_none(folder):
    with pytest.raises(KeysError, match="passphrase is empty"):
        folder.create("alice", b"")


@posix
def test_keys_are_listed_with_what_is_amiss(folder):
    folder.create("alice", b"x")
    folder.create("bob").private.chmod(0o640)
    (folder.path / "carol.pub.pem").write_bytes(rooted.public_pem("carol"))
    (folder.path / "notes.txt").write_text("x")
    (folder.path / "broken.pub.pem").write_text("x")
    found = {
        entry.name: (entry.private is not None, entry.encrypted, entry.open_to_others) for entry in folder.entries()
    }
    assert found == {"alice": (True, True, False), "bob": (True, False, True), "carol": (False, False, False)}
    assert folder.of(rooted.keyid("carol")).name == "carol"


def test_a_name_is_looked_up_here_and_a_path_is_a_path(folder, tmp_path, monkeypatch):
    made = folder.create("alice")
    monkeypatch.chdir(tmp_path)
    assert folder.private("alice") == made.private
    (tmp_path / "alice").write_bytes(b"a file of that name")
    assert str(folder.private("alice")) == "alice"
    assert str(folder.private("./alice.pem")) == "alice.pem"
    with pytest.raises(KeysError, match=r"no key 'zoe'.*there: alice.*edgekit keys new zoe"):
        folder.private("zoe")


def test_where_keys_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_KEYS", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.delenv("EDGEKIT_KEYS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert default_folder() == tmp_path / "settings" / "edgekit" / "keys"
