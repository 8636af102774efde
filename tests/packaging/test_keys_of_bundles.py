"""Two people sign one bundle at two desks."""

from __future__ import annotations

import pytest
import rooted
import tiny
from refusing import has_code

from edgekit.packaging.output_errors import OutputError
from edgekit.packaging.signers import endorse
from edgekit.packaging.writer import SigningKey
from edgekit_runtime.bundle.header import read_header
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.trust_root import parse_root
from edgekit_runtime.system.errors import BundleError, SignatureError


def signer(name):
    return SigningKey(rooted.private(name))


TWO = parse_root(rooted.document(rooted.signed_part(("ann",), ("bea", "ben"), thresholds=(1, 2)), "ann"), "root.json")


@pytest.fixture
def bundle(tmp_path):
    return tiny.bundle(tmp_path, key=signer("bea"))


def test_the_second_signature_makes_it_enough(bundle):
    """S2"""
    with pytest.raises(SignatureError, check=has_code("too-few-signatures")):
        read_bundle(bundle, trust=TWO)
    done = endorse(bundle, [signer("ben")])
    assert done.added == (rooted.keyid("ben"),)
    assert set(done.signed_by) == {rooted.keyid("bea"), rooted.keyid("ben")}
    assert read_bundle(bundle, trust=TWO).trusted


def test_manifest_and_blobs_stay_as_they_are(bundle):
    before = bundle.read_bytes()
    endorse(bundle, [signer("ben"), signer("bob"), signer("eve")])
    after = bundle.read_bytes()
    old, new = read_header(before, "x"), read_header(after, "x")
    assert old.manifest_bytes == new.manifest_bytes
    assert before[old.blobs_at :] == after[new.blobs_at :]
    assert len(new.signatures) == 4


def test_who_signed_first_does_not_show(tmp_path):
    files = []
    for index, order in enumerate((("bea", "ben"), ("ben", "bea"))):
        (tmp_path / str(index)).mkdir()
        path = tiny.bundle(tmp_path / str(index))
        for name in order:
            endorse(path, [signer(name)])
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_signing_again_changes_nothing(bundle):
    before = bundle.read_bytes()
    assert endorse(bundle, [signer("bea")]).added == ()
    assert bundle.read_bytes() == before


def test_the_result_may_go_elsewhere(bundle, tmp_path):
    before = bundle.read_bytes()
    endorse(bundle, [signer("ben")], tmp_path / "out" / "signed.ekb")
    assert bundle.read_bytes() == before
    assert read_bundle(tmp_path / "out" / "signed.ekb", trust=TWO).trusted


def test_a_damaged_bundle_is_not_signed(bundle):
    data = bytearray(bundle.read_bytes())
    data[-70] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(BundleError):
        endorse(bundle, [signer("ben")])
    assert bundle.read_bytes() == bytes(data)


def test_a_folder_that_cannot_be_written_is_told(bundle, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError):
        endorse(bundle, [signer("ben")], tmp_path / "file" / "x.ekb")
