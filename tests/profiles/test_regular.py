"""A pipe, a device and a file without end are refused wherever a person may name one, and nothing waits for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit_runtime.system.files import read_regular

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes in the file system are POSIX")
BOARD = ("--profile", "raspberry-pi-4")

COMMANDS = {
    "estimate": ("estimate", "pipe.onnx", *BOARD),
    "check": ("check", "pipe.onnx", *BOARD),
    "profiles validate": ("profiles", "validate", "pipe.toml"),
    "a profile": ("profiles", "show", "pipe.toml"),
    "a device": ("estimate", "/dev/zero", *BOARD),
    "a device to check": ("check", "/dev/zero", *BOARD),
    "a device as a profile": ("profiles", "validate", "/dev/zero"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("pipe.onnx", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_what_may_never_end_is_one_error(folder: Path, arguments: tuple[str, ...]):
    command = [sys.executable, "-c", "import sys; from edgekit.cli.main import main; sys.exit(main())", *arguments]
    done = subprocess.run([*command, "--json"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "not a regular file" in json.dumps(json.loads(done.stdout))


def test_pipes_in_a_captured_folder_say_nothing(tmp_path: Path):
    from edgekit_profiles.facts import read_facts

    for name in ("proc/cpuinfo", "etc/os-release", "usr/bin/sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    assert read_facts(tmp_path).machine == ""


def test_what_is_too_large_is_not_read(tmp_path: Path):
    file = tmp_path / "large"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="more than it may have"):
        read_regular(file, 1 << 20)
    file.write_bytes(b"small")
    assert read_regular(file, 5) == b"small"
