"""`edgekit demo --fleet`: until Ctrl-C, wherever its output goes; with --json its checks alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from edgekit.cli.demo import _BUNDLE
from edgekit.demo import assets, fallback
from edgekit.demo.story import Check


@pytest.mark.convert
@pytest.mark.skipif(os.name == "nt", reason="SIGINT is POSIX")
def test_into_a_pipe_it_checks_its_own_pages_and_serves_until_ctrl_c(demo, tmp_path):
    assert demo.ran.code == 0, demo.ran.err
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "demo", "--fleet"]
    with (tmp_path / "errors").open("w+b") as errors:  # a pipe that nobody reads would fill
        child = subprocess.Popen(command, cwd=demo.directory, stdout=subprocess.PIPE, stderr=errors)
        said = b""
        while b"Ctrl-C stops it." not in said:
            said += (line := child.stdout.readline())
            assert line, said
        url = next(word for word in said.decode().split() if word.startswith("http://"))
        for _ in range(60):  # on a busy machine one may be late
            page = urllib.request.urlopen(url, timeout=30).read().decode()
            if page.count('class="state on"') == 14:
                break
            time.sleep(1)
        assert page.count('class="state on"') == 14, "no board of the story has gone"
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=120)
        errors.seek(0)
        told = errors.read().decode()
    assert "Traceback" not in told
    assert "dock_camera 7 on raspberry-pi-4: p99" in told
    checks = [line for line in said.decode().splitlines() if line.startswith(("yes  ", "no  "))]
    assert len(checks) == 14, said
    assert all(line.startswith("yes") for line in checks), said
    assert child.returncode == 0, said
    shown = [
        "edgekit build demo/file_types.onnx", "--allow-random", "edgekit fleet rollout ", "--shadow 100%",
        "edgekit fleet rollouts 1 ", "aborted; shadow: its answers differ: ", "no caller got an answer of it",
        "edgekit fleet samples pull ", "--calibration demo/fleet/field/kiosk_files", "inputs come from boards (",
        "there the boards answered as the original does on ", "edgekit fleet rollouts 2 ", "undone; wave 1: ",
    ]  # fmt: skip
    text = said.decode()
    places = [text.index(part) for part in shown]
    assert places == sorted(places), text
    samples = json.loads((demo.folder / "fleet" / "field" / "kiosk_files" / "samples.json").read_text())["samples"]
    assert {one["version"] for one in samples} == {"1"}
    assert {"low-margin", "shadow"} <= {one["why"] for one in samples}
    assert rest.endswith(b"The fleet ends: its page, its broker and its boards.\n")


@pytest.mark.parametrize("problem", ["", "a board is missing"])
def test_with_json_it_ends_after_its_checks(problem, in_process, monkeypatch, tmp_path):
    bundle = tmp_path / "demo" / _BUNDLE
    bundle.parent.mkdir(parents=True)
    bundle.touch()
    checks, story = [Check("the page lists every board", problem)], [Check("an alert opens")]
    served = SimpleNamespace(
        server=SimpleNamespace(url="http://127.0.0.1:1/"), checks=lambda: checks, story=lambda run, say: story
    )
    monkeypatch.setattr(assets, "make_assets", lambda folder, progress: None)
    monkeypatch.setattr(fallback, "fleet_demo", lambda *given: contextlib.nullcontext(served))
    ran = in_process("demo", "--fleet", "--json")
    assert ran.code == int(bool(problem))
    assert ran.json == {"url": served.server.url, "checks": [asdict(check) for check in (*checks, *story)]}
