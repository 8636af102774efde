"""A shell completes names that edgekit knows: asked as bash asks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from edgekit.building.build_request import METRICS
from edgekit.cli.main import cli
from edgekit.packaging.key_folder import KeyFolder

ASKED = {
    "a command": (["edgekit"], "rol", "rollback"),
    "a profile to build for": (["build", "net.keras", "--profile"], "raspberry-pi-4", "raspberry-pi-4-32bit"),
    "a profile to check for": (["check", "net.ekb", "--profile"], "jetson", "jetson-nano"),
    "a profile to estimate for": (["estimate", "net.ekb", "--profile"], "jetson", "jetson-nano"),
    "a profile to deploy for": (["deploy", "net.ekb", "--profile"], "jetson", "jetson-nano"),
    "a profile to install for": (["install", "net.ekb", "--profile"], "jetson", "jetson-nano"),
    "a profile to verify for": (["verify", "net.ekb", "--profile"], "jetson", "jetson-nano"),
    "a profile to show": (["profiles", "show"], "x86", "x86-64"),
    "the second of two profiles": (["profiles", "diff", "x86-64"], "raspberry-pi-5", "raspberry-pi-5"),
    "a recipe": (["build", "net.keras", "--recipe"], "tflite-int8", "tflite-int8-mixed"),
    "a metric": (["build", "net.keras", "--metric"], "pixel", "pixel-accuracy"),
    "an engine": (["run", "net.ekb", "--engine"], "lite", "litert"),
    "an engine to deploy with": (["deploy", "net.ekb", "--engine"], "tflite", "tflite-runtime"),
    "a code": (["doctor"], "down", "downgrade"),
    "a key to sign with": (["build", "net.keras", "--sign"], "al", "alice"),
    "a key to trust": (["keys", "trust"], "al", "alice"),
    "a key to revoke": (["keys", "revoke"], "al", "alice"),
}


@pytest.fixture(autouse=True)
def _keys(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_KEYS", str(tmp_path / "keys"))
    KeyFolder(tmp_path / "keys").create("alice")


def completed(words, incomplete):
    return [
        one.value for one in ShellComplete(cli, {}, "edgekit", "_EDGEKIT_COMPLETE").get_completions(words, incomplete)
    ]


@pytest.mark.parametrize("case", ASKED)
def test_a_name_is_completed(case):
    words, incomplete, wanted = ASKED[case]
    found = completed(words if words != ["edgekit"] else [], incomplete)
    assert wanted in found
    assert all(name.startswith(incomplete) for name in found)


def test_the_metrics_are_those_there_are():
    metrics = pytest.importorskip("edgekit_converters.fidelity.metrics")
    assert set(METRICS) == set(metrics._NAMES)


def test_a_profile_of_ones_own_is_completed_too(in_process, tmp_path):
    text = in_process("profiles", "show", "raspberry-pi-4", "--toml").out
    (tmp_path / "mine-1.toml").write_text(text.replace('"raspberry-pi-4"', '"mine-1"', 1))
    assert "mine-1" in completed(["build", "net.keras", "--profile-path", str(tmp_path), "--profile"], "mine")


def test_names_that_cannot_be_listed_complete_to_nothing(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEKIT_KEYS", str(tmp_path / "file"))
    assert completed(["keys", "trust"], "al") == []


def test_the_line_of_the_readme_gives_a_shell_its_script():
    for shell in ("bash", "zsh", "fish"):
        env = os.environ | {"_EDGEKIT_COMPLETE": f"{shell}_source"}
        command = [sys.executable, "-c", "from edgekit.cli import main; main()"]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert "_EDGEKIT_COMPLETE" in done.stdout, done.stderr
