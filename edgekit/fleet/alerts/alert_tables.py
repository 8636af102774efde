"""Alerts in the fleet's store: what is wrong now, what was, and what is still to be sent.

    tables = AlertTables(store)
    tables.take(findings, sinks, now_ms)        # opens, refreshes and clears
    for message in tables.due(now_ms): ...      # then tables.settle([(message, taken)], now_ms)

Rules:
- an alert and the messages about it are one transaction; a message stays until its receiver took it, for three days at
  most, and is tried again after a pause that doubles up to an hour;
- what is silenced is kept and shown, and not sent; where it outlasts its silence it is sent then;
- a receiver of an alert's opening is sent its end, silence or not; no other receiver is;
- an acknowledgement says who has it, and changes nothing else.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgekit.fleet.alerts.alert_rules import AlertFinding
from edgekit.fleet.alerts.rules_file import KINDS
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.schema import StoreTable
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.system.errors import shorten
from edgekit_runtime.system.strict_json import load_json

_ALERT = StoreTable(
    "alert", "id int, what text, kind text, words text, facts text, opened_ms int, seen_ms int, cleared_ms int, "
    "taken_ms int, taken_by text", "id", clustered=False,
)  # fmt: skip
_SILENCE = StoreTable("alert_silence", "what text, until_ms int", "what", clustered=False)
_MESSAGE = StoreTable(
    "alert_message", "alert int, event text, sink text, payload text, tries int, due_ms int, until_ms int",
    "alert, event, sink", clustered=False,
)  # fmt: skip
_TOLD = StoreTable("alert_told", "alert int, sink text", "alert, sink", clustered=False)
"""The receivers of an alert's opening; _HELD_BACK while it is silenced."""
_COLUMNS = ", ".join(_ALERT.columns)
_PATIENCE_MS = 3 * 24 * 3600 * 1000
_KEPT_MS = 90 * 24 * 3600 * 1000
_MOST_NAME = 64
_FIRST_PAUSE_MS, _MOST_PAUSE_MS = 5_000, 3_600_000
_HELD_BACK = ""
UNKNOWN = "; no more answers arrive, so recovery is unknown"


@dataclass(frozen=True)
class Alert:
    """key, text: of the finding.
    cleared_ms: 0 while it lasts.
    taken_by: who acknowledged it, or empty."""

    id: int
    key: str
    kind: str
    text: str
    facts: dict[str, Any]
    opened_ms: int
    seen_ms: int
    cleared_ms: int = 0
    taken_ms: int = 0
    taken_by: str = ""

    def as_json(self, event: str) -> dict[str, Any]:
        return {
            "event": event, "alert": self.id, "key": self.key, "kind": self.kind, "text": self.text,
            "facts": self.facts, "opened_ms": self.opened_ms, "cleared_ms": self.cleared_ms,
        }  # fmt: skip


@dataclass(frozen=True)
class Message:
    """sink: a URL, or `mqtt:TOPIC`."""

    alert: int
    event: str
    sink: str
    payload: str
    tries: int

    @property
    def key(self) -> tuple[int, str, str]:
        return self.alert, self.event, self.sink


