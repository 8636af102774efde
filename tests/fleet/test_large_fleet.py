"""docs/large-fleet.md is done, command by command, with 200 boards: a real mosquitto, PostgreSQL and HAProxy with TLS.

Not done: installing packages, users of the system, and their rights on files. systemd's part is played by a script that
starts what the units say, with their environment; systemd itself reads the units in a test of its own.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from mosquitto import WHERE
from parts import missing
from ports import free_port
from postgres import Postgres

from edgekit.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "large-fleet.md").read_text(encoding="utf-8")
STEPS = re.findall(
    r"<!-- run by tests/fleet/test_large_fleet.py -->\n```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)
SERVER, COMPOSE = ROOT / "container" / "server", ROOT / "container" / "compose.yaml"
INSTALLS = ("apt-get ", "python3 -m venv ", "/opt/edgekit/bin/pip ", "useradd ")
BOARDS = 200

SYSTEMCTL = r"""
import os, re, shlex, signal, socket, subprocess, sys, time
from pathlib import Path

root, place = Path(os.environ["PLAY_ROOT"]), Path(os.environ["PLAY_ROOT"]) / "run"
verb, *rest = sys.argv[1:]
names = [name.removesuffix(".service") for name in rest if name != "--now"]
units = root / "etc/systemd/system"

def said(name, key):
    files = [units / f"{name}.service", *sorted((units / f"{name}.service.d").glob("*.conf"))]
    text = "\n".join(file.read_text() for file in files if file.exists()).replace("\\\n", " ")
    found = re.findall(rf"^{key}=(.*)$", text, re.M)
    return found[-1] if found else ""

def stop(name):
    file = place / f"{name}.pid"
    if file.exists():
        pid = int(file.read_text())
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}/stat").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.02)
        file.unlink()

def start(name):
    env = dict(os.environ, PGUSER="edgekit")
    if file := said(name, "EnvironmentFile"):
        env.update(line.split("=", 1) for line in Path(file).read_text().split())
    command = f"haproxy -db -f {root}/etc/haproxy/haproxy.cfg" if name == "haproxy" else said(name, "ExecStart")
    words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda found: env[found[1]], command))
    if name == "mosquitto" and os.geteuid() == 0:  # or it gives its rights up, and cannot read a test's folder
        config = Path(words[-1])
        config.write_text(config.read_text().replace("user root\n", "") + "user root\n")
    if said(name, "Type") == "oneshot":
        sys.exit(subprocess.run(words, env=env).returncode)
    with (place / f"{name}.log").open("a") as log:
        own = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
        running = subprocess.Popen(words, env=env, **own)
    (place / f"{name}.pid").write_text(str(running.pid))
    port = int(os.environ["PLAY_" + name.replace("-", "_")])
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if running.poll() is not None:
                sys.exit(f"{name} ended: " + (place / f"{name}.log").read_text())
            time.sleep(0.02)

for name in names:
    if name.endswith(".timer"):
        assert (units / name).exists(), name
        continue
    if verb in ("stop", "restart"):
        stop(name)
    if verb in ("start", "restart") or "--now" in rest:
        start(name)
