"""What inspect says of a bundle, of an install root and of an artifact.

Of a root it says what answers, of an artifact its distance from the original.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny
from click.testing import CliRunner
from installed import UNSIGNED, Maker, new_key

from edgekit.cli.inspect import closeness
from edgekit.cli.main import cli
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.install import Root, install
from edgekit_runtime.system.errors import BundleError

NUMBER = {"kind": "numbers", "spread_error": 0.034}
VECTOR = {"kind": "vector", "spread_error": None}


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ([NUMBER], "error 3.4 % of what the answers vary by"),
        ([NUMBER, VECTOR], "cosine 0.9876"),
        ([VECTOR], "cosine 0.9876"),
        ([], "cosine 0.9876"),
    ],
)
def test_a_cosine_is_left_out_where_it_says_nothing(outputs, says):
    assert closeness({"cosine": 0.98761, "outputs": outputs}) == says


def test_a_bundle_of_an_earlier_version_is_shown_too():
    assert closeness({"cosine": 1.0, "outputs": [{"name": "y"}]}) == "cosine 1.0000"


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A root that was told a key, and what installs a bundle there."""
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)
    key, public = new_key(tmp_path)
    bundle = Maker(tmp_path)("1", key=key)
    install(bundle, tmp_path / "root", replace(UNSIGNED, trust=(public,)))
    return tmp_path / "root", bundle


def inspected(*arguments):
    return CliRunner().invoke(cli, ["inspect", *map(str, arguments)], prog_name="edgekit")


def test_of_a_root_what_answers_there_is_shown_by_whom_the_root_trusts(board):
    root, bundle = board
    shown = inspected(root)
    assert shown.exit_code == 0, shown.output
    first, *rest = shown.stdout.splitlines()
    assert first.startswith(f"generation 1 of {root}, installed from {bundle} at 20")
    assert any("trusted by the install root" in line for line in rest)
    told = json.loads(inspected(root, "--json").stdout)
    assert (told["installed"]["generation"]["number"], told["trusted"]) == (1, True)
    alone = json.loads(inspected(bundle, "--json").stdout)
    assert "installed" not in alone
    assert alone["manifest"] == told["manifest"]


def test_of_a_root_where_nothing_answers_it_says_how_something_would(tmp_path):
    Root.create(tmp_path / "r").furnish()
    refused = inspected(tmp_path / "r").exception
    assert refused.code == "no-generation"
    assert "edgekit install BUNDLE --root" in refused.do


def test_of_another_folder_it_says_what_to_pass(tmp_path):
    refused = inspected(tmp_path).exception
    assert isinstance(refused, BundleError)
    assert (refused.what, refused.where) == ("cannot be read: it is a directory", str(tmp_path))
    assert "an install root" in refused.do


OWN = {"low_ms": 20.0, "mid_ms": 30.0, "high_ms": 50.0, "grade": "anchored"}
REPORTED = {"low_ms": 25.0, "mid_ms": 31.0, "high_ms": 38.8, "grade": "anchored"}


@pytest.mark.parametrize(
    ("reported", "latency"),
    [
        (None, ["30 ms (20 to 50), anchored, without the times of the build's machine: its report is not beside"]),
        (OWN, ["30 ms (20 to 50), anchored\n"]),
        (
            REPORTED,
            ["31 ms (25 to 38.8), anchored, with the times of the", "in the bundle, without them: 30 ms (20 to 50)"],
        ),
    ],
)
def test_the_builds_range_is_shown_and_what_the_bundles_own_lacks(tmp_path, reported, latency):
    path = tiny.bundle(tmp_path, estimate=OWN)
    bundle = read_bundle(path)
    if reported is not None:
        board = {"profile": "x86-64", "candidates": [{"recipe": "tflite-int8", "estimate": reported}]}
        report = {
            "model": {"sha256": bundle.manifest.model_id}, "bundles": [board],
            "candidates": [{"recipe": "tflite-int8", "sha256": bundle.artifact().blob}],
        }  # fmt: skip
        (tmp_path / "tiny-build.json").write_text(json.dumps(report))
    done = CliRunner().invoke(cli, ["inspect", str(path)])
    assert done.exit_code == 0, done.output
    for text in latency:
        assert text in done.output
    shown = CliRunner().invoke(cli, ["inspect", "--json", str(path)])
    assert json.loads(shown.stdout)["estimates"] == ({} if reported is None else {"tflite-int8": reported})
