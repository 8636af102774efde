"""--encrypt and --secret as a person uses them: what works without the key, what asks for it, and how it says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import rooted
import tiny
from click.testing import CliRunner

from edgekit.cli.main import cli
from edgekit.packaging.writer import SigningKey
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import EdgekitError

KEY, OTHER = bytes(range(100, 132)), bytes(range(160, 192))
ENGINE = "litert" if "litert" in available() else min(available())
RECIPE = tiny.RECIPE_OF_ENGINE[ENGINE]


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("EDGEKIT_SECRET", "EDGEKIT_TRUST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny.bundle(tmp_path, RECIPE, engine=ENGINE, secret=Secret([KEY]), key=SigningKey(rooted.private("alice")))


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    files = {}
    for name, key in (("right", KEY), ("wrong", OTHER)):
        files[name] = tmp_path / f"{name}.secret"
        files[name].write_text(key.hex())
        files[name].chmod(0o600)
    files["alice"] = tmp_path / "alice.pub.pem"
    files["alice"].write_bytes(rooted.public_pem("alice"))
    return files


def said(*arguments: str | Path):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def code(result) -> str | None:
    return result.exception.code if isinstance(result.exception, EdgekitError) else None


def test_inspect_tells_what_it_is_without_the_key_and_opens_it_with_it(path: Path, keys):
    closed, opened = said("inspect", path), said("inspect", path, "--secret", keys["right"])
    assert f"encrypted  with the key {Secret([KEY]).id:.12}; not opened (give --secret)" in closed.stdout
    assert "which is here and opens every blob" in opened.stdout
    assert json.loads(said("inspect", path, "--json").stdout)["locked"] is True
    assert json.loads(said("inspect", path, "--json", "--secret", keys["right"]).stdout)["locked"] is False


def test_verify_checks_signature_and_digests_without_the_key_and_says_what_it_left_out(path: Path, keys):
    """S22"""
    report = json.loads(said("verify", path, "--trust", keys["alice"], "--json").stdout)
    assert report["trusted"]
    marks = {one["check"].split()[0]: one["ok"] for one in report["checks"]}
    assert [marks[name] for name in ("signature", "contents", "model", "golden", "replay")] == [
        True,
        True,
        None,
        None,
        None,
    ]
    damaged = bytearray(path.read_bytes())
    damaged[-70] ^= 1
    path.write_bytes(damaged)
    report = json.loads(said("verify", path, "--trust", keys["alice"], "--json").stdout)
    assert report["error"]["code"] == "bundle-integrity"


def test_verify_looks_into_it_with_the_key(path: Path, keys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGEKIT_SECRET", f"file:{keys['right']}")
    report = json.loads(said("verify", path, "--replay", "--trust", keys["alice"], "--json").stdout)
    assert all(one["ok"] for one in report["checks"]), report


def test_a_key_that_cannot_be_had_is_nothing_against_the_bundle(path: Path, keys, tmp_path: Path):
    for name, words in (("gone", "secret-unreadable"), ("bad", "secret-format")):
        (tmp_path / "bad").write_text("no key\n")
        (tmp_path / "bad").chmod(0o600)
        given = ("verify", path, "--trust", keys["alice"], "--secret", tmp_path / name)
        told = said(*given)
        assert (told.exit_code, "REFUSED" in told.stdout, "ok       signature" in told.stdout) == (1, False, True)
        assert code(told) == words
        assert said(*given, "--json").stdout == "", "the error is the one object"


def test_a_key_of_something_else_that_lies_on_the_machine_does_not_keep_verify_from_digests(
    path: Path, keys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EDGEKIT_SECRET", f"file:{keys['wrong']}")
    assert json.loads(said("verify", path, "--trust", keys["alice"], "--json").stdout)["trusted"]
    assert code(said("verify", path, "--trust", keys["alice"], "--secret", keys["wrong"])) == "secret-wrong"


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "--replay", "--allow-unsigned"), ("run", "red.npy"), ("bench", "-n", "10"),
        ("check", "--profile", "x86-64", "--no-replay"),
        ("run", ".", "--fill-cache", "answers.db"), ("estimate", "--profile", "raspberry-pi-4"),
        ("install", "--root", "root", "--allow-unsigned", "--profile", "x86-64"),
        ("deploy", "-o", "usb"), ("deploy", "pi@board.invalid"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_what_needs_the_key_says_so_in_one_line(command, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "red.npy", tiny.RED)
    name, *rest = command
    result = said(name, path, *rest)
    assert code(result) == "secret-missing", result.output
    assert "EDGEKIT_SECRET=file:PATH" in str(result.exception)


@pytest.mark.parametrize("spelling", ["", "file:", "env:", "cmd:"])
@pytest.mark.parametrize("command", [("inspect", "--secret"), ("verify", "--secret"), ("build", "--encrypt")])
def test_a_key_on_the_command_line_is_refused_and_not_repeated(command, spelling: str, path: Path):
    """S23"""
    name, option = command
    rest = ("--profile", "x86-64") if name == "build" else ()
    result = said(name, path, *rest, option, spelling + KEY.hex())
    assert code(result) == "secret-format"
    assert KEY.hex() not in result.output + str(result.exception)


def test_verify_opens_it_with_the_key_from_each_place(path: Path, keys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAMERA_KEY", KEY.hex())
    for source in (str(keys["right"]), f"file:{keys['right']}", "env:CAMERA_KEY", f"cmd:cat {keys['right']}"):
        result = said("verify", path, "--replay", "--allow-unsigned", "--secret", source, "--json")
        assert json.loads(result.stdout)["examples"] == 2, (source, result.output)


def built(folder: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder.parent)
    arguments = ["--profile", "x86-64", "--allow-random", "--recipe", "tflite-as-is", "--no-cache", "-o", folder]
    result = said("build", tiny.MODELS / "tiny_int8.tflite", *arguments, "--encrypt", key)
    assert result.exit_code == 0, result.output
    return folder / "tiny_int8-x86-64.ekb"


@pytest.mark.convert
def test_a_build_encrypts_its_bundles_and_repeats_them_byte_by_byte(
    keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("rfc8785")
    first = built(tmp_path / "first", keys["right"], monkeypatch)
    again = built(tmp_path / "again", keys["right"], monkeypatch)
    other = built(tmp_path / "other", keys["wrong"], monkeypatch)
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()
    opened = read_bundle(first, secret=str(keys["right"]))
    model = (tiny.MODELS / "tiny_int8.tflite").read_bytes()
    assert opened.blob(opened.artifact().blob) == model
    assert model[300:340] not in first.read_bytes()
    for file in (tmp_path / "first").iterdir():
        assert KEY.hex().encode() not in file.read_bytes(), file


@pytest.mark.convert
def test_a_build_without_its_key_ends_before_it_begins(tmp_path: Path):
    arguments = ["--profile", "x86-64", "--allow-random", "--recipe", "tflite-as-is", "-o", tmp_path / "out"]
    result = said("build", tiny.MODELS / "tiny_int8.tflite", *arguments, "--encrypt", tmp_path / "absent")
    assert code(result) == "secret-unreadable"
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_key_that_everybody_may_read_is_refused_with_the_command_that_mends_it(path: Path, keys):
    """S23"""
    keys["right"].chmod(0o644)
    result = said("verify", path, "--allow-unsigned", "--secret", keys["right"])
    assert code(result) == "secret-unreadable"
    assert f"Run: chmod 600 {keys['right']}" in str(result.exception)
