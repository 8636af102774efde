"""edgekit verify says of every check what it found, and of a bundle that is not to be trusted the first reason."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rooted
import tiny
from click.testing import CliRunner

from edgekit.cli.main import cli
from edgekit.packaging import verifying
from edgekit.packaging.assemble import assemble
from edgekit.packaging.writer import SigningKey, write_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import EdgekitError

ENGINE = "litert" if "litert" in available() else min(available())
RECIPE = tiny.RECIPE_OF_ENGINE[ENGINE]


@pytest.fixture(autouse=True)
def nobody_is_trusted(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def bundle(tmp_path) -> Path:
    return tiny.bundle_for(ENGINE, tmp_path)


@pytest.fixture
def key(tmp_path) -> Path:
    path = tmp_path / "alice.pub.pem"
    path.write_bytes(rooted.public_pem("alice"))
    return path


@pytest.fixture
def signed(tmp_path) -> Path:
    return _signed(tmp_path)


def _signed(folder: Path, **changes) -> Path:
    draft, manifest = assemble(tiny.content(RECIPE, ENGINE))
    path = folder / "signed.ekb"
    write_bundle(path, draft, replace(manifest, **changes), _keys())
    return path


def _keys() -> list[SigningKey]:
    return [SigningKey(rooted.private("alice"))]


def said(*arguments: str | Path):
    return CliRunner().invoke(cli, ["verify", *map(str, arguments)])


def told(*arguments: str | Path) -> dict:
    result = said(*arguments, "--json")
    return json.loads(result.stdout)


def marks(report: dict) -> dict:
    return {one["check"].split()[0]: one["ok"] for one in report["checks"]}


def test_a_signed_bundle_is_trusted_and_every_check_is_told(signed, key):
    report = told(signed, "--trust", key, "--replay")
    assert report["trusted"]
    assert report["signed_by"] == [rooted.keyid("alice")]
    names = ["file", "signature", "manifest", "contents", "dates", "board", "model", "golden", "replay"]
    assert [one["check"].split()[0] for one in report["checks"]] == names
    assert marks(report)["replay"] is True


def test_the_lines_are_for_people(signed, key):
    result = said(signed, "--trust", key, "--replay")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok       file ")
    assert "every offset and size holds" in result.stdout
    assert "in a process of its own" in result.stdout
    assert lines[-1].startswith("trusted")


def test_a_machine_that_was_never_told_whom_to_trust_refuses(bundle):
    """S9"""
    report = told(bundle)
    assert (report["ok"], report["trusted"], report["error"]["code"]) == (False, False, "no-trust-store")
    assert marks(report) == {"file": True, "signature": False}


def test_allow_unsigned_goes_on_and_never_says_trusted(bundle):
    """S9"""
    report = told(bundle, "--allow-unsigned")
    assert (report["ok"], report["trusted"]) == (True, False)
    assert "unsigned bundles are allowed" in next(
        one["told"] for one in report["checks"] if one["check"] == "signature"
    )
    assert said(bundle, "--allow-unsigned").stdout.splitlines()[-1].startswith("not trusted")


def test_a_changed_byte_is_the_first_reason(signed, key):
    """S13"""
    data = bytearray(signed.read_bytes())
    data[-100] ^= 1
    signed.write_bytes(data)
    result = said(signed, "--trust", key)
    with pytest.raises(EdgekitError, match="SHA-256 differs"):
        raise result.exception
    assert "REFUSED  contents" in result.stdout


def test_an_expired_bundle_is_refused_and_names_the_clock(tmp_path, key):
    report = told(_signed(tmp_path, expires="2020-01-01T00:00:00Z"), "--trust", key)
    assert marks(report)["dates"] is False
    assert "clock" in report["error"]["what"]


def test_another_board_is_a_remark_and_a_refusal_where_the_board_was_named(signed, key):
    assert marks(told(signed, "--trust", key, "--profile", "raspberry-pi-4"))["board"] is False
    draft, manifest = assemble(tiny.content(RECIPE, ENGINE))
    manifest = replace(manifest, target=replace(manifest.target, profile="some-board", arch="riscv64"))
    write_bundle(signed, draft, replace(manifest, compatible=("some-board",)), _keys())
    report = told(signed, "--trust", key)
    assert (report["trusted"], marks(report)["board"]) == (True, None)


def test_an_operator_that_the_manifest_does_not_allow_is_refused_before_anything_is_loaded(tmp_path, key):
    draft, manifest = assemble(tiny.content(RECIPE, ENGINE))
    (entry,) = manifest.artifacts
    path = tmp_path / "ops.ekb"
    write_bundle(path, draft, replace(manifest, artifacts=(replace(entry, ops=("ADD",)),)), _keys())
    report = told(path, "--trust", key)
    assert report["error"]["code"] == "model-file"
    assert list(marks(report))[-1] == "model"


def test_golden_answers_that_this_machine_does_not_give_are_refused(tmp_path, key):
    draft, manifest = assemble(tiny.content(RECIPE, ENGINE))
    golden = manifest.golden[0]
    wrong = draft.add(np.full(4, 3, manifest.artifacts[0].outputs[0].dtype).tobytes())
    forged = replace(golden, answers=(replace(golden.answers[0], outputs={"probs": wrong}),))
    path = tmp_path / "forged.ekb"
    write_bundle(path, draft, replace(manifest, golden=(forged,)), _keys())
    report = told(path, "--trust", key, "--replay")
    assert (marks(report)["replay"], report["error"]["code"]) == (False, "selftest")


def test_what_is_loaded_is_the_file_that_was_verified_whatever_its_name_stands_for_by_then(signed, tmp_path):
    """S12: RAUC's CVE-2020-25860: another file under the name between the check and the use."""
    draft, manifest = assemble(tiny.content(RECIPE, ENGINE))
    other = tmp_path / "other.ekb"
    write_bundle(other, draft, replace(manifest, version="evil"))
    swapped = []

    report = verifying.Verification(signed, verifying.VerifyOptions(allow_unsigned=True, replay=True))
    for check in report:
        if check.name == "contents":
            shutil.copyfile(other, tmp_path / "new.ekb")
            (tmp_path / "new.ekb").replace(signed)
            swapped.append(check)
    assert swapped
    assert signed.read_bytes() == other.read_bytes()
    assert report.error is None
    assert report.checks[-1].ok is True
    assert report.checks[-1].name.startswith("replay")


