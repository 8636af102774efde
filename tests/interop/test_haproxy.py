"""Several hosts behind one name: a real HAProxy before two `edgekit host serve`, one of which is killed."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import tiny
from heated import heat, wait_for
from others import Started
from parts import missing
from ports import free_port

from edgekit_runtime import BudgetExceeded, open_bundle

CONFIG = """
global
    stats socket {socket} mode 600
defaults
    mode http
    timeout connect 200ms
    timeout client 30s
    timeout server 30s
    retries 3
    option redispatch 1
    retry-on conn-failure empty-response response-timeout
frontend devices
    bind 127.0.0.1:{port}
    default_backend hosts
backend hosts
    balance roundrobin
    option httpchk GET /v2/health/ready
    default-server check inter 200ms fall 1 rise 1
    server a 127.0.0.1:{a}
    server b 127.0.0.1:{b}
"""


@pytest.fixture
def two_hosts(tmp_path):
    """(the bundle, {name: (process, port)}), each host in a process of its own."""
    bundle, running = tiny.bundle(tmp_path), {}
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "host", "serve", str(bundle)]
    try:
        for name in ("a", "b"):
            process = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            url = json.loads(process.stdout.readline())["listening"]
            running[name] = process, int(url.rpartition(":")[2])
        yield bundle, running
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait(20)
            process.stdout.close()


@pytest.fixture
def haproxy(two_hosts, tmp_path):
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if program is None:
        missing("HAProxy", "apt-get install haproxy")
    port, file = free_port(), tmp_path / "haproxy.cfg"
    ports = {name: at for name, (_, at) in two_hosts[1].items()}
    file.write_text(CONFIG.format(socket=tmp_path / "stats", port=port, **ports))
    with Started([program, "-db", "-f", file], "tiny", tmp_path / "log", port) as started:
        yield started


def served_by(folder) -> dict[str, int]:
    """Server -> requests that HAProxy gave it, those for its health apart."""
    with socket.socket(socket.AF_UNIX) as stats:
        stats.connect(str(folder / "stats"))
        stats.sendall(b"show stat\n")
        said = b"".join(iter(lambda: stats.recv(65536), b""))
    rows = csv.DictReader(io.StringIO(said.decode().removeprefix("# ")))
    return {row["svname"]: int(row["stot"]) for row in rows if row["pxname"] == "hosts"}


def test_callers_keep_their_answers_when_one_of_several_hosts_is_killed(two_hosts, haproxy, tmp_path):
    bundle, running = two_hosts
    with open_bundle(bundle, hosts=[haproxy.url], cache=False, budget_ms=500.0) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        heat(model, 500.0)
        answers = [model.predict(tiny.BLUE) for _ in range(40)]
        assert {answer.source for answer in answers} == {"host"}
        shares = served_by(tmp_path)
        assert min(shares["a"], shares["b"]) > 0
        running["a"][0].send_signal(signal.SIGKILL)
        after, refused = [], 0
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            try:
                after.append(model.predict(tiny.BLUE))
            except BudgetExceeded:  # between two probes
                refused += 1
            time.sleep(0.01)  # a device that asks now and then
        assert {answer.top(1)[0].label for answer in after} == {"blue"}
        assert refused <= 0.05 * len(after)
        assert {answer.source for answer in after[len(after) // 4 :]} == {"host"}
        assert served_by(tmp_path)["b"] - shares["b"] >= 0.9 * len(after)
