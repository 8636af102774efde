"""What is exported for OpenSSF Model Signing is checked by its reference verifier; keys of other kinds are refused."""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import sys

import pytest
import rooted
import tiny
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from parts import missing

from edgekit.cli.keys import keys
from edgekit.packaging.key_folder import KeyFolder
from edgekit.packaging.openssf import open_elliptic
from edgekit.packaging.output_errors import KeysError, PackagingError
from edgekit.packaging.signers import SigningOptions

PEM = serialization.Encoding.PEM
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}


def key_in(folder, curve, name="release"):
    private = ec.generate_private_key(curve)
    pem = private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.pem").write_bytes(pem)
    public = private.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub.pem").write_bytes(public)
    return folder / f"{name}.pem"


def run(*arguments):
    return CliRunner().invoke(keys, ["openssf", *map(str, arguments)])


def verify(folder, signature, public, others=False):
    from model_signing import verifying

    config = verifying.Config().use_elliptic_key_verifier(public_key=public)
    config.set_ignore_unsigned_files(others).verify(folder, signature)


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    return tiny.bundle(folder)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_the_reference_verifier_accepts_it(bundle, tmp_path, curve):
    done = run(bundle, "--sign", key_in(tmp_path, curve), "-o", tmp_path / "net.sig")
    assert done.exit_code == 0, done.output
    verify(bundle.parent, tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")


def test_it_lies_beside_the_bundle_and_the_command_that_is_printed_checks_it(bundle, tmp_path):
    done = run(bundle, "--sign", key_in(tmp_path, ec.SECP256R1()))
    words = shlex.split(done.output.splitlines()[-1].removeprefix("check it with: "))
    assert words[:3] == ["model_signing", "verify", "key"]
    from model_signing._cli import main

    checked = CliRunner().invoke(main, words[1:])
    assert checked.exit_code == 0, checked.output
    assert (bundle.with_name(f"{bundle.name}.sig")).is_file()


CHANGED = {
    "the bundle": lambda folder, bundle: bundle.write_bytes(bundle.read_bytes() + b"x"),
    "its name": lambda folder, bundle: bundle.rename(bundle.with_name("other.ekb")),
    "the key": lambda folder, bundle: shutil.copy(
        key_in(folder, ec.SECP256R1(), "mallory").with_name("mallory.pub.pem"), folder / "release.openssf.pub.pem"
    ),
    "what was signed": lambda folder, bundle: rewrite(folder / "net.sig"),
}


def rewrite(path):
    found = json.loads(path.read_text())
    payload = base64.b64decode(found["dsseEnvelope"]["payload"]).replace(b'"files"', b'"Files"')
    found["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    path.write_text(json.dumps(found))


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_the_reference_verifier_refuses_what_was_changed(bundle, tmp_path, change):
    run(bundle, "--sign", key_in(tmp_path, ec.SECP256R1()), "-o", tmp_path / "net.sig")
    verify(bundle.parent, tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")
    change(tmp_path, bundle)
    with pytest.raises(Exception, match=r"(?i)mismatch|signature|^$"):
        verify(bundle.parent, tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")


def test_the_statement_names_the_file_as_the_specification_says(bundle, tmp_path):
    """Sections 5.2.1, 6.1.2 and 6.5 of the specification 1.0."""
    run(bundle, "--sign", key_in(tmp_path, ec.SECP256R1()), "-o", tmp_path / "net.sig")
    envelope = json.loads((tmp_path / "net.sig").read_text())["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    [resource], [subject] = statement["predicate"]["resources"], statement["subject"]
    assert resource["name"] == subject["name"] == bundle.name
    assert statement["predicate"]["serialization"] == {
        "method": "files",
        "hash_type": "sha256",
        "allow_symlinks": False,
    }


def test_a_command_signs_with_a_public_key(bundle, tmp_path):
    if shutil.which("openssl") is None:
        missing("openssl", "apt-get install openssl")
    private = key_in(tmp_path, ec.SECP384R1())
    command = f"openssl dgst -sha384 -sign {private}"
    done = run(bundle, "--sign", tmp_path / "release.pub.pem", "--signer", command, "-o", tmp_path / "net.sig")
    assert done.exit_code == 0, done.output
    verify(bundle.parent, tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")


FORMS = {
    "DER": "sys.stdout.buffer.write(value)",
    "base64": "print(base64.b64encode(value).decode())",
    "hex": "print(value.hex())",
}


@pytest.mark.parametrize("printing", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_what_a_command_prints_is_read_in_any_usual_form(tmp_path, curve, printing):
    """A signature in DER has no one length, so that hex of one may be base64 of another."""
    value = open_elliptic(str(key_in(tmp_path, curve)), SigningOptions(), KeyFolder(tmp_path)).sign(b"message")
    (tmp_path / "sign.py").write_text(f"import sys, base64\nvalue = {value!r}\n{printing}")
    signing = SigningOptions((), f"{sys.executable} {tmp_path / 'sign.py'}")
    signer = open_elliptic(str(tmp_path / "release.pub.pem"), signing, KeyFolder(tmp_path))
    assert signer.sign(b"message") == value
    with pytest.raises(KeysError, match="no signature of key"):
        signer.sign(b"another")


def ed25519_pem(path):
    path.write_bytes(rooted.private_pem("ann"))


def ed25519_public(path):
    path.write_bytes(rooted.public_pem("ann"))


def secp256k1(path):
    key_in(path.parent, ec.SECP256K1(), path.stem)


UNFIT = {
    "Ed25519": (ed25519_pem, "P-256, P-384 or P-521"),
    "an Ed25519 public key": (ed25519_public, "P-256, P-384 or P-521"),
    "another curve": (secp256k1, "P-256, P-384 or P-521"),
    "no key": (lambda path: path.write_text("hello"), "no PEM private key"),
    "nothing there": (lambda path: None, "cannot be read: No such file"),
}


@pytest.mark.parametrize(("make", "words"), UNFIT.values(), ids=UNFIT)
def test_a_key_that_the_format_does_not_know_is_refused_with_the_command_that_makes_one(tmp_path, make, words):
    make(tmp_path / "key.pem")
    with pytest.raises((KeysError, PackagingError), match=words) as refused:
        open_elliptic(str(tmp_path / "key.pem"), SigningOptions((), "true"), KeyFolder(tmp_path))
    assert "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256" in refused.value.do


def test_a_damaged_bundle_is_not_signed(bundle, tmp_path):
    bundle.write_bytes(bundle.read_bytes()[:-1])
    done = run(bundle, "--sign", key_in(tmp_path, ec.SECP256R1()))
    assert done.exit_code == 1
    assert not bundle.with_name(f"{bundle.name}.sig").exists()


def test_a_name_that_nobody_has_is_told_with_the_command_that_makes_such_a_key(tmp_path):
    with pytest.raises(KeysError, match="there is no key 'nobody'") as refused:
        open_elliptic("nobody", SigningOptions(), KeyFolder(tmp_path))
    assert "-out nobody-p256.pem" in refused.value.do
