"""A real mosquitto on a loopback port of its own, that a test may kill.

On a laptop without mosquitto amqtt stands in, which `dev` installs, where a test needs no setting of mosquitto's. In CI
it does not.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from parts import missing
from ports import free_port

WHERE = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])

STAND_IN = """
import sys, threading
from edgekit.fleet.serve import EmbeddedBroker
broker = EmbeddedBroker(int(sys.argv[1])).__enter__()
threading.Event().wait()
"""


def _missing() -> None:
    missing("mosquitto", "sudo apt-get install mosquitto")


class Mosquitto:
    """`with Mosquitto(folder) as broker:`. settings: more lines for its configuration; amqtt cannot stand in then.

    most_bytes: of a message; amqtt knows no bound.
    """

    def __init__(self, folder: Path, *settings: str, port: int | None = None, most_bytes: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        config = folder / f"mosquitto-{self.port}.conf"
        binary = shutil.which("mosquitto", path=WHERE)
        if binary is not None:
            self._command = [binary, "-c", str(config)]
        elif settings or os.environ.get("CI") == "true" or find_spec("amqtt") is None:
            _missing()
        else:
            self._command = [sys.executable, "-c", STAND_IN, str(self.port)]
        anonymous = [] if any(line.startswith("allow_anonymous") for line in settings) else ["allow_anonymous true"]
        lines = [f"listener {self.port} 127.0.0.1", "persistence false", *anonymous, *settings]
        if most_bytes is not None:
            lines.append(f"message_size_limit {most_bytes}")
        if os.geteuid() == 0:
            lines.append("user root")  # or it gives its rights up, and cannot read a test's folder
        config.write_text("\n".join(lines) + "\n")
        self._log = (folder / f"mosquitto-{self.port}.log").open("w")
        self._process: subprocess.Popen[bytes] | None = None

    def need_mqtt5(self) -> None:
        """The test needs what MQTT 3 lacks, or greets and leaves before a client knows the version."""
        if self._command[0] == sys.executable:
            _missing()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < until, "mosquitto does not listen"
                assert self._process.poll() is None, Path(self._log.name).read_text()
                time.sleep(0.02)
            else:
                return

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """While it runs."""
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()
