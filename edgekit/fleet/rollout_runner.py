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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgekit.fleet.alert_runner import Alerting
from edgekit.fleet.alerts.rules_file import Rules
from edgekit.fleet.ingest import BrokerThread
from edgekit.fleet.rollouts.comparison import Verdict, compare, contrast
from edgekit.fleet.rollouts.rollout_tables import Rollout, RolloutTables
from edgekit.fleet.rollouts.shadows import judge
from edgekit.fleet.rollouts.wave_figures import WaveFigures
from edgekit.fleet.rollouts.waves import SHADOW, RolloutStanding, decide, wanted
from edgekit.fleet.store.fleet_errors import StoreError
from edgekit.fleet.store.records import now_ms
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.install.orders import OrderReport, parse_report
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.telemetry.link import Broker, Link
from edgekit_runtime.telemetry.reporter import ROOT
from edgekit_runtime.telemetry.window import DEVICE_ID

_LOG = logging.getLogger("edgekit.fleet")
_MOST_REPORTS = 500


@dataclass(frozen=True)
class RollingPace:
    """step_s: between steps of roll-outs. alerts_s: between checks of alerts.

    again_s: after which an order without a report is repeated. compare_s: between comparisons of a wave; a sixtieth of
    its time, if that is more.
    """

    step_s: float = 2.0
    alerts_s: float = 15.0
    again_s: float = 600.0
    most_wait_s: float = 15.0
    compare_s: float = 30.0


class Rolling(BrokerThread):
    """`tables`: for readers; its store is this thread's own. trouble: of the ingestor."""

    def __init__(
        self, broker: Broker, store: SqlStore, pace: RollingPace | None = None, rules: Rules | None = None,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        super().__init__("roll-outs", 1.0, store)
        self._pace = pace or RollingPace()
        self.tables = RolloutTables(store)
        self._figures = WaveFigures(store)
        self._compared: dict[int, tuple[int, tuple[RolloutStanding, int], Verdict]] = {}
        self._reports: list[tuple[str, OrderReport]] = []
        self._step_at, self._alerts_at = 0.0, time.monotonic() + self._pace.alerts_s
        self.link = Link(
            broker,
            "edgekit-fleet-rollouts",
            (f"{ROOT}/+/rep",),
            message=self._message,
            most_wait_s=self._pace.most_wait_s,
        )
        self.alerting = Alerting(store, rules or Rules(), self.link.publish, trouble)

    def step_link(self) -> None:
        self.link.step(min(0.2, self._pace.step_s) if self._reports else self._pace.step_s)
        if time.monotonic() >= self._step_at or len(self._reports) >= _MOST_REPORTS:
            self._step_at = time.monotonic() + self._pace.step_s
            self.step(now_ms())
        if time.monotonic() >= self._alerts_at:
            self._alerts_at = time.monotonic() + self._pace.alerts_s
            self.alerting.step(now_ms())

    def step(self, now_ms: int) -> None:
        """Everything once: what boards said, what follows, what is to be ordered. Raises StoreError."""
        if self._reports:
            reports, self._reports = self._reports, []
            try:
                self.tables.report(reports, now_ms)
            except StoreError:
                self._reports = [*reports, *self._reports][-10 * _MOST_REPORTS :]
                raise
        active = self.tables.all(active=True)
        for rollout in active:
            tally = self.tables.tally(rollout, now_ms)
            verdict = self._verdict(rollout, tally.committed, now_ms)
            after = decide(rollout.plan, rollout.standing, tally, verdict, now_ms)
            if after != rollout.standing and self.tables.step(rollout, after, now_ms):
                _LOG.info("roll-out %d: %s, wave %d: %s", rollout.id, after.state, after.wave + 1, after.why)
            elif rollout.standing.state == "running" and (more := wanted(tally, verdict)):
                self.tables.reinforce(rollout, more, now_ms)
        self._figures.forget(one.id for one in active)
        self._compared = {one.id: self._compared[one.id] for one in active if one.id in self._compared}
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

    def _verdict(self, rollout: Rollout, committed: int, now_ms: int) -> Verdict:
        """Compare the wave's boards now and then, and once one more has committed."""
        plan, standing = rollout.plan, rollout.standing
        if not plan.judged or standing.state not in ("running", "paused"):
            return Verdict("unknown")
        if standing.wave == SHADOW:
            return judge(self.tables.shadows(rollout), of=rollout.boards, differ=plan.differ)
        at_ms, judged, verdict = self._compared.get(rollout.id, (0, None, Verdict("unknown")))
        every_ms = max(1000 * self._pace.compare_s, (now_ms - standing.since_ms) / 60)
        if judged != (standing, committed) or now_ms - at_ms >= every_ms:
            wave, others = self._figures.read(rollout, now_ms)
            given: dict[str, Any] = {
                "boards": rollout.boards, "waves": len(plan.waves), "p99_margin": plan.p99_margin,
                "ratio_margin": plan.ratio_margin, "earlier": standing.evidence,
            }  # fmt: skip
            verdict = contrast(others, wave, **given) if plan.against else compare(wave, others, **given)
            self.tables.keep_figures(rollout, verdict.figures, now_ms)
            self._compared[rollout.id] = now_ms, (standing, committed), verdict
        return verdict

    def _message(self, topic: str, payload: bytes, _retained: bool) -> None:
        device = topic.removeprefix(f"{ROOT}/").removesuffix("/rep")
        if not payload or not DEVICE_ID.match(device):
            return
        try:
            self._reports.append((device, parse_report(payload)))
        except WindowError as error:
            _LOG.warning("a report of %.63s was refused (%s)", device, error.word)
