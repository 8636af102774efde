"""`edgekit demo --fleet`, off a terminal: it checks its own pages and exits."""

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
    assert len(ran.json["checks"]) == 10
    assert not [check for check in ran.json["checks"] if check["problem"]]


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are POSIX")
def test_on_a_terminal_it_serves_until_ctrl_c(demo):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "demo", "--fleet"]
    child = subprocess.Popen(
        command, cwd=demo.directory, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, close_fds=True
    )
    os.close(theirs)
    said = b""
    while b"Ctrl-C ends it." not in said:
        said += os.read(ours, 1000)
    url = next(word for word in said.decode().split() if word.startswith("http://"))
    assert b"edgekit fleet" in urllib.request.urlopen(url, timeout=30).read()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    os.close(ours)
    assert child.returncode == 0, err
    assert b"Traceback" not in err
