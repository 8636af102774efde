"""What inspect says of a bundle, of an install root and of an artifact.

Of a root it says what answers, of an artifact its distance from the original.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from installed import UNSIGNED, Maker, new_key

from edgekit.cli.inspect import _far
from edgekit.cli.main import cli
from edgekit_runtime.errors import BundleError
from edgekit_runtime.install import Root, install

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
    assert _far({"cosine": 0.98761, "outputs": outputs}) == says


def test_a_bundle_of_an_earlier_version_is_shown_too():
    assert _far({"cosine": 1.0, "outputs": [{"name": "y"}]}) == "cosine 1.0000"


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
    assert any("whom this root was told to trust" in line for line in rest)
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
    assert (refused.what, refused.where) == ("cannot be read: it is a folder", str(tmp_path))
    assert "an install root" in refused.do
