"""`edgekit fleet broker-config`, and a real mosquitto that runs by what it wrote."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time

import paho.mqtt.client as mqtt
import pytest
from certificates import authority, certificate
from mosquitto import WHERE
from parts import missing
from ports import free_port

from edgekit.fleet.alerts.alert_rules import AlertFinding
from edgekit.fleet.alerts.rules_file import Rules
from edgekit.fleet.broker_config import BrokerPlan, read_boards, write_broker_config
from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.rollout_runner import RollingPace
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit_runtime.telemetry.link import Broker, Link
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.reporter import Reporter, TelemetryOptions
from edgekit_runtime.telemetry.window import About


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """A mosquitto by what was written for porch-1 and gate-1; (port, {user: password})."""
    binary = shutil.which("mosquitto", path=WHERE)
    if binary is None:
        missing("mosquitto", "sudo apt-get install mosquitto")
    ca = authority(tmp_path)
    certificate(tmp_path, "broker")
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    port = free_port()
    plan = BrokerPlan(["porch-1", "gate-1"], readers=["pager"], port=port, address="127.0.0.1",
                certificate=tmp_path / "broker.crt", key=tmp_path / "broker.key")  # fmt: skip
    folder = tmp_path / "broker"
    written = write_broker_config(folder, plan)
    assert written.made == ["ingest", "pager", "porch-1", "gate-1"]
    config = folder / "mosquitto.conf"
    if os.geteuid() == 0:
        config.write_text(config.read_text() + "user root\n")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([binary, "-c", str(config)], stdout=log, stderr=log)
        try:
            wait_for_port(process, port, tmp_path / "log")
            yield port, dict(line.split() for line in (folder / "users.txt").read_text().splitlines())
        finally:
            process.kill()
            process.wait()
            print((tmp_path / "log").read_text())


def wait_for_port(process, port, log):
    until = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        else:
            return


def test_boards_report_and_the_server_hears_them(fleet, tmp_path):
    port, users = fleet
    store = SqliteStore.open(tmp_path / "fleet.db")
    ingest = Ingest(
        Broker.parse(f"mqtts://ingest:{users['ingest']}@127.0.0.1:{port}"), store, Pace(wait_s=0.1, chores_s=0.2)
    )
    ingest.start()
    meter = Meter()
    meter.record("device", 5.0, True)
    url = f"mqtts://porch-1:{users['porch-1']}@127.0.0.1:{port}"
    about = About("porch-1", "digits", "1", "00", "raspberry-pi-4", None)
    reporter = Reporter(meter, about, TelemetryOptions(url, "porch-1", 0.2, tmp_path / "s.db"))
    reporter.start()
    try:
        until = time.monotonic() + 30
        while (row := store.device("porch-1")) is None or not row.hardware or not row.n or reporter.stats().waiting > 1:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        reporter.close()
        ingest.close()
        store.close()


def test_a_board_publishes_under_its_own_id_alone(fleet):
    """S30"""
    port, users = fleet
    heard, subscribed = [], threading.Event()
    server = client(port, "ingest", users["ingest"])
    server.on_message = lambda _c, _u, message: heard.append(message.topic)
    server.on_subscribe = lambda *_: subscribed.set()
    server.subscribe("ek/v1/#", qos=1)
    assert subscribed.wait(10)
    for topic in ("ek/v1/porch-1/m", "ek/v1/porch-1/state", "ek/v1/gate-1/ack", "other"):
        assert published(port, users, topic) == "Not authorized"
    assert published(port, users, "ek/v1/gate-1/m") == "Success"
    until = time.monotonic() + 10
    while heard != ["ek/v1/gate-1/m"]:
        assert time.monotonic() < until, heard
        time.sleep(0.02)
    server.disconnect()


def published(port, users, topic):
    """The receipt's reason, as gate-1."""
    said, receipt = [], threading.Event()
    gate = client(port, "gate-1", users["gate-1"])
    gate.on_publish = lambda _c, _u, _mid, reason, _p: (said.append(str(reason)), receipt.set())
    gate.publish(topic, b"x", qos=1)
    assert receipt.wait(10)
    gate.disconnect()
    return said[0]


