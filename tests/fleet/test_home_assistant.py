"""Boards in Home Assistant: on a real mosquitto, by the keys that it documents, and by its own code where that is.

Home Assistant takes a minute to install: `HOME_ASSISTANT=PYTHON` names a Python 3.13 that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from fleet.boards import NOW, arrival, birth
from mosquitto import Mosquitto

from edgekit.fleet.broker_config import BrokerPlan, write_broker_config
from edgekit.fleet.home_assistant import HomeAssistant, discovery, state, update
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle, RolloutTables
from edgekit.fleet.rollouts.waves import RolloutPlan
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.databases import SqliteStore
from edgekit_runtime.install.orders import parse_report
from edgekit_runtime.telemetry.link import Broker

DEVICE = {"identifiers", "name", "manufacturer", "model", "sw_version", "suggested_area"}
COMMON = {"platform", "name", "unique_id", "state_topic", "device_class", "value_template"}
ENTITIES = {
    "binary_sensor": COMMON,
    "sensor": COMMON | {"unit_of_measurement", "state_class", "suggested_display_precision", "json_attributes_topic"},
    "update": COMMON,
}
"""Keys that www.home-assistant.io/integrations/mqtt and its pages of these platforms document."""
UPDATE = {"installed_version", "latest_version", "title", "in_progress"}
CLASSES = {
    "online": ("connectivity", None), "late": ("problem", None), "p99": ("duration", "ms"),
    "temperature": ("temperature", "°C"), "update": (None, None),
}  # fmt: skip


@pytest.fixture
def broker(tmp_path):
    with Mosquitto(tmp_path) as running:
        yield running


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore.open(tmp_path / "fleet.db")
    yield opened
    opened.close()


class Viewer:
    """Who holds what the broker retains below the prefix, as Home Assistant would."""

    def __init__(self, port: int) -> None:
        self.seen: dict[str, str] = {}
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self._client.on_message = lambda _c, _u, message: self._take(message)
        ready = threading.Event()
        self._client.on_subscribe = lambda *_: ready.set()
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("homeassistant/#", 1)
        self._client.loop_start()
        assert ready.wait(30)

    def _take(self, message) -> None:
        if message.payload:
            self.seen[message.topic] = message.payload.decode()
        else:
            self.seen.pop(message.topic, None)

    def of(self, board: str) -> dict:
        base = f"homeassistant/device/edgekit_{board}"
        return {
            kind: json.loads(self.seen[f"{base}/{kind}"])
            for kind in ("config", "state", "update")
            if f"{base}/{kind}" in self.seen
        }

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def viewer(broker):
    made = Viewer(broker.port)
    yield made
    made.close()


def wait_until(holds):
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def shown(broker, store):
    """Starts what shows a store; ends all of them."""
    started = []

    def start(**how):
        started.append(HomeAssistant(Broker.parse(broker.url), store, every_s=0.1, **how))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_board_its_p99_and_its_temperature_are_shown_and_follow_it(store, viewer, shown):
    store.commit([arrival(1, temp=58.4, ms=(10.0, 50.0))], [birth()])
    shown()
    wait_until(lambda: len(viewer.of("porch-1")) == 3)
    said = viewer.of("porch-1")["state"]
    assert (said["online"], said["late"], said["temperature"], said["budget_ms"]) == ("ON", "ON", 58.4, 30.0)
    assert said["p99"] == pytest.approx(50.0, rel=0.011)
    assert viewer.seen["homeassistant/edgekit/status"] == "online"
    store.commit([], [birth(on=False)])
    wait_until(lambda: viewer.of("porch-1")["state"]["online"] == "OFF")
    assert viewer.of("porch-1")["state"]["p99"] is None


def test_home_assistant_documents_every_key(store):
    store.commit([arrival(1)], [birth(site="hall")])
    said = discovery(store.device("porch-1"))
    assert set(said) == {"device", "origin", "availability", "components"}
    assert set(said["device"]) == DEVICE
    for key, entity in said["components"].items():
        assert set(entity) <= ENTITIES[entity["platform"]], key
        assert (entity.get("device_class"), entity.get("unit_of_measurement")) == CLASSES[key]
        assert entity.get("value_template", f"{{{{ value_json.{key} }}}}") == f"{{{{ value_json.{key} }}}}"
        assert key == "update" or key in state(store.device("porch-1"))
    assert set(update(store.device("porch-1"), None)) == UPDATE


def test_what_a_board_says_is_never_a_template_a_topic_or_long(store):
    evil = "{{ states() }}<script>\u202e" + "x" * 40
    store.commit([], [birth(hw=evil, model=evil, ver=evil, site=evil, sw=evil)])
    row = store.device("porch-1")
    said = discovery(row)
    assert said["device"]["model"].startswith("{{ states() }}<script> x")
    for value in (*said["device"].values(), *state(row).values(), *update(row, None).values()):
        assert not isinstance(value, str) or (value.isprintable() and len(value) <= 64)
    assert evil[:14] not in json.dumps([said["components"], said["availability"]])


def test_a_roll_out_is_an_update_until_its_board_has_it(store, viewer, shown):
    store.commit([], [birth(), birth("porch-2")])
    bundle = RolloutBundle("digits", "2", "raspberry-pi-4", ("raspberry-pi-4",), "a" * 64, "a" * 12, 1000)
    tables = RolloutTables(store)
    made = tables.make(bundle, "https://fleet.example/b.ekb", RolloutPlan((1.0,)), ["porch-1"], NOW)
    shown()
    wait_until(lambda: len(viewer.of("porch-1")) == len(viewer.of("porch-2")) == 3)
    new = {"title": "digits", "installed_version": "1", "latest_version": "2", "in_progress": False}
    assert viewer.of("porch-1")["update"] == new
    assert viewer.of("porch-2")["update"] == {**new, "latest_version": "1"}

    def report(phase):
        said = {"rev": made.rev, "phase": phase, "version": "1", "sha256": "a" * 64, "error": "", "code": ""}
        tables.report([("porch-1", parse_report(json.dumps(said).encode()))], NOW)

    report("trial")
    wait_until(lambda: viewer.of("porch-1")["update"]["in_progress"])
    report("rolled-back")
    wait_until(lambda: viewer.of("porch-1")["update"] == {**new, "latest_version": "1"})


def test_a_board_that_was_forgotten_leaves_also_while_no_server_ran(store, viewer, shown, broker):
    names = ("porch-1", "porch-2", "porch-3")
    store.commit([], [birth(name) for name in names])
    first = shown()
    wait_until(lambda: all(len(viewer.of(name)) == 3 for name in names))
    store.forget("porch-1")
    wait_until(lambda: not viewer.of("porch-1"))
    first.close()
    wait_until(lambda: viewer.seen["homeassistant/edgekit/status"] == "offline")
    store.forget("porch-2")
    shown()
    wait_until(lambda: not viewer.of("porch-2"))
    later = Viewer(broker.port)
    wait_until(lambda: len(later.of("porch-3")) == 3)
    assert {topic.split("/")[2] for topic in later.seen if "/device/" in topic} == {"edgekit_porch-3"}
    later.close()


def test_a_large_fleet_is_shown_in_part(store, viewer, shown, caplog):
    store.commit([], [birth(f"porch-{number}") for number in range(5)])
    shown(most=3)
    wait_until(lambda: all(len(viewer.of(f"porch-{number}")) == 3 for number in range(3)))
    assert not viewer.of("porch-3")
    assert "3 of 5 boards" in caplog.text


def test_the_server_shows_them_and_the_broker_lets_it_and_its_viewer(tmp_path, store):
    store.commit([], [birth()])
    written = write_broker_config(tmp_path / "conf", BrokerPlan(["porch-1"], viewers=["hass"], port=1))
    users = dict(line.split() for line in (tmp_path / "conf" / "users.txt").read_text().splitlines())
    conf = tmp_path / "conf"
    rights = ("allow_anonymous false", f"acl_file {conf / 'acl'}", f"password_file {conf / 'passwd'}")
    assert written.made == ["ingest", "hass", "porch-1"]
    with Mosquitto(tmp_path, *rights) as broker:
        url = broker.url.replace("//", f"//ingest:{users['ingest']}@")
        settings = Settings(url, 0, f"sqlite:///{tmp_path / 'fleet.db'}", "127.0.0.1:0", home_assistant="homeassistant")
        with FleetServer(settings):
            heard = {}
            hass = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
            hass.username_pw_set("hass", users["hass"])
            hass.on_message = lambda _c, _u, message: heard.update({message.topic: message.payload})
            hass.connect("127.0.0.1", broker.port)
            hass.subscribe("#", 1)
            hass.loop_start()
            try:
                wait_until(lambda: "homeassistant/device/edgekit_porch-1/config" in heard)
            finally:
                hass.disconnect()
                hass.loop_stop()
    assert all(topic.startswith("homeassistant/") for topic in heard)


def test_a_broker_whose_rights_are_of_before_is_told_in_the_log(tmp_path, store, caplog):
    write_broker_config(tmp_path / "conf", BrokerPlan(["porch-1"], port=1))
    users = dict(line.split() for line in (tmp_path / "conf" / "users.txt").read_text().splitlines())
    acl = tmp_path / "conf" / "acl"
    acl.write_text("\n".join(line for line in acl.read_text().splitlines() if "homeassistant" not in line))
    rights = ("allow_anonymous false", f"acl_file {acl}", f"password_file {tmp_path / 'conf' / 'passwd'}")
    store.commit([], [birth()])
    with Mosquitto(tmp_path, *rights) as broker:
        url = broker.url.replace("//", f"//ingest:{users['ingest']}@")
        one = HomeAssistant(Broker.parse(url), store, every_s=0.1)
        one.start()
        wait_until(lambda: "forbidden" in caplog.text)
        one.close()
    assert "edgekit fleet broker-config" in caplog.text


def test_home_assistants_own_code_accepts_the_messages(store, viewer, shown):
    python = os.environ.get("HOME_ASSISTANT")
    if not python:
        pytest.skip("Home Assistant is missing; set HOME_ASSISTANT to a Python that has the package homeassistant")
    store.commit([arrival(1)], [birth(site="{{ 1 / 0 }}"), birth("porch-2"), birth("porch-2", on=False)])
    shown()
    wait_until(lambda: len(viewer.of("porch-1")) == len(viewer.of("porch-2")) == 3)
    done = subprocess.run(
        [python, Path(__file__).with_name("by_home_assistant.py")], input=json.dumps(viewer.seen), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    platforms = {
        "online": "binary_sensor",
        "late": "binary_sensor",
        "p99": "sensor",
        "temperature": "sensor",
        "update": "update",
    }
    found = json.loads(done.stdout)
    for board in ("porch-1", "porch-2"):
        assert {key: found[f"edgekit_{board} {key}"] for key in platforms} == platforms
        assert found[f"homeassistant/device/edgekit_{board}/update"] == "update"
