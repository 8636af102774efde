"""An engine beside this environment: what is said where it cannot be installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edgekit.boards import replay
from edgekit.boards.replay import NoEnvironmentError, environment
from edgekit_runtime.system.errors import EngineError, MemoryExceeded, SelfTestError

PIP = """\
WARNING: Location 'file:///somewhere/simple/tflite-runtime/' is ignored: it is neither a file nor a directory.
ERROR: Could not find a version that satisfies the requirement tflite-runtime==9.9 (from versions: 2.14.0)
ERROR: No matching distribution found for tflite-runtime==9.9
"""


def refusing(said):
    return lambda *given, **more: subprocess.CompletedProcess(given, 1, "", said)


def test_the_reason_is_the_error_and_not_the_warnings_before_it(tmp_path):
    with pytest.raises(NoEnvironmentError) as refused:
        environment("tflite-runtime", "9.9", tmp_path, refusing(PIP))
    assert "No matching distribution found for tflite-runtime==9.9" in refused.value.what
    assert "WARNING" not in refused.value.what


def test_a_long_reason_keeps_its_end_which_is_the_cause(tmp_path):
    said = (
        f"error: Failed to install\n{'  cause: Failed to copy to /a/long/path' * 20}\n"
        "  cause: No space left on device\n"
    )
    with pytest.raises(NoEnvironmentError) as refused:
        environment("tflite-runtime", "9.9", tmp_path, refusing(said))
    assert refused.value.what.endswith("No space left on device")
    assert "error: Failed to install" in refused.value.what
    assert len(refused.value.what) < 500


PIP_FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
UV_QUOTA = (
    "error: Failed to create virtual environment\n  cause: failed to write to file `/s/.x/CACHEDIR.TAG`: "
    "Disk quota exceeded (os error 122)"
)


@pytest.mark.parametrize("said", [PIP_FULL, UV_QUOTA])
def test_where_the_disk_is_full_room_is_asked_for_and_no_index(tmp_path, said):
    with pytest.raises(NoEnvironmentError) as refused:
        environment("tflite-runtime", "9.9", tmp_path, refusing(said))
    assert refused.value.do == "Free space on that disk, or set EDGEKIT_STATE_DIR to another directory"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    with pytest.raises(
        NoEnvironmentError, match=rf"file/runtimes/tflite-runtime-9\.9-{tag}: cannot be written"
    ) as refused:
        environment("tflite-runtime", "9.9", tmp_path / "file")
    assert "EDGEKIT_STATE_DIR" in refused.value.do


def test_an_environment_that_other_users_could_change_is_not_run(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(NoEnvironmentError) as refused:
        environment("tflite-runtime", "9.9", tmp_path, refusing(PIP))
    assert refused.value.do == f"Run: chmod go-w {tmp_path}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SelfTestError("golden example 0 differs"), "replay-differs"),
        (EngineError("no kernel"), "replay-refused"),
        (MemoryExceeded("no memory left"), "replay-refused"),
    ],
)
def test_answers_differ_only_where_the_replay_says_so(tmp_path, error, code):
    child = tmp_path / "python"
    said = f"#!/bin/sh\necho '{json.dumps({'loaded': True})}'\necho '{json.dumps({'error': error.as_json()})}'\n"
    child.write_text(said)
    child.chmod(0o755)
    _, (found,) = replay._run_replay(child, {}, "tflite-int8", "tflite-runtime 2.14.0")
    assert found.code == code
