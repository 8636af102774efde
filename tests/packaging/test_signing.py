"""Signed bundles open for those who trust the key, and for nobody else who asks for a signature."""

from __future__ import annotations

import pytest
import tiny
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from edgekit.packaging.output_errors import PackagingError
from edgekit.packaging.writer import load_signing_key
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.signature import pae
from edgekit_runtime.system.errors import SignatureError


def write_pair(folder, name, private=None):
    private = private or ed25519.Ed25519PrivateKey.generate()
    secret, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    secret.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return secret, public


@pytest.fixture
def signed(tmp_path):
    secret, public = write_pair(tmp_path, "ours")
    return tiny.bundle(tmp_path, key=load_signing_key(secret)), public


def test_a_bundle_opens_for_those_who_trust_its_signer(signed):
    path, public = signed
    bundle = read_bundle(path, trust=[public])
    assert bundle.trusted
    assert len(bundle.signed_by) == 1


def test_a_bundle_signed_by_another_is_refused(signed, tmp_path):
    path, _ = signed
    _, stranger = write_pair(tmp_path, "stranger")
    with pytest.raises(SignatureError, match="not signed by any key trusted here"):
        read_bundle(path, trust=[stranger])


def test_an_unsigned_bundle_is_refused_where_trust_is_asked_for(tmp_path):
    _, public = write_pair(tmp_path, "ours")
    with pytest.raises(SignatureError, match="is not signed"):
        read_bundle(tiny.bundle(tmp_path), trust=[public])


def test_without_trust_the_signers_are_named_but_nothing_is_believed(signed):
    bundle = read_bundle(signed[0])
    assert bundle.signed_by
    assert not bundle.trusted


def test_one_of_several_trusted_keys_is_enough(signed, tmp_path):
    path, public = signed
    _, stranger = write_pair(tmp_path, "stranger")
    assert read_bundle(path, trust=[stranger, public]).trusted


def test_what_is_signed_is_the_dsse_encoding_of_the_manifest():
    assert pae(b"{}", "text/x") == b"DSSEv1 6 text/x 2 {}"


@pytest.mark.parametrize("what", ["absent", "text", "curve"])
def test_keys_that_cannot_be_used_say_how_to_make_one(tmp_path, what):
    path = tmp_path / "key.pem"
    if what == "text":
        path.write_text("not a key")
    if what == "curve":
        write_pair(tmp_path, "key", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(PackagingError, match="openssl genpkey -algorithm ed25519"):
        load_signing_key(path)


def test_a_trusted_key_that_cannot_be_read_is_named(signed, tmp_path):
    with pytest.raises(SignatureError, match=r"nowhere\.pem"):
        read_bundle(signed[0], trust=[tmp_path / "nowhere.pem"])


def test_one_trusted_key_needs_no_list(signed):
    path, public = signed
    assert read_bundle(path, trust=str(public)).trusted
    assert read_bundle(path, trust=public).trusted
