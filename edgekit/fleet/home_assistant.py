"""Boards as devices of Home Assistant: retained messages of its MQTT discovery.

    shown = HomeAssistant(Broker.parse("mqtt://127.0.0.1"), store)
    shown.start()

    homeassistant/device/edgekit_porch-1/config     the device and its entities
    homeassistant/device/edgekit_porch-1/state      {"online": "ON", "p99": 31.2, "late": "OFF", "temperature": 58.4}
    homeassistant/device/edgekit_porch-1/update     {"installed_version": "7", "latest_version": "8"}
    homeassistant/edgekit/status                    online; offline by the broker, once this server is gone

Rules:
- what boards say stands in values alone, bounded and printable, never in a template; their ids are DEVICE_ID;
- a message is published when it changes, and once after each connection;
- the broker remembers which boards are shown: one that the store has forgotten is cleared, also after a restart;
- at most `most` boards are shown, by id: a thousand are some 5,000 entities;
- an update entity shows a roll-out, and cannot start one: the roll-out's waves decide when a board is next.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

from edgekit.fleet.broker_config import PREFIX
from edgekit.fleet.ingest import BrokerThread
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store.records import FleetDevice, Query
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.system.errors import shorten
from edgekit_runtime.telemetry.link import Broker, Link, Will
from edgekit_runtime.telemetry.window import DEVICE_ID

_LOG = logging.getLogger("edgekit.fleet")
_OURS = "edgekit_"
_MOST_TEXT = 64


def _entities() -> dict[str, dict[str, Any]]:
    late = {"name": "Over budget", "device_class": "problem"}
    p99 = {"name": "p99", "device_class": "duration", "unit_of_measurement": "ms", "suggested_display_precision": 1}
    temperature = {"name": "Temperature", "device_class": "temperature", "unit_of_measurement": "°C"}
    return {
        "online": {"platform": "binary_sensor", "name": "Online", "device_class": "connectivity"},
        "late": {"platform": "binary_sensor", **late},
        "p99": {"platform": "sensor", "state_class": "measurement", **p99},
        "temperature": {"platform": "sensor", "state_class": "measurement", **temperature},
        "update": {"platform": "update", "name": "Model"},
    }


def _text(value: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in shorten(value, _MOST_TEXT))


def discovery(row: FleetDevice, prefix: str = PREFIX) -> dict[str, Any]:
    """Home Assistant's device message for a board."""
    base = f"{prefix}/device/{_OURS}{row.id}"
    entities = _entities()
    for key, entity in entities.items():
        entity |= {"unique_id": f"{_OURS}{row.id}_{key}", "state_topic": f"{base}/state"}
        if key == "update":
            entity["state_topic"] = f"{base}/update"
            continue
        entity["value_template"] = f"{{{{ value_json.{key} }}}}"
        if key == "p99":
            entity["json_attributes_topic"] = f"{base}/state"
    device = {"identifiers": [f"{_OURS}{row.id}"], "name": row.id, "manufacturer": "edgekit"}
    said = {"model": row.hardware, "sw_version": row.software, "suggested_area": row.site}
    return {
        "device": device | {key: _text(value) for key, value in said.items() if value.strip()},
        "origin": {"name": "edgekit"},
        "availability": [{"topic": f"{prefix}/edgekit/status"}],
        "components": entities,
    }


def state(row: FleetDevice) -> dict[str, Any]:
    """What the entities of a board show, and as attributes of its p99 what that is of."""
    now = {"p99": None if row.p99 is None else round(row.p99, 1), "temperature": row.temp}
    return {
        "online": "ON" if row.online else "OFF",
        "late": "ON" if row.over * 100 > row.n else "OFF",
        **(now if row.online else dict.fromkeys(now)),
        "budget_ms": row.budget_ms,
        **{key: _text(getattr(row, key)) for key in ("model", "version", "profile", "site", "group")},
    }


def update(row: FleetDevice, order: tuple[str, str] | None) -> dict[str, Any]:
    """order: version and phase of what a roll-out wants of this board, None without one."""
    installed = _text(row.version) or "unknown"
    latest, phase = order or (installed, "")
    return {
        "title": _text(row.model) or "edgekit",
        "installed_version": installed,
        "latest_version": _text(latest) or installed,
        "in_progress": phase in ("fetching", "trial"),
    }


class HomeAssistant(BrokerThread):
    """prefix: of the discovery. every_s: between looks at the store. most: boards shown."""

    def __init__(
        self, broker: Broker, store: SqlStore, prefix: str = PREFIX, *, every_s: float = 10.0, most: int = 1000
    ) -> None:
        super().__init__("home-assistant", 0.5, store)
        self._rollouts, self._prefix, self._every_s, self._most = RolloutTables(store), prefix, every_s, most
        self._at, self._status = 0.0, f"{prefix}/edgekit/status"
        self._published: dict[str, bytes] = {}
        self._shown: set[str] = set()
        self._config = re.compile(rf"{re.escape(prefix)}/device/{_OURS}(.+)/config\Z")
        self._warned, self._logged = False, ""
        self.link = Link(
            broker, "edgekit-fleet-home-assistant", (f"{prefix}/device/+/config",), message=self._message,
            up=self._up, will=lambda: Will(self._status, b"offline"), most_at_once=500,
        )  # fmt: skip

    def step_link(self) -> None:
        self.link.step(max(0.05, min(1.0, self._at - time.monotonic())))
        if self.link.trouble not in ("", self._logged):
            self._logged = self.link.trouble
            _LOG.warning("Home Assistant's messages: %s (%s)", self.link.trouble, self.link.advice)
        if time.monotonic() >= self._at and self.link.subscribed:
            self._at = time.monotonic() + self._every_s
            self.look()

    def finish(self) -> None:
        self.link.publish(self._status, b"offline", retain=True)
        self.link.step(0.1)

    def look(self) -> None:
        """Publish what has changed. Raises StoreError."""
        rows, count = self._store.devices(Query(limit=self._most))
        if count > self._most and not self._warned:
            self._warned = True
            _LOG.warning("Home Assistant is shown %d of %d boards", self._most, count)
        orders = self._rollouts.wanted()
        self._say(self._status, b"online")
        for row in rows:
            new = update(row, orders.get(row.id))
            for kind, value in (("config", discovery(row, self._prefix)), ("state", state(row)), ("update", new)):
                self._say(self._topic(row.id, kind), json.dumps(value, ensure_ascii=False).encode())
        here = {row.id for row in rows}
        self._shown = here | {name for name in self._shown - here if not self._clear(name)}

    def _clear(self, name: str) -> bool:
        return all(self._say(self._topic(name, kind), b"") for kind in ("config", "state", "update"))

    def _topic(self, name: str, kind: str) -> str:
        return f"{self._prefix}/device/{_OURS}{name}/{kind}"

    def _say(self, topic: str, payload: bytes) -> bool:
        """Whether the broker was given it, now or before."""
        if self._published.get(topic) != payload:
            if not self.link.publish(topic, payload, retain=True):
                return False
            self._published[topic] = payload
        return True

    def _up(self) -> None:
        self._published.clear()
        self._at = time.monotonic() + 1.0  # what the broker retains comes first

    def _message(self, topic: str, payload: bytes, _retained: bool) -> None:
        found = self._config.match(topic)
        if payload and found and DEVICE_ID.match(found[1]):
            self._shown.add(found[1])