"""
RUNUSER = """#!/bin/sh
[ "$2" = postgres ] && PGUSER=fleet || PGUSER=$2
export PGUSER
shift 3
exec "$@"
"""


@pytest.fixture(scope="module")
def postgres():
    with Postgres() as server:
        yield server


@pytest.fixture
def machine(tmp_path, postgres):
    """A folder in which /etc, /var and /opt lie, and what runs the page's commands there."""
    for program, package in (("mosquitto", "mosquitto"), ("haproxy", "haproxy"), ("pg_dump", "postgresql")):
        if shutil.which(program, path=f"{WHERE}{os.pathsep}{postgres._bin}") is None:
            missing(program, f"sudo apt-get install {package}")
    made = Machine(tmp_path, postgres)
    yield made
    for file in (tmp_path / "run").glob("*.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


class Machine:
    def __init__(self, root: Path, postgres: Postgres) -> None:
        self.root = root
        self.pages, self.plain, self.inside, self.broker = (free_port() for _ in range(4))
        for folder in ("run", "bin", "opt/edgekit/bin", "etc/systemd/system", "etc/haproxy", "clone/container/server"):
            (root / folder).mkdir(parents=True)
        for file in SERVER.iterdir():
            copy = root / "clone/container/server" / file.name
            copy.write_text(self.moved(file.read_text()))
            copy.chmod(file.stat().st_mode)
        python, checkout = shlex.quote(sys.executable), "from edgekit.cli import main; main()"
        self._script("opt/edgekit/bin/edgekit", f"#!/bin/sh\nexec {python} -c '{checkout}' \"$@\"\n")
        (root / "bin/systemctl.py").write_text(SYSTEMCTL)
        self._script("bin/systemctl", f'#!/bin/sh\nexec {python} {root}/bin/systemctl.py "$@"\n')
        self._script("bin/runuser", RUNUSER)
        self._script("bin/chown", "#!/bin/sh\n")
        self.environ = {
            **os.environ, "PATH": f"{root}/bin:{postgres._bin}:{WHERE}", "PGHOST": "127.0.0.1",
            "PGPORT": str(postgres.port), "PLAY_ROOT": str(root), "PLAY_mosquitto": str(self.broker),
            "PLAY_edgekit_fleet": str(self.inside), "PLAY_haproxy": str(self.pages),
        }  # fmt: skip

    def _script(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)
        (self.root / name).chmod(0o755)

    def moved(self, text: str) -> str:
        """What the page or a file says, for this folder, these ports and 200 boards."""
        text = "\n".join(line for line in text.split("\n") if not line.startswith(INSTALLS))
        text = re.sub(r"(?<![\w.@}])/(etc|var|opt)/", rf"{self.root}/\1/", text).replace(
            "tar -C /", f"tar -C {self.root}"
        )
        text = text.replace("/usr/sbin/mosquitto", "mosquitto").replace(
            "https://fleet.example", f"https://fleet.example:{self.pages}"
        )
        for was, now in (
            ("fleet.example", "localhost"), ("bind :80\n", f"bind 127.0.0.1:{self.plain}\n"),
            ("bind :443", f"bind 127.0.0.1:{self.pages}"), ("8787", str(self.inside)), ("8883", str(self.broker)),
            (" 0 9999", f" 0 {BOARDS - 1}"), ("--devices 10000", f"--devices {BOARDS} --backlog 2"),
            ("ulimit -n 20000", "ulimit -n 1024"), ("--retry 20", "--retry 100"),
        ):  # fmt: skip
            text = text.replace(was, now)
        return text

    def do(self, *steps: str) -> str:
        script = "set -euo pipefail\n" + self.moved("\n".join(steps))
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.root / "clone", env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def read(self, path: str):
        """JSON of the pages, through the proxy, with the password."""
        password = (self.root / "etc/edgekit/fleet-password").read_text().strip()
        asked = urllib.request.Request(f"https://localhost:{self.pages}{path}")
        asked.add_header("Authorization", "Basic " + base64.b64encode(f"test:{password}".encode()).decode())
        trusted = ssl.create_default_context(cafile=str(self.root / "etc/edgekit/tls/ca.pem"))
        with urllib.request.urlopen(asked, timeout=60, context=trusted) as answer:
            assert answer.headers["Strict-Transport-Security"]
            return json.load(answer)


def test_the_page_of_a_large_fleet_is_done_with_200_boards_and_restored_from_its_backup(machine):
    assert len(STEPS) == 8
    machine.do(*STEPS[:6])
    before, seen = machine.read("/healthz"), -1
    while seen < before["windows"]:  # the last ones are gathered for a moment, and the backup must have them
        time.sleep(2)
        seen, before = before["windows"], machine.read("/healthz")
    machine.do(*STEPS[6:-1])
    assert (before["devices"], before["lost"], before["connected"], before["store_error"]) == (BOARDS, 0, True, "")
    assert before["windows"] >= BOARDS * 2
    refused = urllib.request.HTTPErrorProcessor()
    refused.https_response = refused.http_response = lambda _request, answer: answer
    plain = urllib.request.build_opener(refused).open(f"http://127.0.0.1:{machine.plain}/", timeout=60)
    assert (plain.status, plain.headers["Location"][:8]) == (301, "https://")
    (kept,) = (machine.root / "var/backups/edgekit").iterdir()
    assert kept.stat().st_mode & 0o77 == 0
    machine.do("systemctl stop edgekit-fleet.service")
    password = (machine.root / "etc/edgekit/fleet-password").read_text()
    for folder in ("etc/edgekit", "var/lib/edgekit", "var/lib/mosquitto/edgekit"):
        shutil.rmtree(machine.root / folder)
    machine.do(STEPS[-1], STEPS[4].splitlines()[-1])
    assert (machine.root / "etc/edgekit/fleet-password").read_text() == password
    after = machine.read("/healthz")
    assert (after["devices"], after["windows"]) == (BOARDS, before["windows"])
    assert machine.read("/api/v1/devices?limit=1")["count"] == BOARDS
    machine.do(STEPS[5])
    again = machine.read("/healthz")
    assert (again["devices"], again["lost"]) == (BOARDS, 0)
    assert again["windows"] >= before["windows"] + BOARDS * 2


def test_systemd_finds_no_fault_in_the_units(tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is missing; install it with: sudo apt-get install systemd")
    for unit in (
        "edgekit-fleet.service",
        "edgekit-fleet-backup.service",
        "edgekit-fleet-backup.timer",
        "mosquitto.conf",
    ):
        name = unit.replace(".conf", ".service")
        text = re.sub(r"/\S+/(edgekit|backup\.sh|mosquitto) ", "/bin/true ", (SERVER / unit).read_text())
        (tmp_path / name).write_text(text)
        done = subprocess.run([tool, "verify", "--man=no", tmp_path / name], capture_output=True, text=True, timeout=60)
        assert not [line for line in done.stderr.splitlines() if "edgekit" in line or name in line], done.stderr


def read_options(*words: str) -> dict:
    """Of `edgekit fleet serve`, as it would read these."""
    fleet = cli.get_command(cli.make_context("edgekit", ["fleet"], resilient_parsing=True), "fleet")
    return fleet.commands["serve"].make_context("serve", list(words)).params


KEYS = {
    "restart", "security_opt", "logging", "image", "build", "command", "ports", "volumes", "networks", "ulimits",
    "mem_limit", "pids_limit", "environment", "healthcheck", "shm_size", "depends_on", "read_only", "tmpfs", "cap_drop",
    "sysctls",
}  # fmt: skip
"""Of a service, by the Compose specification."""


def test_the_compose_file_names_what_exists(monkeypatch):
    """Its shape alone: no container is started."""
    monkeypatch.setenv("FLEET_BROKER", "mqtts://ingest:x@fleet.example:8883")
    file = yaml.safe_load(COMPOSE.read_text())
    assert set(file) == {"name", "x-kept", "services", "volumes", "networks"}
    services = file["services"]
    for name, service in services.items():
        assert set(service) <= KEYS, name
        assert {"mem_limit", "pids_limit", "restart"} <= set(service), name
        assert set(service["networks"]) <= set(file["networks"])
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (
                source in file["volumes"]
                or source.startswith(("./tls", "./broker"))
                or (COMPOSE.parent / source).exists()
            ), volume
    fleet = services["fleet"]
    assert f"FROM base AS {fleet['build']['target']}\n" in (ROOT / "container/Containerfile").read_text()
    words = [re.sub(r"\$\{\w+:\?\}", "fleet.example", word) for word in fleet["command"]]
    (proxy,) = read_options(*words)["proxies"]
    assert proxy == services["proxy"]["networks"]["fleet"]["ipv4_address"]
    asked = {word.removeprefix("env:") for word in words if word.startswith("env:")}
    assert asked <= set(fleet["environment"])
    wanted = set(re.findall(r"\$\{(\w+):\?\}", COMPOSE.read_text()))
    assert wanted == set(re.findall(r"`([A-Z_]+)`", PAGE.partition("container/.env")[2].partition("then:")[0]))
