"""Roll-outs from end to end: mosquitto, the fleet server, agents with roots of their own, models that answer there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
import tiny
from installed import BOARD, QUICK, Maker, new_key
from mosquitto import Mosquitto

from edgekit.fleet.ingest import Pace
from edgekit.fleet.rollout_runner import RollingPace
from edgekit.fleet.rollouts.comparison import LEAST_ANSWERS
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.records import now_ms
from edgekit.fleet.web import read_bundle_facts
from edgekit.packaging.bundle_options import BundleTerms
from edgekit_runtime import TelemetryOptions, open_bundle
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.install import InstallOptions, install, status
from edgekit_runtime.install.agent import Agent, AgentOptions
from edgekit_runtime.system.errors import EdgekitError

pytest.importorskip("starlette")
BOARDS = [f"porch-{n}" for n in range(6)]
SLOW_MS = 60.0


class Board:
    """An agent and an application, as two services of one board; they share the root and nothing else."""

    def __init__(self, name, broker, folder, key, first):
        self.name, self.root = name, folder / name
        asked = InstallOptions(trust=(key[1],), board=BOARD, proving=QUICK)
        install(first, self.root, asked)
        options = AgentOptions(broker.url, name, self.root, asked, spread_s=0.0, look_s=0.05, most_wait_s=0.5)
        self.agent, self.stop = Agent(options), threading.Event()
        self._telemetry = TelemetryOptions(broker.url, name, 0.4, folder / f"{name}.db", most_wait_s=0.5)
        self._threads = [
            threading.Thread(target=self.agent.run, args=(self.stop,), daemon=True),
            threading.Thread(target=self._application, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def version(self):
        return status(self.root).current.version

    def _application(self):
        """What `--then "systemctl restart camera"` does to it: it opens what is active now."""
        while not self.stop.is_set():
            link = (self.root / "current").readlink()
            with (
                contextlib.suppress(EdgekitError),
                open_bundle(self.root, telemetry=self._telemetry, cache=False) as model,
            ):
                if model.describe()["version"].endswith("slow"):
                    model.throttle(SLOW_MS)
                while (self.root / "current").readlink() == link and not self.stop.wait(0.01):
                    model.predict(tiny.RED)

    def close(self):
        self.stop.set()
        self.agent.link.wake()
        for thread in self._threads:
            thread.join(15)


class Fleet:
    def __init__(self, folder, broker, key, store):
        self.folder, self.broker, self.key, self.made = folder, broker, key, Maker(folder)
        self.store = store
        pace = Pace(wait_s=0.02, chores_s=0.5, most_wait_s=0.5)
        self.bundles = folder / "bundles"
        rolling = RollingPace(0.1, 2.0, 0.5, compare_s=0.2)
        self.server = FleetServer(
            Settings(broker.url, 0, self.store, "127.0.0.1:0", pace, rolling=rolling, bundles=self.bundles)
        )
        self.server.start()
        self.tables = self.server.rolling.tables
        first = self.bundle("1", 1)
        self.boards = [Board(name, broker, folder, key, first) for name in BOARDS]
        self.wait(lambda: len([row for row in self.server.store.fleet() if row.n > LEAST_ANSWERS]) == len(BOARDS))

    def bundle(self, version, seq, **more):
        return self.made(version, key=self.key[0], terms=BundleTerms(rollout_seq=seq), **more)

    def cli(self, *arguments):
        from click.testing import CliRunner

        from edgekit.cli.main import cli

        ran = CliRunner().invoke(cli, ["fleet", *map(str, arguments), "--store", self.store, "--json"])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    def rollout(self, bundle, *more):
        return self.cli(
            "rollout", bundle, "--server", self.server.url, "--bundles", self.bundles,
            "--waves", "20%,60%,100%", "--settle", 0.5, *more,
        )["rollout"]  # fmt: skip

    def wait(self, holds, seconds=30):
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, self.told()
            time.sleep(0.05)

    def until(self, number, state):
        self.wait(lambda: self.tables.get(number).standing.state == state)
        return self.tables.get(number).standing

    def told(self):
        """For a test that waits in vain."""
        last = self.tables.all()[0]
        rows = self.server.store.history(last.name, None, None, 0, "5m")
        figures = [(row.version, row.profile, row.n) for row in rows]
        return "\n".join(map(str, [last.standing, *self.tables.boards(last.id), figures]))

    def versions(self):
        return [board.version for board in self.boards]

    def close(self):
        for board in self.boards:
            board.stop.set()
        for board in self.boards:
            board.close()
        self.server.close()


@pytest.fixture(scope="module")
def _quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEKIT_SELFTEST", "in-process")
        patch.setenv("EDGEKIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("EDGEKIT_TRUST", raising=False)
        yield


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def fleet(request, tmp_path_factory, _quick):
    folder = tmp_path_factory.mktemp("fleet")
    sqlite = request.param == "sqlite"
    store = f"sqlite:///{folder / 'fleet.db'}" if sqlite else request.getfixturevalue("postgres").url()
    with Mosquitto(folder) as broker:
        fleet = Fleet(folder, broker, new_key(folder), store)
        yield fleet
        fleet.close()


def test_a_good_bundle_goes_through_all_waves(fleet):
    number = fleet.rollout(fleet.bundle("2", 2), "--p99-margin", 100)  # the machine is busy with other tests
    assert fleet.until(number, "done").wave == 2
    assert fleet.versions() == ["2"] * 6
    told = fleet.cli("rollouts", number)
    assert told["phases"] == {"committed": 6}
    assert [row["wave"] for row in told["devices"]] == [1, 1, 2, 2, 3, 3]


def test_one_that_fails_its_trial_stops_in_the_first_wave(fleet):
    before = fleet.versions()
    number = fleet.rollout(fleet.bundle("3", 3, promise=Promise(p50_ms=1e-6, p99_ms=1e-6, peak_mb=1e6)))
    standing = fleet.until(number, "undone")
    assert (standing.wave, fleet.versions()) == (0, before)
    assert "trial-failed" in standing.why
    assert {row.want for row in fleet.tables.boards(number)} <= {"", "none", "former"}


def test_one_that_is_slow_at_work_goes_back_by_itself(fleet):
    """Its trial knows nothing of the throttle: only what the boards report does."""
    before = fleet.versions()
    number = fleet.rollout(fleet.bundle("4 slow", 4), "--abort-over", "20%")
    standing = fleet.until(number, "undone")
    assert standing.wave == 0
    assert "slower: p99" in standing.why
    assert fleet.versions() == before
    moved = [row for row in fleet.tables.boards(number) if row.want == "former"]
    assert [(row.phase, row.version) for row in moved] == [("committed", before[0])] * len(moved)
    assert moved


def test_pause_abort_and_undo_are_obeyed(fleet):
    before = fleet.versions()
    number = fleet.rollout(fleet.bundle("5", 5), "--unjudged", "--settle", 3.0)
    fleet.cli("pause", number)
    fleet.wait(lambda: fleet.tables.tally(fleet.tables.get(number), now_ms()).committed)
    time.sleep(3.5)
    assert fleet.tables.get(number).standing.state == "paused"
    assert sum(version == "5" for version in fleet.versions()) <= 2
    fleet.cli("resume", number)
    fleet.wait(lambda: fleet.tables.get(number).standing.wave == 1)
    assert fleet.cli("abort", number)["state"] == "aborted"
    assert "5" in fleet.versions()
    fleet.cli("undo", number)
    fleet.until(number, "undone")
    fleet.wait(lambda: fleet.versions() == before)


def test_the_server_offers_only_bundles_of_rollouts(fleet):
    fleet.cli("undo", fleet.rollout(fleet.bundle("6", 6)))
    facts, data = read_bundle_facts(fleet.bundle("6", 6))
    url = f"{fleet.server.url}bundles/{facts.sha256}.ekb"
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == data
    part = urllib.request.Request(url, headers={"Range": "bytes=10-", "If-Range": f'"{facts.sha256}"', "Host": "x"})
    with urllib.request.urlopen(part) as answer:
        assert (answer.status, answer.read()) == (206, data[10:])
    (fleet.folder / "bundles" / f"{'d' * 64}.ekb").write_bytes(data)
    for name in ("d" * 64 + ".ekb", "..%2ffleet.db", facts.sha256, "x" * 64 + ".ekb"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{fleet.server.url}bundles/{name}")


SERVER = """
import sys, time
from edgekit.fleet.rollout_runner import RollingPace
from edgekit.fleet.serve import FleetServer, Settings
with FleetServer(Settings(sys.argv[1], 0, sys.argv[2], "127.0.0.1:0", rolling=RollingPace(0.02, 0.5, 0.2))) as server:
    print("up", flush=True)
    time.sleep(60)
