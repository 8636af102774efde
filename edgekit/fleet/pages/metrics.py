"""/metrics for Prometheus: the fleet by model, version and profile, boards by state.

The server itself has figures there, too.

    page = FleetMetrics(store, facts.refused, facts.health)
    page.text(now_ms)

Rules:
- a series a model, version and profile, and never one a board: 10,000 boards make dozens of series;
- counters begin at 0 with the server and only grow: they count what roll-ups gained since the last scrape, so a late
  window counts when it comes, for two hours back;
- names and labels stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from typing import Any, Literal

from edgekit.fleet.pages.charts import mean_ms
from edgekit.fleet.pages.show import lag_s
from edgekit.fleet.store.records import STATES, Build, Rollup
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.telemetry.metrics import family_text, histogram_text

_BACK_MS = 2 * 3600 * 1000
_OCTAVES = tuple(range(-3, 14))
"""Bounds of the buckets: 2^-3 = 0.125 ms to 2^13 = 8.2 s, exact in every scale."""
COUNTERS = {
    "n": ("answers_total", "Answers."),
    "errors": ("errors_total", "Requests that got no answer."),
    "blocked": ("refused_total", "Requests refused by their budget."),
    "over": ("over_budget_total", "Answers later than the caller's budget, else the board's."),
    "hits": ("cache_hits_total", "Answers from the cache."),
    "misses": ("cache_misses_total", "Answers that were not in the cache."),
    "host": ("host_answers_total", "Answers from a host."),
    "compared": ("compared_answers_total", "Answers of a host that the device gave, too."),
    "differed": ("differing_answers_total", "Of the compared answers, those that differ."),
    "values": ("input_values_total", "Input values that were looked at."),
    "clipped": ("clipped_values_total", "Of these, the ones at a limit of the artifact's 8 bits."),
    "dropped": ("frames_dropped_total", "Frames of a camera that a newer one replaced."),
    "windows": ("windows_total", "Windows stored."),
}


class FleetMetrics:
    def __init__(
        self, store: SqlStore, refused: Callable[[], Mapping[str, int]], health: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._store, self._refused, self._health = store, refused, health
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, Build], dict[str, int]] | None = None
        self._sums: dict[Build, dict[str, int]] = {}

    def text(self, now_ms: int) -> str:
        """Raises StoreError."""
        with self._lock:
            rollups = self._store.history(None, None, None, now_ms - _BACK_MS, "5m")
            fresh = {(r.start_ms, r.build): _figures(r) for r in rollups}
            before = fresh if self._seen is None else self._seen
            for key, figures in fresh.items():
                sums = self._sums.setdefault(key[1], dict.fromkeys(figures, 0))
                old = before.get(key, {})
                for name, value in figures.items():
                    sums[name] = sums.get(name, 0) + max(0, value - old.get(name, 0))
            self._seen = fresh
            return self._boards() + self._models() + self._server(now_ms)

    def _boards(self) -> str:
        groups = [(_labels(one.key), one.states) for one in self._store.counts("build")]
        builds = [(_labels(one.build), one) for one in self._store.builds()]
        budgets = [(labels, one.budget_ms / 1000) for labels, one in builds if one.budget_ms is not None]
        return (
            _family(
                "devices", "gauge", "Boards, by what runs there and by state; one board may be in several.",
                [({**labels, "state": state}, states[state]) for labels, states in groups for state in STATES],
            )
            + _family("budget_seconds", "gauge", "Budget that most of the boards name.", budgets)
            + _family(
                "drift_psi", "gauge", "Median PSI of the boards that have one.",
                [(labels, median_low(one.psi)) for labels, one in builds if one.psi],
            )
        )  # fmt: skip

    def _models(self) -> str:
        labelled = [(_labels(key), sums) for key, sums in sorted(self._sums.items())]
        text = "".join(
            _family(family, "counter", meaning, [(labels, sums[name]) for labels, sums in labelled])
            for name, (family, meaning) in COUNTERS.items()
        )
        samples = [
            (labels, [(2.0**octave / 1000, sums[f"le{octave}"]) for octave in _OCTAVES], sums["all"], sums["us"] / 1e6)
            for labels, sums in labelled
        ]
        return text + histogram_text("edgekit_fleet_latency_seconds", "Time to an answer, over all sources.", samples)

    def _server(self, now_ms: int) -> str:
        totals, health = self._store.totals(), self._health()
        intake, lag = health.get("intake", {}), lag_s(totals.newest_ms, now_ms)
        refused = [({"reason": word}, n) for word, n in sorted(self._refused().items())]
        families: tuple[tuple[str, Literal["counter", "gauge"], str, Any], ...] = (
            ("broker_connected", "gauge", "1 while the broker is connected.", int(bool(health.get("connected")))),
            ("messages_total", "counter", "Messages from the broker.", int(health.get("messages", 0))),
            ("payloads_refused_total", "counter", "Payloads refused.", refused),
            ("windows_lost", "gauge", "Windows that boards gave up.", totals.lost),
            ("windows_waiting", "gauge", "Windows waiting on boards, as they last reported.", totals.waiting),
            ("repeated_total", "counter", "Messages that were already stored.", int(health.get("repeated", 0))),
            ("ingest_lag_seconds", "gauge", "Time since the newest stored window ended.", [] if lag is None else lag),
            ("ingest_busy_ratio", "gauge", "Share of a core that the ingestor takes, over a minute.",
             float(intake.get("busy", 0.0))),
        )  # fmt: skip
        return "".join(
            _family(name, kind, meaning, value if isinstance(value, list) else [({}, value)])
            for name, kind, meaning, value in families
        )


def _labels(build: Sequence[str]) -> dict[str, str]:
    return dict(zip(("model", "version", "profile"), build, strict=True))


def _family(
    name: str, kind: Literal["counter", "gauge"], meaning: str, samples: Sequence[tuple[Mapping[str, str], float]]
) -> str:
    return family_text(f"edgekit_fleet_{name}", kind, meaning, samples)


def _figures(rollup: Rollup) -> dict[str, int]:
    figures = {name: int(getattr(rollup, name)) for name in COUNTERS}
    figures["all"] = sum(histogram.count for histogram in rollup.latency.values())
    for octave in _OCTAVES:
        figures[f"le{octave}"] = sum(histogram.at_most(octave) for histogram in rollup.latency.values())
    figures["us"] = round(sum(1000 * (mean_ms(one) or 0) * one.count for one in rollup.latency.values()))
    return figures
