"""Stored windows as metrics of OpenTelemetry, sent to a collector by OTLP over HTTP.

    exporting = OtlpExport(store, "http://collector:4318")
    exporting.start()

Rules:
- a window becomes deltas from its beginning to its end, with its board, model and version as attributes;
- latencies go as they are: OTLP's exponential histograms have the buckets of a window's, at most 160 here;
- what the collector has taken is remembered in the store, so that a collector or server that was away misses nothing
  of the seven days that windows are kept. After a crash between both, the last windows come twice;
- the first start begins with what arrives from then on;
- windows wait `_SETTLED_MS`, until all ingestors have committed those that came before.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgekit.fleet.pages.charts import mean_ms
from edgekit.fleet.store.fleet_errors import FleetError, StoreError
from edgekit.fleet.store.messages import Window, parse_window
from edgekit.fleet.store.records import moment_of, now_ms
from edgekit.fleet.store.schema import SET_COUNTER
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.telemetry.histogram import Histogram

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

_LOG = logging.getLogger("edgekit.fleet")
_SETTLED_MS = 5000
_MOST_BUCKETS = 160
_MOST_WINDOWS = 500
_CLOSE_S = 10.0
_AFTER = (
    'SELECT d."id", w.received_ms, w.payload FROM win AS w JOIN device AS d ON d.num = w.device '
    "WHERE w.payload IS NOT NULL"
)
COUNTS = {
    "edgekit.requests": ("n", "answers"),
    "edgekit.requests.failed": ("errors", "requests without an answer"),
    "edgekit.requests.late": ("over_budget", "answers after their budget"),
    "edgekit.requests.host": ("host", "answers of a host"),
    "edgekit.cache.hits": ("hits", "answers from the cache"),
}
"""Metric -> field of a window, and what it counts."""
_BOARD = "edgekit.board"
GAUGES = {f"{_BOARD}.temperature": ("temp", "Cel"), f"{_BOARD}.cpu": ("cpu", "%"), f"{_BOARD}.memory": ("mem", "%")}
LATENCY = "edgekit.request.duration"


def endpoint(url: str) -> str:
    """The address of a collector's metrics. Raises FleetError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise FleetError("not a collector's URL", where=url.rsplit("@")[-1], do="Write it as http://collector:4318")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/metrics"


def metrics_of(windows: Iterable[tuple[Window, int]]) -> MetricsData:
    """OpenTelemetry's metrics of windows and when each arrived, milliseconds."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    points: dict[str, list[Any]] = defaultdict(list)
    for window, received_ms in windows:
        about = {
            "device": window.device, "model": window.model, "version": window.version, "profile": window.profile,
            "site": window.site, "group": window.group,
        }  # fmt: skip
        end = moment_of(window, received_ms) * 1_000_000
        span = end - window.dur_ms * 1_000_000, end
        for name, (field, _) in COUNTS.items():
            points[name].append(export.NumberDataPoint(about, *span, getattr(window, field)))
        for name, (field, _) in GAUGES.items():
            if (value := getattr(window.system, field)) is not None:
                points[name].append(export.NumberDataPoint(about, *span, value))
        for source, latency in window.latency.items():
            points[LATENCY].append(_latency({**about, "source": source}, span, latency))
    delta = export.AggregationTemporality.DELTA
    sums = {name: export.Sum(points[name], delta, True) for name in COUNTS}
    metrics = [export.Metric(name, meaning, "1", sums[name]) for name, (_, meaning) in COUNTS.items()]
    metrics += [export.Metric(name, "", unit, export.Gauge(points[name])) for name, (_, unit) in GAUGES.items()]
    latencies = export.ExponentialHistogram(points[LATENCY], delta)
    metrics.append(export.Metric(LATENCY, "latency of answers", "ms", latencies))
    scope = export.ScopeMetrics(InstrumentationScope("edgekit.fleet"), [one for one in metrics if points[one.name]], "")
    return export.MetricsData([export.ResourceMetrics(Resource({"service.name": "edgekit-fleet"}), [scope], "")])


def _latency(about: dict[str, str], span: tuple[int, int], latency: Histogram) -> Any:
    from opentelemetry.sdk.metrics import export

    merged = Histogram(latency.buckets, latency.scale)
    while merged.buckets and max(merged.buckets) - min(merged.buckets) >= _MOST_BUCKETS:
        merged.downscale(merged.scale - 1)
    first = min(merged.buckets, default=0)
    counts = [merged.buckets.get(place, 0) for place in range(first, max(merged.buckets, default=-1) + 1)]
    n, octave = sum(counts) + latency.zeros, 2.0**-merged.scale
    least, most = 0.0 if latency.zeros else 2.0 ** (first * octave), 2.0 ** ((first + len(counts)) * octave)
    return export.ExponentialHistogramDataPoint(
        about, *span, n, (mean_ms(latency) or 0.0) * n, merged.scale, latency.zeros, export.Buckets(first, counts),
        export.Buckets(0, []), 0, least, most,
    )  # fmt: skip


class OtlpExport:
    """A thread that exports each `every_s`. Raises FleetError, ModuleNotFoundError."""

    def __init__(self, store: SqlStore, url: str, *, every_s: float = 10.0, timeout_s: float = 10.0) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._store, self._every_s = store, every_s
        self._exporter = OTLPMetricExporter(endpoint=endpoint(url), timeout=timeout_s)
        self._stopping, self._failing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="edgekit-otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._exporter.shutdown()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                more = self.step(now_ms())
            except StoreError as error:
                more = False
                _LOG.error("otlp: %s", error)
            except Exception:  # noqa: BLE001 - an export must not end
                more = False
                _LOG.exception("otlp")
            if not more:
                self._stopping.wait(self._every_s)

    def step(self, now_ms: int) -> bool:
        """Export the next windows; whether more of them wait. Raises StoreError."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        upto, mark = now_ms - _SETTLED_MS, self._mark()
        if mark is None:
            self._move(upto)
            return False
        rows = self._store.select(
            f"{_AFTER} AND w.received_ms > ? AND w.received_ms <= ? ORDER BY w.received_ms LIMIT ?",
            (mark, upto, _MOST_WINDOWS),
        )
        more = len(rows) == _MOST_WINDOWS
        if more:  # a millisecond's windows go together
            upto = rows[-1][1]
            rows = [row for row in rows if row[1] < upto]
            rows += self._store.select(f"{_AFTER} AND w.received_ms = ?", (upto,))
        if rows and self._exporter.export(metrics_of(_parsed(rows))) is not MetricExportResult.SUCCESS:
            if not self._failing:
                _LOG.warning("the collector took no metrics: they are sent again until it does")
            self._failing = True
            return False
        self._failing = False
        self._move(upto)
        return more

    def _mark(self) -> int | None:
        found = self._store.select("SELECT value FROM counter WHERE name = 'otlp'")
        return int(found[0][0]) if found else None

    def _move(self, received_ms: int) -> None:
        with self._store.writing() as batch:
            batch.execute(SET_COUNTER, ("otlp", received_ms))


def _parsed(rows: Sequence[Any]) -> Iterable[tuple[Window, int]]:
    for device, received_ms, payload in rows:
        try:
            yield parse_window(bytes(payload), device), received_ms
        except WindowError:
            continue  # an event
