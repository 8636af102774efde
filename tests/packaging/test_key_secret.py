"""Keys to encrypt with: made once, for their owner alone, and never shown."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekit.cli.keys import keys
from edgekit.packaging.key_folder import KeyFolder
from edgekit.packaging.output_errors import KeysError
from edgekit_runtime.bundle.secrets import load_secret


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


def told(*arguments: str | Path):
    return CliRunner().invoke(keys, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_new_key_is_read_where_a_secret_is_asked_for(folder: KeyFolder):
    made = folder.create_secret("camera")
    assert made.path == folder.path / "camera.secret"
    secret = load_secret(f"file:{made.path}")
    assert secret.ids == (made.id,)
    assert folder.create_secret("other").id != made.id


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_it_is_its_owners_alone_whatever_the_umask(folder: KeyFolder):
    before = os.umask(0)
    try:
        made = folder.create_secret("camera")
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_key_is_never_written_over(folder: KeyFolder):
    made = folder.create_secret("camera")
    before = made.path.read_bytes()
    with pytest.raises(KeysError, match="already"):
        folder.create_secret("camera")
    assert made.path.read_bytes() == before


@pytest.mark.parametrize("name", ["../camera", "a/b", "", ".hidden", "x" * 65])
def test_a_name_never_leads_out_of_the_folder(name: str, folder: KeyFolder):
    with pytest.raises(KeysError, match="not a valid key name"):
        folder.create_secret(name)


def test_the_command_tells_where_it_is_and_what_it_is_called_and_never_the_key(tmp_path: Path):
    said = told("new", "camera", "--secret", "--folder", tmp_path / "keys")
    (key,) = load_secret(str(tmp_path / "keys" / "camera.secret")).to_pipe()
    assert "--encrypt" in said.output
    assert str(tmp_path / "keys" / "camera.secret") in said.output
    listed = told("list", "--folder", tmp_path / "keys")
    as_json = told("new", "gate", "--secret", "--folder", tmp_path / "keys", "--json")
    assert json.loads(as_json.output).keys() == {"name", "id", "file"}
    assert "camera" in listed.output
    assert all(key not in output for output in (said.output, listed.output, as_json.output))


def test_the_list_says_which_file_holds_no_key(folder: KeyFolder):
    folder.create_secret("camera")
    (folder.path / "broken.secret").write_text("hello\n")
    (folder.path / "broken.secret").chmod(0o600)
    assert [(one.name, bool(one.id), bool(one.trouble)) for one in folder.secrets()] == [
        ("broken", False, True),
        ("camera", True, False),
    ]
    listed = json.loads(told("list", "--folder", folder.path, "--json").output)["secrets"]
    assert [(one["name"], one["id"] is None) for one in listed] == [("broken", True), ("camera", False)]