def test_a_board_that_may_not_publish_under_its_id_hears_it_and_stays_connected(fleet, tmp_path):
    port, users = fleet
    broker = Broker.parse(f"mqtts://gate-1:{users['gate-1']}@127.0.0.1:{port}")
    link = Link(broker, "porch-1", ())
    until, told = time.monotonic() + 20, 0
    while link.troubles["forbidden"] < 3:
        assert time.monotonic() < until, link.troubles
        if link.connected and told == link.troubles["forbidden"]:
            told += link.publish("ek/v1/porch-1/m", b"x")
        link.step(0.05)
    link.step(0.2)
    assert (link.connected, link.trouble, dict(link.troubles)) == (True, "forbidden", {"forbidden": 3})
    link.close()


def test_a_stranger_and_a_wrong_password_stay_outside(fleet):
    port, _ = fleet
    for user, password in (("porch-1", "wrong"), ("nobody-1", "x"), (None, None)):
        with pytest.raises(AssertionError, match=r"Not authorized|Bad user"):
            client(port, user, password)


def test_a_board_cannot_take_over_anothers_connection(fleet):
    """S30"""
    port, users = fleet
    link = Link(Broker.parse(url_of(port, users, "porch-1")), "porch-1", ())
    step_until(link, lambda: link.connected)
    for name in ("porch-1", "porch-1."):
        client(port, "gate-1", users["gate-1"], name).disconnect()
    step_until(link, lambda: False, seconds=1.0)
    assert (link.connected, dict(link.troubles)) == (True, {})
    twin = Link(link.broker, "porch-1", ())
    step_until(twin, lambda: twin.connected)
    step_until(link, lambda: link.troubles["taken-over"])  # but the same board twice is told
    twin.close()
    link.close()


def test_a_server_and_a_board_hold_all_their_connections_and_an_alert_is_published(fleet, tmp_path):
    """Pages, ingestor and roll-outs are one user; so are a board's application and its agent."""
    port, users = fleet
    rules = Rules(topic="ek/alerts/fleet")
    rolling = RollingPace(0.1, 0.2, 0.5)
    store = f"sqlite:///{tmp_path / 'fleet.db'}"
    settings = Settings(url_of(port, users, "ingest"), 0, store, "127.0.0.1:0", rules=rules, rolling=rolling)
    with FleetServer(settings) as server:
        about = About("porch-1", "digits", "1", "00", "raspberry-pi-4", None)
        options = TelemetryOptions(url_of(port, users, "porch-1"), "porch-1", 0.2, tmp_path / "s.db")
        reporter = Reporter(Meter(), about, options)
        reporter.start()
        agent = Link(Broker.parse(options.broker), "porch-1.agent", ())
        wait_until(lambda: server.store.device("porch-1") is not None)
        step_until(agent, lambda: agent.connected)
        tables = server.rolling.alerting.tables
        tables.take([AlertFinding("p99:x", "p99", "slow")], ("mqtt:ek/alerts/fleet",), int(time.time() * 1000))
        wait_until(lambda: not tables.due(int(time.time() * 1000) + 10_000_000))
        step_until(agent, lambda: False, seconds=2.0)
        links = (server.ingest.link, server.rolling.link, agent)
        assert [dict(link.troubles) for link in links] == [{}, {}, {}]
        assert not reporter.stats().troubles
        reporter.close()
        agent.close()


def test_who_reads_alerts_hears_those_and_nothing_else(fleet):
    port, users = fleet
    heard, subscribed = [], threading.Event()
    pager = client(port, "pager", users["pager"])
    pager.on_message = lambda _c, _u, message: heard.append(message.topic)
    pager.on_subscribe = lambda *_: subscribed.set()
    pager.subscribe("#", qos=1)
    assert subscribed.wait(10)
    server = client(port, "ingest", users["ingest"])
    for topic in ("ek/v1/gate-1/cmd", "ek/v1/gate-1/ack", "ek/alerts/fleet"):
        server.publish(topic, b"x", qos=1).wait_for_publish(10)
    wait_until(lambda: "ek/alerts/fleet" in heard)
    assert heard == ["ek/alerts/fleet"]
    server.disconnect()
    pager.disconnect()


