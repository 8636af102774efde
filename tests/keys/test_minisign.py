"""What is exported for minisign is checked by another implementation of it, and by minisign itself where that is installed."""

from __future__ import annotations

import shutil
import subprocess

import minisign
import pytest
import rooted
import tiny
from click.testing import CliRunner
from parts import missing

from edgekit.cli.keys import keys
from edgekit.keys import KeysError
from edgekit.keys.minisign import minisig, public_key
from edgekit.packaging import SigningKey

SIGNER = SigningKey(rooted.private("bea"))
DATA = b"what is signed" * 100


def key_of(name):
    return minisign.PublicKey.from_bytes(public_key(rooted.raw(name), name).encode())


def parsed(text):
    return minisign.Signature.from_bytes(text.encode())


def test_another_implementation_accepts_it_and_its_comment():
    found = parsed(minisig(DATA, SIGNER, "net version 1"))
    key_of("bea").verify(DATA, found)
    assert found.trusted_comment == "net version 1"


CHANGED = {
    "the file": (DATA + b"x", lambda text: text, "bea"),
    "the comment": (DATA, lambda text: text.replace("net version 1", "net version 2"), "bea"),
    "the key": (DATA, lambda text: text, "mallory"),
}


@pytest.mark.parametrize(("data", "change", "name"), CHANGED.values(), ids=CHANGED)
def test_it_is_refused_when_anything_is_changed(data, change, name):
    text = change(minisig(DATA, SIGNER, "net version 1"))
    with pytest.raises(minisign.VerifyError):
        key_of(name).verify(data, parsed(text))


def test_a_comment_is_one_line():
    with pytest.raises(KeysError, match="one line"):
        minisig(DATA, SIGNER, "a\nb")


@pytest.fixture
def exported(tmp_path):
    (tmp_path / "bea.pem").write_bytes(rooted.private_pem("bea"))
    bundle = tiny.bundle(tmp_path)
    done = CliRunner().invoke(
        keys, ["minisign", str(bundle), "--sign", str(tmp_path / "bea.pem")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return bundle, bundle.with_name(f"{bundle.name}.minisig"), tmp_path / "bea.minisign.pub"


def test_the_command_writes_signature_and_key_beside_the_bundle(exported):
    bundle, signature, public = exported
    found = minisign.Signature.from_file(signature)
    minisign.PublicKey.from_file(public).verify(bundle.read_bytes(), found)
    assert found.trusted_comment == f"{bundle.name}: tiny version 1 for x86-64"


def test_minisign_itself_accepts_it(exported):
    if shutil.which("minisign") is None:
        missing("minisign", "apt-get install minisign")
    bundle, signature, public = exported
    done = subprocess.run(
        ["minisign", "-V", "-m", bundle, "-x", signature, "-p", public], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tiny version 1" in done.stdout
