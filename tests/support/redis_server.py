"""A real Redis or Valkey on a loopback port of its own, that a test may stop, hold and kill."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from parts import missing
from ports import free_port


class RedisServer:
    """`with RedisServer(folder) as server:`. Nothing is kept on disk."""

    def __init__(self, folder: Path) -> None:
        if find_spec("redis") is None:
            missing("redis, the client library", "pip install 'redis>=5'")
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            missing("redis-server", "sudo apt-get install redis-server")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                         "--dir", str(folder), "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As a service manager does after a crash: on the same port, empty."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        until = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            assert time.monotonic() < until, "redis-server does not answer"
            assert self._process.poll() is None, "redis-server ended"
            time.sleep(0.02)  # another program's start can only be polled for

    def hold(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