def test_an_alert_that_the_broker_refuses_is_kept_and_tried_again(fleet, tmp_path):
    port, users = fleet
    settings = Settings(url_of(port, users, "ingest"), 0, f"sqlite:///{tmp_path / 'fleet.db'}", "127.0.0.1:0",
                        rules=Rules(topic="elsewhere"), rolling=RollingPace(0.1, 0.2, 0.5))  # fmt: skip
    with FleetServer(settings) as server:
        tables = server.rolling.alerting.tables
        tables.take([AlertFinding("p99:x", "p99", "slow")], ("mqtt:elsewhere",), int(time.time() * 1000))
        wait_until(lambda: server.rolling.link.troubles["forbidden"])
        wait_until(lambda: [one.tries > 0 for one in tables.due(int(time.time() * 1000) + 10_000_000)] == [True])


def url_of(port, users, name):
    return f"mqtts://{name}:{users[name]}@127.0.0.1:{port}"


def wait_until(holds, seconds=20):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def step_until(link, holds, seconds=20.0):
    """Steps the link, at most so long."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        link.step(0.05)


def client(port, user, password, name=""):
    made = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name or str(user), protocol=mqtt.MQTTv5,
                       reconnect_on_failure=False)  # fmt: skip
    made.tls_set()
    if user:
        made.username_pw_set(user, password)
    greeted, said = threading.Event(), []
    made.on_connect = lambda _c, _u, _f, reason, _p: (said.append(reason), greeted.set())
    made.connect("127.0.0.1", port)
    made.loop_start()
    assert greeted.wait(10)
    assert not said[0].is_failure, str(said[0])
    return made


# Without a broker.


def test_running_it_again_adds_boards_and_keeps_the_others(tmp_path):
    folder = tmp_path / "broker"
    write_broker_config(folder, BrokerPlan(["porch-1"]))
    first = (folder / "passwd").read_text()
    assert (folder / "passwd").stat().st_mode & 0o777 == 0o600
    assert (folder / "users.txt").stat().st_mode & 0o777 == 0o600
    assert write_broker_config(folder, BrokerPlan(["porch-1", "gate-1"])).made == ["gate-1"]
    assert (folder / "passwd").read_text().startswith(first)
    assert write_broker_config(folder, BrokerPlan(["porch-1", "gate-1"])).made == []


@pytest.mark.parametrize(
    "plan",
    [BrokerPlan(["#"]), BrokerPlan(["a+b"]), BrokerPlan(["A-1"]), BrokerPlan(["ingest"]), BrokerPlan(servers=["x y"])],
)
def test_a_name_that_would_widen_rights_is_refused(tmp_path, plan):
    with pytest.raises(FleetError):
        write_broker_config(tmp_path, plan)


def test_a_list_of_boards_has_one_id_a_line(tmp_path):
    (tmp_path / "ids").write_text("porch-1   # the porch\n\n# none\ngate-1\n")
    assert read_boards(tmp_path / "ids") == ["porch-1", "gate-1"]
    with pytest.raises(FleetError):
        read_boards(tmp_path / "none")


def test_the_command_says_what_it_wrote(in_process, tmp_path):
    ran = in_process("fleet", "broker-config", "-o", tmp_path / "b", "--board", "porch-1", "--unencrypted", "--json")
    assert ran.code == 0
    assert ran.json["made"] == ["ingest", "porch-1"]
    assert "listener 1883" in (tmp_path / "b" / "mosquitto.conf").read_text()
    assert in_process("fleet", "broker-config", "-o", tmp_path / "b").code == 2
