"""What systemd is told: by a real open model, over a real datagram socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

import pytest
import tiny

from edgekit_runtime.system.systemd import Supervisor
from edgekit_runtime.system.watchdog import Health

WAIT_S = 60.0


@pytest.fixture
def manager(tmp_path):
    """systemd's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(WAIT_S)
        yield sock


@dataclass(eq=False)
class Watched:
    state: str = "ready"

    def health(self) -> Health:
        return Health(self.state)


def supervisor(manager, **more) -> Supervisor:
    return Supervisor({"NOTIFY_SOCKET": manager.getsockname(), **more})


def test_the_first_open_model_makes_the_service_ready_and_the_second_says_nothing(manager):
    supervised, first, second = supervisor(manager), Watched(), Watched()
    supervised.opened(first)
    supervised.opened(second)
    assert manager.recv(100) == b"READY=1"
    assert supervised.beat()
    assert manager.recv(100) == b"WATCHDOG=1"


def test_a_dead_model_stops_the_watchdog_and_a_closed_or_collected_one_does_not(manager):
    supervised, model, other = supervisor(manager), Watched(), Watched("dead")
    supervised.opened(model)
    supervised.opened(other)
    assert not supervised.beat()
    del other
    assert supervised.beat()
    model.state = "closed"
    assert supervised.beat()
    model.state = "dead"
    assert not supervised.beat()


def test_a_manager_that_is_gone_costs_the_application_nothing(tmp_path):
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "nonsense"}).opened(Watched())


@pytest.mark.parametrize("asked", [True, False], ids=["the unit asks", "another unit"])
def test_an_application_that_opens_a_bundle_is_reported_only_where_its_unit_asks(manager, tmp_path, asked):
    bundle = tiny.bundle(tmp_path)
    script = (
        "import sys\nfrom edgekit_runtime import open_bundle\n"
        f"with open_bundle({str(bundle)!r}):\n    print('open', flush=True)\n    sys.stdin.read()\n"
    )
    environment = os.environ | {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000"}
    environment |= {"EDGEKIT_NOTIFY": "1"} if asked else {}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdout.readline() == b"open\n"
        manager.setblocking(asked)
        manager.settimeout(WAIT_S if asked else 0)
        if asked:
            assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        else:
            with pytest.raises(BlockingIOError):
                manager.recv(100)
        child.communicate(b"")
