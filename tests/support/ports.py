"""Ports that no other test gets: one to listen on later, and one where nothing listens.

A port of the system's choice is given to whoever asks next, as soon as it is closed.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

_BELOW_THE_SYSTEMS = range(12_000, 32_000)
"""Linux gives out 32,768 and later by itself."""


def free_port() -> int:
    """For a server that is told its port, and takes it again after a crash."""
    while True:
        port = random.SystemRandom().choice(_BELOW_THE_SYSTEMS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """Within the `with` connections to it are refused."""
    with socket.socket() as held:  # bound, and never listening
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