def test_a_file_that_is_overwritten_in_place_is_not_loaded(signed, tmp_path):
    """S12"""
    draft, manifest = assemble(tiny.content(RECIPE, ENGINE))
    other = tmp_path / "other.ekb"
    write_bundle(other, draft, replace(manifest, version="evil"))

    report = verifying.Verification(signed, verifying.VerifyOptions(allow_unsigned=True, replay=True))
    for check in report:
        if check.name == "contents":
            shutil.copyfile(other, signed)  # the same inode
    assert report.error is not None
    assert "replaced while it was opened" in str(report.error)


def test_nothing_to_verify_is_a_sentence(tmp_path):
    with pytest.raises(EdgekitError, match=r"cannot be read: No such file"):
        raise said(tmp_path / "none.ekb").exception


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/zero", "not a regular file"), (".", "a folder, and no root of `edgekit install`")]
)
def test_what_is_no_file_is_not_read(path, why):
    with pytest.raises(EdgekitError, match=why):
        raise said(path).exception


def test_a_link_leads_to_the_bundle(signed, tmp_path, key):
    link = tmp_path / "link.ekb"
    link.symlink_to(signed)
    assert told(link, "--trust", key)["trusted"]


def test_of_an_install_root_what_answers_there_is_verified(signed, tmp_path, key):
    from edgekit_runtime.install import BoardIdentity, InstallOptions, install

    root = tmp_path / "root"
    install(signed, root, InstallOptions(trust=(key,), board=BoardIdentity(("x86-64",)), trial="app"))
    report = told(root)  # the root remembers whom it trusts
    assert report["trusted"], report
    assert "/objects/" in report["bundle"]


def test_of_a_root_that_took_it_unsigned_that_is_said(bundle, tmp_path):
    from edgekit_runtime.install import BoardIdentity, InstallOptions, install

    root = tmp_path / "root"
    install(bundle, root, InstallOptions(allow_unsigned=True, board=BoardIdentity(("x86-64",)), trial="app"))
    assert "it was installed with --allow-unsigned" in told(root)["error"]["what"]


def test_what_is_no_bundle_is_refused(tmp_path):
    path = tmp_path / "x.ekb"
    path.write_bytes(b"PK\x03\x04")
    assert marks(told(path)) == {"file": False}


def test_verifying_takes_memory_by_the_size_of_the_bundle(signed, key):
    """Not by the largest bundle there may be."""
    tracemalloc.start()
    try:
        report = verifying.Verification(signed, verifying.VerifyOptions(trust=(key,)))
        assert all(check.ok is not False for check in report)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.error is None
    assert peak < 8 * signed.stat().st_size + (32 << 20)


@pytest.mark.skipif("onnxruntime" not in available(), reason="only ONNX artifacts run on a GPU")
def test_an_installed_engine_of_a_gpu_replays_nothing(tmp_path, monkeypatch):
    both = {"onnxruntime": available()["onnxruntime"], "torch-cuda": "2.11.0"}
    monkeypatch.setattr("edgekit_runtime.engines.registry.available", lambda: both)
    report = told(tiny.bundle(tmp_path, "onnx-f32", engine="onnxruntime"), "--replay", "--allow-unsigned")
    (replayed,) = [check for check in report["checks"] if check["check"].startswith("replay")]
    assert replayed["ok"] is True
    assert replayed["told"].startswith("onnxruntime ")