class AlertTables:
    def __init__(self, store: SqlStore) -> None:
        self._store = store
        with store.writing() as batch:
            batch.define(*(table.create() for table in (_ALERT, _SILENCE, _MESSAGE, _TOLD)))

    def take(
        self, findings: Sequence[AlertFinding], sinks: Sequence[str], now_ms: int, unknown: Collection[str] = ()
    ) -> list[Alert]:
        """Open new alerts, refresh active ones, clear others. Returns those opened.

        unknown: keys whose data ended, so that their recovery is unknown.
        """
        with self._store.writing() as batch:
            lasting = {
                alert.key: alert
                for alert in map(_alert, batch.execute(f"SELECT {_COLUMNS} FROM alert WHERE cleared_ms = 0").fetchall())
            }
            silent = [what for (what,) in batch.execute(
                "SELECT what FROM alert_silence WHERE until_ms > ?", (now_ms,)).fetchall()]  # fmt: skip
            sent_to: dict[int, list[str]] = {}
            for number, sink in batch.execute("SELECT alert, sink FROM alert_told").fetchall():
                sent_to.setdefault(int(number), []).append(sink)
            opened = []
            for one in findings:
                known = lasting.pop(one.key, None)
                if known is not None:
                    batch.execute(
                        "UPDATE alert SET words = ?, facts = ?, seen_ms = ? WHERE id = ?",
                        (one.text, json.dumps(dict(one.facts)), now_ms, known.id),
                    )
                    if _HELD_BACK in sent_to.get(known.id, ()):
                        now = replace(known, text=one.text, facts=dict(one.facts), seen_ms=now_ms)
                        self._notify_opened(batch, now, sinks, silent, now_ms)
                    continue
                ((number,),) = batch.execute("SELECT coalesce(max(id), 0) + 1 FROM alert").fetchall()
                alert = Alert(int(number), one.key, one.kind, one.text, dict(one.facts), now_ms, now_ms)
                facts = json.dumps(alert.facts)
                batch.execute(
                    _ALERT.insert(), (alert.id, alert.key, alert.kind, alert.text, facts, now_ms, now_ms, 0, 0, "")
                )
                opened.append(alert)
                self._notify_opened(batch, alert, sinks, silent, now_ms)
            for alert in lasting.values():
                over = replace(alert, cleared_ms=now_ms)
                if alert.key in unknown:
                    over = replace(over, text=alert.text + UNKNOWN, facts={**alert.facts, "no_data": True})
                batch.execute(
                    "UPDATE alert SET cleared_ms = ?, words = ?, facts = ? WHERE id = ?",
                    (now_ms, over.text, json.dumps(over.facts), alert.id),
                )
                still = [sink for sink in sent_to.get(alert.id, ()) if sink in sinks]
                self._notify(batch, over, "cleared", still, now_ms)
                batch.execute("DELETE FROM alert_told WHERE alert = ?", (alert.id,))
            batch.execute("DELETE FROM alert WHERE cleared_ms > 0 AND cleared_ms < ?", (now_ms - _KEPT_MS,))
            batch.execute("DELETE FROM alert_message WHERE until_ms < ?", (now_ms,))
        return opened

    def _notify_opened(
        self, batch: Any, alert: Alert, sinks: Sequence[str], silent: Sequence[str], now_ms: int
    ) -> None:
        """Notify every receiver unless the alert is silenced, and record them."""
        quiet = any(what in (alert.kind, alert.key) for what in silent)
        batch.execute("DELETE FROM alert_told WHERE alert = ?", (alert.id,))
        batch.many(_TOLD.insert(), [(alert.id, sink) for sink in ([_HELD_BACK] if quiet else sinks)])
        if not quiet:
            self._notify(batch, alert, "opened", sinks, now_ms)

    def _notify(self, batch: Any, alert: Alert, event: str, sinks: Sequence[str], now_ms: int) -> None:
        text = json.dumps(alert.as_json(event))
        rows = [(alert.id, event, sink, text, 0, now_ms, now_ms + _PATIENCE_MS) for sink in sinks]
        batch.many(_MESSAGE.insert(), rows)

    def sinks(self, now_ms: int) -> builtins.list[str]:
        """Receivers with messages to send now."""
        rows = self._store.select("SELECT DISTINCT sink FROM alert_message WHERE due_ms <= ? ORDER BY sink", (now_ms,))
        return [sink for (sink,) in rows]

    def due(self, now_ms: int, sink: str | None = None, most: int = 20) -> builtins.list[Message]:
        """Messages to send now, to one receiver or any; `cleared` only after `opened` was accepted."""
        rows = self._store.select(
            "SELECT alert, event, sink, payload, tries FROM alert_message AS m WHERE due_ms <= ? AND "
            f"{'1 = 1' if sink is None else 'sink = ?'} AND NOT (event = 'cleared' AND EXISTS "
            "(SELECT 1 FROM alert_message AS o WHERE o.alert = m.alert AND o.sink = m.sink AND o.event = 'opened')) "
            "ORDER BY alert, due_ms LIMIT ?",
            (now_ms, *(() if sink is None else (sink,)), most),
        )
        return [Message(*row) for row in rows]

    def settle(self, results: Sequence[tuple[Message, bool]], now_ms: int) -> None:
        """Delete accepted messages. A receiver that did not accept one is retried later."""
        with self._store.writing() as batch:
            for message, taken in results:
                if taken:
                    batch.execute("DELETE FROM alert_message WHERE alert = ? AND event = ? AND sink = ?", message.key)
                    continue
                due_ms = now_ms + min(_MOST_PAUSE_MS, _FIRST_PAUSE_MS * 2 ** min(message.tries, 20))
                batch.execute(
                    "UPDATE alert_message SET tries = tries + 1 WHERE alert = ? AND event = ? AND sink = ?", message.key
                )
                batch.execute(
                    "UPDATE alert_message SET due_ms = ? WHERE sink = ? AND due_ms < ?", (due_ms, message.sink, due_ms)
                )

    def list(self, *, active: bool = True, limit: int = 1000) -> list[Alert]:
        """The latest first."""
        where = "WHERE cleared_ms = 0" if active else ""
        rows = self._store.select(f"SELECT {_COLUMNS} FROM alert {where} ORDER BY id DESC LIMIT ?", (limit,))
        return [_alert(row) for row in rows]

    def ended(self, since_ms: int) -> set[str]:
        """Keys of alerts that ended since then."""
        return {key for (key,) in self._store.select("SELECT what FROM alert WHERE cleared_ms > ?", (since_ms,))}

    def lasting(self, limit: int = 200) -> builtins.list[Alert]:
        """Active alerts: those of many boards first, then the latest."""
        return sorted(self.list(limit=limit), key=lambda alert: "device" in alert.facts)

    def acknowledge(self, number: int, who: str, now_ms: int) -> Alert:
        """Raises FleetError if it does not exist."""
        with self._store.writing() as batch:
            changed = batch.execute(
                "UPDATE alert SET taken_ms = ?, taken_by = ? WHERE id = ?", (now_ms, shorten(who, _MOST_NAME), number)
            ).rowcount
        if not changed:
            raise FleetError(f"no such alert: {number}", do="List them: edgekit fleet alerts")
        (row,) = self._store.select(f"SELECT {_COLUMNS} FROM alert WHERE id = ?", (number,))
        return _alert(row)

    def silence(self, what: str, until_ms: int) -> None:
        """what: a kind or an alert's key. Raises FleetError for anything else."""
        if what not in KINDS and what.partition(":")[0] not in KINDS:
            raise FleetError(f"unknown kind of alert {what!r:.60}", do=f"Known: {', '.join(KINDS)}, or an alert's key")
        with self._store.writing() as batch:
            batch.execute(_SILENCE.write(), (what, until_ms))

    def silences(self, now_ms: int) -> builtins.list[tuple[str, int]]:
        """(kind or key, end), sorted by end."""
        rows = self._store.select(
            "SELECT what, until_ms FROM alert_silence WHERE until_ms > ? ORDER BY until_ms", (now_ms,)
        )
        return [(what, int(until)) for what, until in rows]


def _alert(row: Sequence[Any]) -> Alert:
    number, key, kind, text, facts, *times = row
    return Alert(number, key, kind, text, load_json(facts), *times)
