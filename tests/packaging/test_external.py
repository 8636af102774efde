"""A command signs: real openssl, and commands that do it wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import rooted
import tiny
from parts import missing

from edgekit.packaging.bundle_options import SigningOptions
from edgekit.packaging.key_folder import KeyFolder
from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.signers import ExternalSigner, open_signers
from edgekit_runtime.bundle.reader import read_bundle

MESSAGE = b"DSSEv1 1 x 2 {}"


@pytest.fixture
def pem(tmp_path):
    path = tmp_path / "ann.pem"
    path.write_bytes(rooted.private_pem("ann"))
    (tmp_path / "ann.pub.pem").write_bytes(rooted.public_pem("ann"))
    return path


def python(code):
    return f"{sys.executable} -c '{code}'"


def test_openssl_signs(pem):
    if shutil.which("openssl") is None:
        missing("openssl", "apt-get install openssl")
    command = f"openssl pkeyutl -sign -rawin -inkey {pem} -in {{}}"
    assert ExternalSigner(command, rooted.raw("ann")).sign(MESSAGE) == rooted.private("ann").sign(MESSAGE)


def test_a_bundle_that_openssl_signed_opens(pem, tmp_path):
    """S1"""
    if shutil.which("openssl") is None:
        missing("openssl", "apt-get install openssl")
    command = f"openssl pkeyutl -sign -rawin -inkey {pem} -in {{}}"
    public = pem.with_name("ann.pub.pem")
    [signer] = open_signers(SigningOptions((str(public),), command), KeyFolder(tmp_path))
    path = tiny.bundle(tmp_path, key=signer)
    assert read_bundle(path, trust=public).trusted
    checked = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", public, "-in", _signed_bytes(path, tmp_path),
         "-sigfile", _signature(path, tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Verified Successfully" in checked.stdout


def _signed_bytes(path, folder):
    from edgekit_runtime.bundle.header import read_header

    manifest = read_header(path.read_bytes(), "x").manifest_bytes
    file = folder / "signed-bytes"
    file.write_bytes(rooted.encoded(manifest, rooted.MANIFEST_TYPE))
    return file


def _signature(path, folder):
    from edgekit_runtime.bundle.header import read_header

    file = folder / "signature"
    file.write_bytes(read_header(path.read_bytes(), "x").signatures[0][1])
    return file


SIGNING = """
import sys, hashlib, base64
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"ann").digest())
value = key.sign(sys.stdin.buffer.read())
"""
PRINTED = {
    "raw": "sys.stdout.buffer.write(value)",
    "base64": "print(base64.b64encode(value).decode())",
    "base64 in lines": "print(base64.encodebytes(value).decode())",
    "hex": "print(value.hex())",
    "hex in capitals": "print(value.hex().upper())",
}


@pytest.mark.parametrize("printing", PRINTED.values(), ids=PRINTED)
def test_the_bytes_come_on_stdin_and_the_signature_in_any_usual_form(printing, tmp_path):
    script = tmp_path / "sign.py"
    script.write_text(SIGNING + printing)
    signer = ExternalSigner(f"{sys.executable} {script}", rooted.raw("ann"))
    assert signer.sign(MESSAGE) == rooted.private("ann").sign(MESSAGE)


WRONG = {
    "no such command": ("no-such-signer --key 1", "cannot be started: No such file"),
    "no command": ("", "--signer is empty"),
    "an open quote": ("sign 'x", "not a command: No closing quotation"),
    "it fails": (python("raise SystemExit(3)"), "exited with 3"),
    "it prints nothing": (python("pass"), "printed 0 bytes, which are not a signature"),
    "it prints a sentence": (python('print("touch the token")'), "are not a signature"),
    "another signature": (
        python('import sys; sys.stdout.buffer.write(b"s" * 64)'),
        "did not sign these bytes",
    ),
}


@pytest.mark.parametrize(("command", "words"), WRONG.values(), ids=WRONG)
def test_what_a_signer_does_wrong_is_told_and_never_packed(command, words):
    """S3"""
    with pytest.raises(KeysError, match=words):
        ExternalSigner(command, rooted.raw("ann")).sign(MESSAGE)


def test_a_signer_that_never_answers_is_ended():
    command = python("import threading; threading.Event().wait()")
    with pytest.raises(KeysError, match=r"did not finish within 0\.5 s"):
        ExternalSigner(command, rooted.raw("ann"), timeout_s=0.5).sign(MESSAGE)


def test_no_shell_reads_the_command(tmp_path):
    there = tmp_path / "there"
    with pytest.raises(KeysError):
        ExternalSigner(f"true; touch {there}", rooted.raw("ann")).sign(MESSAGE)
    assert not there.exists()


def test_a_public_key_needs_a_command_and_a_command_a_public_key(pem, tmp_path):
    own, public = KeyFolder(tmp_path), str(pem.with_name("ann.pub.pem"))
    with pytest.raises(KeysError, match="a public key, which cannot sign by itself"):
        open_signers(SigningOptions((public,)), own)
    with pytest.raises(KeysError, match="--sign names none"):
        open_signers(SigningOptions((str(pem),), "true"), own)
    assert len(open_signers(SigningOptions((str(pem), str(pem), public), "true"), own)) == 1
