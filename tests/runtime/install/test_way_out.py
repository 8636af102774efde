"""What a board says where its bundle does not open.

What can be done there, and nothing that only a workstation can do.
"""

from __future__ import annotations

import pytest
from hostile import forge
from hostile.board import asked

from edgekit_runtime import EdgekitError, open_bundle
from edgekit_runtime.install import activate, install, rollback, status


def signed(key: str, version: str) -> bytes:
    return forge.pack(forge.manifest(version=version, rollout_seq=int(version)), forge.blobs(), sign=[key])


@pytest.fixture
def board(root, tmp_path):
    """Generation 1 by `ours`, generation 2 by `second`, which answers; and what writes whom the board trusts."""
    file = tmp_path / "root.json"

    def trusts(*signers, **more):
        file.write_bytes(forge.root_json(signers, **more))

    trusts("ours", "second")
    how = asked(trust=(file,))
    for number, key in enumerate(("ours", "second"), start=1):
        bundle = tmp_path / f"{number}.ekb"
        bundle.write_bytes(signed(key, str(number)))
        install(bundle, root, how)
    return trusts


def version(root):
    with open_bundle(root) as model:
        return model.describe()["version"]


def refusal(root) -> EdgekitError:
    """Of what answers: an application and `edgekit status` are told the same."""
    with pytest.raises(EdgekitError) as caught:
        open_bundle(root)
    assert status(root).refusal == str(caught.value)
    return caught.value


def test_a_revoked_key_leads_to_another_bundle_or_back(board, root):
    board("ours", revoked=["second"])
    error = refusal(root)
    assert error.code == "revoked-key"
    assert error.do == (
        "Install a bundle that is signed with another key: ask its sender; or go back to generation 1: edgekit "
        f"rollback --root {root}"
    )
    rollback(root)
    assert version(root) == "1"
    for forth in (rollback, lambda root: activate(root, 2)):
        with pytest.raises(EdgekitError, match="revoked") as caught:
            forth(root)
        assert caught.value.do == "Install a bundle that is signed with another key: ask its sender"


def test_no_way_back_is_named_that_is_none(board, root):
    board("third", revoked=["ours", "second"])
    assert "rollback" not in refusal(root).do
    assert "rollback" not in status(root).previous_refusal


def test_a_key_that_is_not_trusted_any_more_may_be_trusted_again(board, root):
    board("ours")
    error = refusal(root)
    assert error.code == "unknown-key"
    assert "edgekit keys update ROOT.json" in error.do
    assert f"edgekit rollback --root {root}" in error.do
    assert "keys sign" not in error.do


def test_a_disk_that_changed_a_bundle_leads_to_installing_it_again(board, root, tmp_path):
    found = status(root).current
    stored = root / "objects" / f"{found.object}.ekb"
    whole = stored.read_bytes()
    stored.chmod(0o644)
    stored.write_bytes(whole[:2000])
    assert refusal(root).do.startswith("Install it again: it was damaged here")
    stored.unlink()
    assert refusal(root).do.startswith("Install it again; or go back to generation 1")
    install(tmp_path / "2.ekb", root, asked(trust=(tmp_path / "root.json",)))
    assert version(root) == "2"


def test_what_an_application_asked_for_is_left_to_it(board, root):
    with pytest.raises(EdgekitError) as caught:
        open_bundle(root, engine="onnxruntime")
    assert "rollback" not in caught.value.do
    assert "Install" not in caught.value.do


def test_a_file_is_refused_in_words_for_whoever_has_it(board, root, tmp_path):
    """Neither a board nor a workstation can sign for another."""
    board("ours", revoked=["second"])
    bundle = tmp_path / "3.ekb"
    bundle.write_bytes(signed("second", "3"))
    with pytest.raises(EdgekitError) as caught:
        install(bundle, root, asked(trust=(tmp_path / "root.json",)))
    assert (caught.value.code, caught.value.do) == (
        "revoked-key", "Ask the sender to sign it with another key; nothing else makes it acceptable",
    )  # fmt: skip
