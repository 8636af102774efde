"""Notify systemd: ready once a model is open, alive while every open model is healthy.

The unit that `edgekit deploy --service` writes sets EDGEKIT_NOTIFY; without it nothing is sent, because an application
may notify systemd itself. The protocol is sd_notify(3): one datagram to the socket in NOTIFY_SOCKET.

Rules:
- READY=1 is sent once, after the first model was opened;
- WATCHDOG=1 is sent twice in each WATCHDOG_USEC, but not while a model is dead: systemd then restarts the service;
- a model that was closed or collected no longer counts;
- a fault here never reaches the application.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from edgekit_runtime.system.threads import begin

if TYPE_CHECKING:
    from edgekit_runtime.system.watchdog import Health


class _SupervisedModel(Protocol):
    def health(self) -> Health: ...


class Supervisor:
    """Notifies systemd.
    environment: of the process; NOTIFY_SOCKET and WATCHDOG_USEC are read once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        # seconds between two beats at the most; 0 where no watchdog runs, or one of another process
        given, of = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        own = given.isdecimal() and of in ("", str(os.getpid()))
        self._every_s = int(given) / 2e6 if own else 0.0
        self._models: weakref.WeakSet[_SupervisedModel] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._started = False

    def opened(self, model: _SupervisedModel) -> None:
        """Count this model from now on; the first one makes the service ready."""
        with self._lock:
            if self._started:
                self._models.add(model)
                return
            self.send("READY=1")
            if self._every_s > 0:  # it may be refused: the next model then begins
                begin(threading.Thread(target=self._repeat, name="edgekit-systemd", daemon=True))
            self._models.add(model)
            self._started = True

    def is_healthy(self) -> bool:
        with self._lock:
            models = list(self._models)
        return all(model.health().state != "dead" for model in models)

    def beat(self) -> bool:
        """Send WATCHDOG=1 unless a model is dead. Returns whether it was sent."""
        healthy = self.is_healthy()
        if healthy:
            self.send("WATCHDOG=1")
        return healthy

    def send(self, message: str) -> None:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.settimeout(1.0)
            sock.connect(self._address)
            sock.send(message.encode())

    def _repeat(self) -> None:
        pause = threading.Event()
        while True:
            with contextlib.suppress(Exception):
                self.beat()
            pause.wait(self._every_s)


_lock = threading.Lock()
_of_process: dict[int, Supervisor] = {}


def notify_open(model: _SupervisedModel) -> None:
    """Tell systemd that the model is open, if the unit sets EDGEKIT_NOTIFY."""
    with _lock:
        supervisor = _of_process.setdefault(os.getpid(), Supervisor(os.environ))
    supervisor.opened(model)
