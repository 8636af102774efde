"""A systemd unit of a command."""

from __future__ import annotations

import configparser
import subprocess

import pytest

from edgekit.shipping import ShippingError
from edgekit.shipping.service import unit

COMMANDS = {
    "python3 /home/pi/app.py {bundle}": "/usr/bin/env python3 /home/pi/app.py @PREFIX@/current/bundle.ekb",
    "/usr/local/bin/app --rate 5%": "/usr/local/bin/app --rate 5%%",
    "{python} -m app": "@PREFIX@/current/env/bin/python -m app",
    "app ${HOME} {bundle}": "/usr/bin/env app ${HOME} @PREFIX@/current/bundle.ekb",
    'sh -c "exec app"': '/usr/bin/env sh -c "exec app"',
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_is_found_in_the_package_s_own_environment(command):
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment]
    parsed.read_string(unit("a title", command).replace("@USER@\n", ""))
    assert parsed["Service"]["ExecStart"] == COMMANDS[command]
    assert parsed["Unit"]["Description"] == "a title"
    assert parsed["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("command", ["", "  ", "app\nExecStartPre=/bin/rm", "app 'open", "app @USER@", "app {nope}"])
def test_what_is_no_command_is_refused(command):
    with pytest.raises(ShippingError, match="is no command for a service"):
        unit("a title", command)


def test_systemd_itself_finds_no_fault_in_it(tmp_path):
    """Where systemd-analyze is installed; the unit's syntax is its business."""
    import shutil

    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is missing; install it with: sudo apt-get install systemd")
    path = tmp_path / "edgekit-tiny.service"
    path.write_text(unit("a title", "true {bundle}").replace("@PREFIX@", str(tmp_path)).replace("@USER@\n", ""))
    done = subprocess.run([tool, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60)
    assert path.name not in done.stderr, done.stderr
