"""A real mosquitto on a loopback port of its own, that a test may kill."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from parts import missing

__all__ = ["Mosquitto", "free_port"]

WHERE = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Mosquitto:
    """`with Mosquitto(folder) as broker:`. settings: more lines for its configuration."""

    def __init__(self, folder: Path, *settings: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._binary = shutil.which("mosquitto", path=WHERE)
        if self._binary is None:
            missing("mosquitto", "sudo apt-get install mosquitto")
        self._config = folder / f"mosquitto-{self.port}.conf"
        anonymous = [] if any(line.startswith("allow_anonymous") for line in settings) else ["allow_anonymous true"]
        lines = [f"listener {self.port} 127.0.0.1", "persistence false", *anonymous, *settings]
        if os.geteuid() == 0:
            lines.append("user root")  # or it gives its rights up, and cannot read a test's folder
        self._config.write_text("\n".join(lines) + "\n")
        self._log = (folder / f"mosquitto-{self.port}.log").open("w")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._binary, "-c", self._config], stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
        )
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
