"""Carry out roll-outs: publish orders, take reports in, take steps; alerts run along.

    rolling = Rolling(Broker.parse("mqtt://127.0.0.1"), store)
    rolling.start()

Rules:
- all state is in the store, so that a killed server resumes there;
- a step is stored before its orders are published; a board ignores an order that is published twice;
- an operator's commands (`edgekit fleet pause`) are rows of the store, so they need no address of the server.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from statistics import median_low

from edgekit.fleet.alerting import Alerting
from edgekit.fleet.alerts.alerts import Rules
from edgekit.fleet.ingest import BrokerThread
from edgekit.fleet.rollouts.rollout_tables import Rollout, RolloutTables, SharedStore
from edgekit.fleet.rollouts.rollouts import Tally, Verdict, compare, decide, figures_of
from edgekit.fleet.store.fleet_errors import StoreError
from edgekit_runtime.install.orders import OrderReport, parse_report
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.telemetry.link import Broker, Handlers, Link
from edgekit_runtime.telemetry.reporter import ROOT
from edgekit_runtime.telemetry.window import DEVICE_ID

_LOG = logging.getLogger("edgekit.fleet")
_BEFORE_MS = 3600 * 1000
_MOST_REPORTS = 500


@dataclass(frozen=True)
class RollingPace:
    """step_s: between steps of roll-outs. alerts_s: between checks of alerts.

    again_s: after which an order without a report is repeated."""

    step_s: float = 2.0
    alerts_s: float = 15.0
    again_s: float = 600.0
    most_wait_s: float = 15.0


class Rolling(BrokerThread):
    """`tables`: for readers; its store is this thread's own."""

    def __init__(
        self, broker: Broker, store: SharedStore, pace: RollingPace | None = None, rules: Rules | None = None
    ) -> None:
        super().__init__("roll-outs", 1.0)
        self._store, self._pace = store, pace or RollingPace()
        self.tables = RolloutTables(store)
        self._reports: list[tuple[str, OrderReport]] = []
        self._step_at, self._alerts_at = 0.0, time.monotonic() + self._pace.alerts_s
        self.link = Link(
            broker,
            "edgekit-fleet-rollouts",
            Handlers(lambda: None, self._message),
            (f"{ROOT}/+/rep",),
            most_wait_s=self._pace.most_wait_s,
        )
        self.alerting = Alerting(store, rules or Rules(), self.link.publish)

    def step_link(self) -> None:
        self.link.step(min(0.2, self._pace.step_s) if self._reports else self._pace.step_s)
        if time.monotonic() >= self._step_at or len(self._reports) >= _MOST_REPORTS:
            self._step_at = time.monotonic() + self._pace.step_s
            self.step(int(time.time() * 1000))
        if time.monotonic() >= self._alerts_at:
            self._alerts_at = time.monotonic() + self._pace.alerts_s
            self.alerting.step(int(time.time() * 1000))

    def step(self, now_ms: int) -> None:
        """Everything once: what boards said, what follows, what is to be ordered. Raises StoreError."""
        if self._reports:
            reports, self._reports = self._reports, []
            try:
                self.tables.report(reports, now_ms)
            except StoreError:
                self._reports = [*reports, *self._reports][-10 * _MOST_REPORTS :]
                raise
        for rollout in self.tables.all(active=True):
            tally = self.tables.tally(rollout)
            after = decide(rollout.plan, rollout.standing, tally, self._verdict(rollout, tally, now_ms), now_ms)
            if after != rollout.standing and self.tables.step(rollout, after, now_ms):
                _LOG.info("roll-out %d: %s, wave %d: %s", rollout.id, after.state, after.wave + 1, after.why)
        if not self.link.connected:
            return
        published = []
        for due in self.tables.due(now_ms, int(1000 * self._pace.again_s)):
            payload = b"" if due.order is None else due.order.encode()
            if not self.link.publish(f"{ROOT}/{due.device}/cmd", payload, retain=True):
                break
            published.append(due)
        if published:
            self.tables.mark_published(published, now_ms)

    def _verdict(self, rollout: Rollout, tally: Tally, now_ms: int) -> Verdict:
        """Compare the new version with the others of its model and profile.
        The time is since it is here, or the hour before."""
        if not rollout.plan.judged or rollout.standing.state not in ("running", "paused"):
            return Verdict("unknown")
        rows = self._store.history(rollout.name, None, rollout.profile, rollout.made_ms - _BEFORE_MS, "5m")
        now = [row for row in rows if row.start_ms + row.length_ms > rollout.made_ms]
        builds = [one for one in self._store.builds(rollout.name) if one.profile == rollout.profile]
        psi_new = _median([psi for one in builds if one.version == rollout.version for psi in one.psi])
        psi_rest = _median([psi for one in builds if one.version != rollout.version for psi in one.psi])
        new = figures_of((row for row in now if row.version == rollout.version), psi_new)
        rest = figures_of((row for row in now if row.version != rollout.version), psi_rest)
        if compare(rest, rest, rollout.plan).says == "unknown":
            rest = figures_of((row for row in rows if row.version != rollout.version), psi_rest)
        watched_s = (now_ms - max(tally.last_ms, rollout.standing.since_ms)) / 1000
        early = bool(tally.pending) or watched_s < rollout.plan.settle_s
        return compare(new, rest, rollout.plan, early=early)

    def _message(self, topic: str, payload: bytes, _retained: bool) -> None:
        device = topic.removeprefix(f"{ROOT}/").removesuffix("/rep")
        if not payload or not DEVICE_ID.match(device):
            return
        try:
            self._reports.append((device, parse_report(payload)))
        except WindowError as error:
            _LOG.warning("a report of %.63s was refused (%s)", device, error.word)


def _median(values: list[float]) -> float | None:
    return median_low(values) if values else None
