"""Children of our own: slow is not hung, and who is to blame for an end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from edgekit_runtime.system import children
from edgekit_runtime.system.children import crash_signal, interrupt_signal, run

LIMIT_S = 60


def python(code, **options):
    return run([sys.executable, "-c", code], text=True, **options)


def test_it_gives_what_a_child_said_and_how_it_ended():
    done = python(
        "import sys; print(input()); print('why', file=sys.stderr); sys.exit(3)", input="hello", timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello\n", "why\n")


def test_a_child_that_goes_on_telling_something_may_take_longer_than_its_limit():
    code = "import time\nfor n in range(12):\n    print(n, flush=True)\n    time.sleep(0.2)"
    assert python(code, timeout=2.0).stdout.split() == [str(n) for n in range(12)]


def test_a_silent_one_is_ended_and_what_it_said_is_kept():
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        python("import time; print('here', flush=True); time.sleep(600)", timeout=1.0)
    assert b"here" in caught.value.stdout


@pytest.mark.parametrize(
    ("code", "own", "others"),
    [
        (0, "", ""),
        (1, "", ""),
        (-signal.SIGSEGV, "SIGSEGV", ""),
        (-signal.SIGILL, "SIGILL", ""),
        (-signal.SIGKILL, "", "SIGKILL"),
        (-signal.SIGTERM, "", "SIGTERM"),
        (-250, "", "signal 250"),
    ],
)
def test_a_crash_is_its_own_and_any_other_signal_others(code, own, others):
    assert (crash_signal(code), interrupt_signal(code)) == (own, others)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_child_ends_with_its_parent_also_where_its_own_code_does_not_look():
    hung = (
        "import time; from edgekit_runtime.system.children import die_with_parent as d; d(); print('up', flush=True); "
        "time.sleep(600)"
    )
    program = (
        "import subprocess, sys\nfrom edgekit_runtime.system.children import environment\nchild = "
        f"subprocess.Popen([sys.executable, '-c', {hung!r}], env=environment(), stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=children.environment()
    ) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        watched = os.pidfd_open(grandchild)
        parent.kill()
    try:
        ended = select.poll()
        ended.register(watched, select.POLLIN)
        assert ended.poll(20_000)
    finally:
        os.close(watched)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_child_whose_parent_went_before_it_could_ask_ends_at_once():
    program = "from edgekit_runtime.system.children import die_with_parent as d; d(); print('lives')"
    env = {**children.environment(), "EDGEKIT_PARENT": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_no_child_gets_the_passphrase_of_a_signing_key(monkeypatch):
    monkeypatch.setenv("EDGEKIT_PASSPHRASE", "secret")
    assert "EDGEKIT_PASSPHRASE" not in children.environment()