"""


class Puppet:
    """Twenty agents' half of the wire: each order is answered, and counted."""

    def __init__(self, url):
        from edgekit_runtime.install.orders import Former, OrderReport, parse_order
        from edgekit_runtime.telemetry.link import Broker, Link

        self.orders, self.stop = [], threading.Event()
        former = Former("1", "a" * 64)

        def heard(topic, payload, _retained):
            if payload:
                order, device = parse_order(payload), topic.split("/")[2]
                self.orders.append((device, order.rev))
                said = OrderReport(order.rev, "committed", order.version, former=former)
                link.publish(f"ek/v1/{device}/rep", said.encode(), retain=True)

        link = Link(Broker.parse(url), "puppet", ("ek/v1/+/cmd",), message=heard, most_wait_s=0.2)

        def run():
            while not self.stop.is_set():
                link.step(0.02)
            link.close()

        threading.Thread(target=run, daemon=True).start()


def test_a_server_that_is_killed_takes_no_wave_twice_and_loses_none(tmp_path, store_url, open_store):
    """kill -9 again and again, until the roll-out is done all the same."""
    from edgekit.fleet.rollouts.rollout_tables import RolloutBundle, RolloutTables
    from edgekit.fleet.rollouts.waves import RolloutPlan

    tables = RolloutTables(open_store())
    names = [f"barn-{n}" for n in range(20)]
    plan = RolloutPlan((0.1, 0.3, 0.6, 1.0), settle_s=0.3, judged=False)
    made = tables.make(RolloutBundle("tiny", "2", "x", ("x",), "b" * 64, "b" * 12, 9), "http://x/y.ekb", plan, names,
                       int(time.time() * 1000))  # fmt: skip
    command = [sys.executable, "-c", SERVER, "", store_url]
    with Mosquitto(tmp_path) as broker:
        command[3] = broker.url
        puppet, lives, waves = Puppet(broker.url), 0, []
        while tables.get(1).standing.state == "running":
            server = subprocess.Popen(command, stdout=subprocess.PIPE)
            server.stdout.read(1)
            until = time.monotonic() + 0.15 + 0.05 * lives
            while time.monotonic() < until:
                waves.append(tables.get(1).standing.wave)
                time.sleep(0.005)
            server.kill()
            server.communicate()
            lives += 1
            assert lives < 40
        puppet.stop.set()
    assert tables.get(1).standing == replace(tables.get(1).standing, state="done", wave=3)
    assert waves == sorted(waves)
    assert set(puppet.orders) == {(name, made.rev) for name in names}
    assert lives > 1
