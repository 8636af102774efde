"""Carry out alerts: evaluate the store, record findings, deliver messages; replay rules.

alerting = Alerting(store, Rules(), publish)
alerting.step(now_ms)                                 # each `every_s`, by the thread of the roll-outs
for moment_ms, event, finding in replay(store, rules, since_ms, now_ms): ...
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from edgekit.fleet.alerts.alert_rules import (
    MOST_GROWN_MS,
    AlertFinding,
    Snapshot,
    Trouble,
    evaluate,
    is_above,
    rare,
    server_finding,
    silent,
)  # fmt: skip
from edgekit.fleet.alerts.alert_tables import UNKNOWN, Alert, AlertTables, Message
from edgekit.fleet.alerts.rules_file import Rules
from edgekit.fleet.pages.show import span
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store.fleet_errors import StoreError
from edgekit.fleet.store.records import Build, BuildBoards, Event, FleetDevice, Query, Rollup
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.system.errors import MemoryExceeded
from edgekit_runtime.system.threads import begin

_LOG = logging.getLogger("edgekit.fleet")
_FIVE_MS = 300_000
_LATELY_MS = 4 * _FIVE_MS
_FIGURES_MS = 30 * 60 * 1000
_MOST_RARE = 50
"""Builds whose windows are read further back."""
_BACK_MS = 48 * 3600 * 1000
_HOUR_MS = 3600 * 1000
_STOPPED_MS = 24 * 3600 * 1000
_PAGE = 1000
_WEBHOOK_S = 5.0
_HOT = 80.0


class Alerting:
    """Opens, clears and sends alerts.

    Each webhook has its own thread, so one that hangs delays no other. Results are stored by the next step.
    publish: over MQTT, as `Link.publish`. trouble: why the ingestor cannot store, in words, or empty.

    Where the store cannot keep alerts, the server's own one is sent all the same, as alert 0.
    """

    def __init__(
        self, store: SqlStore, rules: Rules, publish: Callable[..., bool], trouble: Callable[[], str] = lambda: ""
    ) -> None:
        self._store, self._rules, self._publish, self._trouble = store, rules, publish, trouble
        self.tables, self._rollouts = AlertTables(store), RolloutTables(store)
        topics = (f"mqtt:{rules.topic}",) if rules.topic else ()
        self._sinks = tuple(dict.fromkeys((*rules.webhooks, *topics)))
        self._on_way: set[tuple[int, str, str]] = set()  # over MQTT, until what became of them is written
        self._calling: dict[str, threading.Thread] = {}  # webhooks, until what became of their messages is written
        self._results: list[tuple[Message, bool]] = []
        self._failures = 0
        self._own: Alert | None = None  # of the server itself, that the store does not have
        self._urgent: dict[tuple[int, str, str], Message] = {}

    def step(self, now_ms: int) -> None:
        """Raises StoreError."""
        try:
            self._step(now_ms)
            self._failures = 0
            if self._own is not None and not self._trouble():
                self._tell(replace(self._own, cleared_ms=now_ms), "cleared")
                self._own = None
        except StoreError as error:
            self._failures += 1
            if self._failures == 2 and self._own is None and "server" not in self._rules.off:
                found = server_finding(str(error))
                self._own = Alert(0, found.key, found.kind, found.text, {}, now_ms, now_ms)
                self._tell(self._own, "opened")
            raise
        finally:
            for sink in dict.fromkeys(message.sink for message in self._urgent.values()):
                self._send(sink, [message for message in self._urgent.values() if message.sink == sink])

    def _tell(self, alert: Alert, event: str) -> None:
        for sink in self._sinks:
            message = Message(alert.id, event, sink, json.dumps(alert.as_json(event)), 0)
            self._urgent[message.key] = message

    def _step(self, now_ms: int) -> None:
        self._settle(now_ms)
        active = {alert.key for alert in self.tables.list()}
        seen = self._look(now_ms, _LATELY_MS)
        findings = evaluate(self._rules, seen, active)
        if any(one.kind == "p99" for one in findings):  # what grew, and since when, takes a longer look
            seen = self._look(now_ms, _BACK_MS)
            findings = evaluate(self._rules, seen, active)
        unknown = silent(self._rules, seen, active)
        for alert in self.tables.take(findings, self._sinks, now_ms, unknown):
            _LOG.warning("alert %d: %s", alert.id, alert.text)
        for sink in self.tables.sinks(now_ms):
            if sink not in self._calling:
                self._send(sink, self.tables.due(now_ms, sink))

    def _send(self, sink: str, messages: Sequence[Message]) -> None:
        if sink.startswith("mqtt:"):
            self._publish_all(sink.removeprefix("mqtt:"), messages)
        elif sink not in self._calling:
            self._call(sink, messages)

    def _settle(self, now_ms: int) -> None:
        # in this order: a thread that has ended has left its results
        self._calling = {sink: thread for sink, thread in self._calling.items() if thread.is_alive()}
        results = list(self._results)
        for message, taken in results:
            if not message.alert:
                self._on_way.discard(message.key)
                if taken:
                    self._urgent.pop(message.key, None)
        kept = [(message, taken) for message, taken in results if message.alert]
        if kept:
            self.tables.settle(kept, now_ms)
        del self._results[: len(results)]
        self._on_way -= {message.key for message, _ in kept}

    def _look(self, now_ms: int, back_ms: int) -> Snapshot:
        seen = look(self._store, self._rollouts, self._rules, now_ms, back_ms)
        server, ended = "" if self._own is not None else self._trouble(), self.tables.ended(now_ms - _FIGURES_MS)
        return replace(seen, server=server, ended=ended)

    def _publish_all(self, topic: str, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.key in self._on_way:
                continue
            self._on_way.add(message.key)

            def receipt(taken: bool, message: Message = message) -> None:
                self._results.append((message, taken))

            if not self._publish(topic, message.payload.encode(), receipt=receipt):
                receipt(False)
                return

    def _call(self, sink: str, messages: Sequence[Message]) -> None:
        """Post messages to their webhook in order, until one is not accepted."""

        def work() -> None:
            for message in messages:
                taken = _is_delivered(message)
                self._results.append((message, taken))
                if not taken:
                    break

        thread = threading.Thread(target=work, name="edgekit-webhook", daemon=True)
        try:
            if begin(thread):
                self._calling[sink] = thread
        except MemoryExceeded as error:
            _LOG.warning("no webhook is called now: %s", error)


def _is_delivered(message: Message) -> bool:
    request = urllib.request.Request(
        message.sink, message.payload.encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_WEBHOOK_S) as answer:
            return bool(200 <= answer.status < 300)
    except Exception as error:  # noqa: BLE001 - whatever a receiver does, the alert is tried again
        _LOG.warning("a webhook did not take alert %d (%s)", message.alert, type(error).__name__)
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def look(store: SqlStore, rollouts: RolloutTables, rules: Rules, now_ms: int, back_ms: int) -> Snapshot:
    """Read what the rules need from the store."""
    troubles = []
    for state, kind in (("offline", "offline"), ("lagging", "lag"), ("hot", "throttling"), ("failing", "failing")):
        for row in _all(store, Query(state=state, lag_s=rules.lag_s, limit=_PAGE)):
            if state == "offline" and now_ms - row.since_ms < 1000 * rules.offline_s:
                continue
            build = None
            if state == "failing":
                if not row.online or not is_above(row.errors, row.n + row.errors, rules.errors_over):
                    continue
                build = (row.model, row.version, row.profile)
            troubles.append(Trouble(kind, row.id, row.site, _describe(state, row, now_ms), build))
    for device, site, times in store.went_offline(now_ms - _HOUR_MS, rules.flaps):
        troubles.append(_flapping(device, site, times))
    losses = [event for event in store.events(None, _PAGE, ("lost",)) if event.at_ms > now_ms - _HOUR_MS]
    for device in dict.fromkeys(event.device for event in losses):
        board = store.device(device)
        text = next(event.text for event in losses if event.device == device)
        troubles.append(Trouble("loss", device, board.site if board else "", text))
    stopped = [
        (one.id, one.standing.why)
        for one in rollouts.all()
        if one.standing.state in ("paused", "undoing", "undone", "aborted")
        and not one.standing.by_word
        and now_ms - one.standing.since_ms < _STOPPED_MS
    ]
    rows = [row for row in store.history(None, None, None, now_ms - back_ms, "5m") if _is_complete(row, now_ms)]
    for build in rare(rules, rows, now_ms)[:_MOST_RARE]:
        more = store.history(*build, now_ms - max(back_ms, MOST_GROWN_MS), "5m")
        rows = [row for row in rows if row.build != build] + [row for row in more if _is_complete(row, now_ms)]
    sites = {count.key[0]: count.devices for count in store.counts("site")}
    boards = store.builds()
    drift = {one.build: one.psi for one in boards}
    latency = {one.build: one.boards for one in boards}
    return Snapshot(now_ms, rows, _budgets(boards, rows), troubles, sites, stopped, drift, latency)


def _flapping(device: str, site: str, times: int) -> Trouble:
    return Trouble("flapping", device, site, f"went offline {times} times within the hour")


def _describe(state: str, row: FleetDevice, now_ms: int) -> str:
    if state == "offline":
        return f"offline for {span((now_ms - row.since_ms) / 1000)}"
    if state == "lagging":
        return f"{row.waiting:,} windows wait on the board"
    if state == "failing":
        return f"gave no answer to {row.errors / (row.n + row.errors):.1%} of {row.n + row.errors:,} requests"
    hot = "" if row.temp is None or row.temp < _HOT else f" at {row.temp:.0f} degrees"
    return f"throttled or hot{hot}"


def _all(store: SqlStore, query: Query) -> Iterator[FleetDevice]:
    while True:
        rows, count = store.devices(query)
        yield from rows
        query = replace(query, offset=query.offset + query.limit)
        if query.offset >= count:
            return


def _budgets(boards: Sequence[BuildBoards], rows: Sequence[Rollup]) -> dict[Build, float]:
    """Budget of each build as its boards report it, or of another version on the same profile."""
    said = [one for one in boards if one.budget_ms is not None]
    others = {(one.model, one.profile): one.budget_ms for one in said}
    own = {one.build: one.budget_ms for one in said}
    found = {build: own.get(build, others.get((build[0], build[2]))) for build in {row.build for row in rows}}
    return {build: budget for build, budget in found.items() if budget is not None}


def _is_complete(row: Rollup, now_ms: int) -> bool:
    return row.start_ms + row.length_ms <= now_ms


def replay(store: SqlStore, rules: Rules, since_ms: int, now_ms: int) -> Iterator[tuple[int, str, AlertFinding]]:
    """What the rules would have opened and cleared in the last two days.

    Lag, throttling, failing and each board's p99 are not stored. Drift is the largest PSI, as of one board.
    """
    rows = store.history(None, None, None, since_ms - MOST_GROWN_MS, "5m")
    budgets = _budgets(store.builds(), rows)
    site_of = {row.id: row.site for row in store.fleet()}
    sites = Counter(site_of.values())
    events = sorted(store.events(None, 1_000_000, ("online", "offline", "lost")), key=lambda one: (one.at_ms, one.id))
    gone: dict[str, Event] = {}
    lost: dict[str, Event] = {}
    left = deque[Event]()
    active: dict[str, AlertFinding] = {}
    place, moment = 0, since_ms - since_ms % _FIVE_MS + _FIVE_MS
    while moment <= now_ms:
        while place < len(events) and events[place].at_ms <= moment:
            event, place = events[place], place + 1
            if event.kind == "lost":
                lost[event.device] = event
            elif event.kind == "offline":
                gone[event.device] = event
                left.append(event)
            else:
                gone.pop(event.device, None)
        troubles = [
            Trouble("offline", name, site_of.get(name, ""), f"offline for {span((moment - one.at_ms) / 1000)}")
            for name, one in gone.items()
            if moment - one.at_ms >= 1000 * rules.offline_s
        ]
        troubles += [
            Trouble("loss", name, site_of.get(name, ""), one.text)
            for name, one in lost.items()
            if moment - one.at_ms < _HOUR_MS
        ]
        while left and left[0].at_ms < moment - _HOUR_MS:
            left.popleft()
        flaps = Counter(one.device for one in left)
        troubles += [_flapping(name, site_of.get(name, ""), n) for name, n in flaps.items() if n >= rules.flaps]
        whole = [row for row in rows if _is_complete(row, moment)]
        recent = [row for row in whole if row.start_ms + (rules.windows + 1) * row.length_ms > moment]
        drift = {row.build: (row.psi,) for row in sorted(recent, key=lambda row: row.psi or 0.0) if row.psi is not None}
        then = Snapshot(moment, whole, budgets, troubles, sites, drift=drift)
        found = {one.key: one for one in evaluate(rules, then, active)}
        for key, one in found.items():
            if key not in active:
                yield moment, "opened", one
        unknown = silent(rules, then, active)
        for key, one in active.items():
            if key not in found:
                yield moment, "cleared", replace(one, text=one.text + UNKNOWN) if key in unknown else one
        active, moment = found, moment + _FIVE_MS
