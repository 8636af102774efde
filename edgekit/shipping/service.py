"""A systemd unit for the application that embeds a bundle.

Rules: a program without a path is looked for in the package's own environment first; `{bundle}`, `{python}` and `{prefix}`
stand for the installed places; the unit asks for no more rights than the board's user has.

    unit("edgekit-digits", "digits", "python3 /home/pi/app.py {bundle}")
"""

from __future__ import annotations

import re
import shlex

from edgekit.shipping.errors import ShippingError

__all__ = ["unit"]

_PLACES = {"bundle": "@PREFIX@/current/bundle.ekb", "python": "@PREFIX@/current/env/bin/python", "prefix": "@PREFIX@"}
_UNIT = """\
[Unit]
Description={title}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
WorkingDirectory=@PREFIX@
Environment=PATH=@PREFIX@/current/env/bin:/usr/local/bin:/usr/bin:/bin
Environment=EDGEKIT_BUNDLE=@PREFIX@/current/bundle.ekb
Environment=EDGEKIT_STATE_DIR=@PREFIX@/state
@USER@
Restart=on-failure
RestartSec=5
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


def unit(title: str, command: str) -> str:
    """The unit's text, with @PREFIX@ and @USER@ for the installer to fill in. Raises ShippingError for what is no command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _refused(command, str(error)) from error
    if not words or any(ord(letter) < 32 for letter in command):
        raise _refused(command, "it must be one line that names a program")
    if "@" in command and ("@PREFIX@" in command or "@USER@" in command):
        raise _refused(command, "write {prefix} for the installed folder")
    for name in re.findall(r"(?<!\$)\{(\w+)\}", command):  # ${NAME} is systemd's
        if name not in _PLACES:
            raise _refused(command, f"{{{name}}} stands for nothing: {{bundle}}, {{python}} and {{prefix}} do")
    line = command.strip().replace("%", "%%")  # systemd's own sign for what it fills in
    for name, place in _PLACES.items():
        line = line.replace(f"{{{name}}}", place)
    if not line.startswith(("/", "@PREFIX@")):
        line = f"/usr/bin/env {line}"
    return _UNIT.format(title=title.replace("%", "%%"), command=line)


def _refused(command: str, why: str) -> ShippingError:
    return ShippingError(
        f"{command!r:.80} is no command for a service: {why}",
        where="--service",
        do='Write it as in a shell, for example: --service "python3 /home/pi/app.py {bundle}"',
    )
