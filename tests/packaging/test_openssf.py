"""The reference verifier of OpenSSF Model Signing accepts a bundle's signature; keys of other kinds are refused."""

from __future__ import annotations

import base64
import json
import shlex
import shutil

import pytest
import rooted
import tiny
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgekit.cli.keys import keys
from edgekit.packaging.bundle_options import SigningOptions
from edgekit.packaging.key_folder import KeyFolder
from edgekit.packaging.output_errors import KeysError, PackagingError
from edgekit.packaging.signers import sign_openssf

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
    return CliRunner().invoke(keys, ["sign", "--openssf", *map(str, arguments)])


def verify(bundle, signature, public):
    from model_signing import verifying

    verifying.Config().use_elliptic_key_verifier(public_key=public).verify(bundle, signature)


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    return tiny.bundle(folder)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_the_reference_verifier_accepts_it(bundle, tmp_path, curve):
    done = run(bundle, "--sign", key_in(tmp_path, curve), "-o", tmp_path / "net.sig")
    assert done.exit_code == 0, done.output
    verify(bundle, tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")


def test_it_lies_beside_the_bundle_and_the_command_that_is_printed_checks_it(bundle, tmp_path):
    done = run(bundle, "--sign", key_in(tmp_path, ec.SECP256R1()))
    words = shlex.split(done.output.splitlines()[-1].removeprefix("verify with: "))
    assert words[:3] == ["model_signing", "verify", "key"]
    from model_signing._cli import main

    checked = CliRunner().invoke(main, words[1:])
    assert checked.exit_code == 0, checked.output
    assert (bundle.with_name(f"{bundle.name}.sig")).is_file()


CHANGED = {
    "the bundle": lambda folder, bundle: bundle.write_bytes(bundle.read_bytes() + b"x"),
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
    verify(bundle, tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")
    change(tmp_path, bundle)
    with pytest.raises(Exception, match=r"(?i)mismatch|signature|^$"):
        verify(bundle, tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")


def test_a_bundle_that_was_renamed_verifies(bundle, tmp_path):
    run(bundle, "--sign", key_in(tmp_path, ec.SECP256R1()), "-o", tmp_path / "net.sig")
    verify(bundle.rename(bundle.with_name("renamed.ekb")), tmp_path / "net.sig", tmp_path / "release.openssf.pub.pem")


def test_a_key_with_a_passphrase_signs(bundle, tmp_path):
    private = ec.generate_private_key(ec.SECP256R1())
    locked = serialization.BestAvailableEncryption(b"correct horse")
    (tmp_path / "release.pem").write_bytes(private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, locked))
    refused = run(bundle, "--sign", tmp_path / "release.pem")
    assert (refused.exit_code, bundle.with_name(f"{bundle.name}.sig").exists()) == (1, False)
    (tmp_path / "pass").write_text("correct horse\n")
    done = run(bundle, "--sign", tmp_path / "release.pem", "--passphrase-file", tmp_path / "pass")
    assert done.exit_code == 0, done.output
    verify(bundle, bundle.with_name(f"{bundle.name}.sig"), bundle.with_name("release.openssf.pub.pem"))


def ed25519_pem(path):
    path.write_bytes(rooted.private_pem("ann"))


def ed25519_public(path):
    path.write_bytes(rooted.public_pem("ann"))


def secp256k1(path):
    key_in(path.parent, ec.SECP256K1(), path.stem)


UNFIT = {
    "Ed25519": (ed25519_pem, "P-256, P-384 or P-521"),
    "an Ed25519 public key": (ed25519_public, "this is a public key"),
    "another curve": (secp256k1, "P-256, P-384 or P-521"),
    "no key": (lambda path: path.write_text("hello"), "not a PEM private key"),
    "nothing there": (lambda path: None, "cannot be read: No such file"),
}


@pytest.mark.parametrize(("make", "words"), UNFIT.values(), ids=UNFIT)
def test_a_key_that_the_format_does_not_know_is_refused_with_the_command_that_makes_one(bundle, tmp_path, make, words):
    make(tmp_path / "key.pem")
    with pytest.raises((KeysError, PackagingError), match=words) as refused:
        sign_openssf(bundle, SigningOptions((str(tmp_path / "key.pem"),)), KeyFolder(tmp_path))
    assert "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256" in refused.value.do


def test_a_damaged_bundle_is_not_signed(bundle, tmp_path):
    bundle.write_bytes(bundle.read_bytes()[:-1])
    done = run(bundle, "--sign", key_in(tmp_path, ec.SECP256R1()))
    assert done.exit_code == 1
    assert not bundle.with_name(f"{bundle.name}.sig").exists()


def test_a_name_that_nobody_has_is_told_with_the_command_that_makes_such_a_key(bundle, tmp_path):
    with pytest.raises(KeysError, match="no key 'nobody'") as refused:
        sign_openssf(bundle, SigningOptions(("nobody",)), KeyFolder(tmp_path))
    assert "-out nobody-p256.pem" in refused.value.do
