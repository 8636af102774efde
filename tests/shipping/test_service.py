"""A systemd unit of a command."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from edgekit.shipping.plan import ShippingError, unit, user_name

COMMANDS = {
    "python3 /home/pi/app.py {bundle}": "/usr/bin/env python3 /home/pi/app.py @PREFIX@/model",
    "/usr/local/bin/app --rate 5%": "/usr/local/bin/app --rate 5%%",
    "{python} -m app": "@PREFIX@/env/bin/python -m app",
    "app ${HOME} {bundle}": "/usr/bin/env app ${HOME} @PREFIX@/model",
    'sh -c "exec app"': '/usr/bin/env sh -c "exec app"',
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_is_found_in_the_package_s_own_environment(command):
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment]
    parsed.read_string(unit("tiny", "a title", command).replace("@USER@", "daemon"))
    assert parsed["Service"]["ExecStart"] == COMMANDS[command]
    assert parsed["Unit"]["Description"] == "a title"
    assert parsed["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("command", ["", "  ", "app\nExecStartPre=/bin/rm", "app 'open", "app @USER@", "app {nope}"])
def test_what_is_no_command_is_refused(command):
    with pytest.raises(ShippingError, match="is not a valid service command"):
        unit("tiny", "a title", command)


def test_systemd_itself_finds_no_fault_in_it(tmp_path):
    """Where systemd-analyze is installed; the unit's syntax is its business."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is missing; install it with: sudo apt-get install systemd")
    path = tmp_path / "edgekit-tiny.service"
    path.write_text(
        unit("tiny", "a title", "true {bundle}").replace("@PREFIX@", str(tmp_path)).replace("@USER@", "daemon")
    )
    done = subprocess.run([tool, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60)
    assert path.name not in done.stderr, done.stderr


def test_a_service_that_anyone_could_break_into_can_do_little():
    """By systemd's own measure: 0 is best, 10 is worst, and what runs as root with nothing forbidden has 9.4."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is missing; install it with: sudo apt-get install systemd")
    text = unit("tiny", "a title", "true {bundle}").replace("@PREFIX@", "/opt/edgekit/tiny").replace("@USER@", "daemon")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edgekit-tiny.service"
        path.write_text(text)
        command = [tool, "security", "--offline=true", "--no-pager", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r"exposure level for edgekit-tiny.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < 3.5


def test_it_waits_for_no_network_and_keeps_its_state_where_its_user_may_write():
    text = unit("tiny", "a title", "app")
    assert "network" not in text
    assert "StateDirectory=edgekit/tiny/state\n" in text
    assert "EDGEKIT_STATE_DIR=%S/edgekit/tiny/state\n" in text
    assert "WatchdogSec=60\n" in text


@pytest.mark.parametrize("name", ["tiny", "a.name.with.dots", "x" * 80, "y" * 30 + "-" + "z" * 30])
def test_its_user_has_a_name_that_useradd_takes(name):
    assert re.fullmatch(r"edgekit-[a-z0-9-]*[a-z0-9]", user_name(name))
    assert len(user_name(name)) < 32
    assert user_name(name) == user_name(name) != user_name(name + "1")
