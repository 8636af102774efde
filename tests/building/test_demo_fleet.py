"""`edgekit demo --fleet`: until Ctrl-C, wherever its output goes; with --json its checks alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from conftest import run_edgekit

pytestmark = pytest.mark.convert


def test_checks_its_own_pages_and_exits(demo):
    assert demo.ran.code == 0, demo.ran.err
    ran = run_edgekit("demo", "--fleet", "--json", cwd=demo.directory)
    assert ran.code == 0, ran.err
    assert len(ran.json["checks"]) == 12
    assert not [check for check in ran.json["checks"] if check["problem"]]


@pytest.mark.skipif(os.name == "nt", reason="SIGINT is POSIX")
def test_into_a_pipe_it_serves_until_ctrl_c_and_says_that_it_ends(demo, tmp_path):
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "demo", "--fleet"]
    with (tmp_path / "errors").open("w+b") as errors:  # a pipe that nobody reads would fill
        child = subprocess.Popen(command, cwd=demo.directory, stdout=subprocess.PIPE, stderr=errors)
        said = b""
        while b"Ctrl-C stops it." not in said:
            said += (line := child.stdout.readline())
            assert line, said
        url = next(word for word in said.decode().split() if word.startswith("http://"))
        page = urllib.request.urlopen(url, timeout=30).read().decode()
        assert page.count('class="state on"') == 14, "no board of the story has gone"
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=120)
        errors.seek(0)
        assert b"Traceback" not in errors.read()
    assert child.returncode == 0, said
    assert rest.endswith(b"The fleet ends: its page, its broker and its boards.\n")
