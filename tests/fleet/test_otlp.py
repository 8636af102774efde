"""Windows at a real receiver of OTLP: an HTTP server that reads OpenTelemetry's own protobuf."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fleet.boards import EPOCH, NOW, arrival, birth, payload
from mosquitto import Mosquitto

from edgekit.fleet.otlp import GAUGES, LATENCY, OtlpExport, endpoint, metrics_of
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.messages import parse_window
from edgekit_runtime.telemetry.histogram import Histogram

service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
LATER = NOW + 60_000


class Collector:
    """metrics: (name, point) of each, and its temporality. status: what it answers."""

    def __init__(self) -> None:
        self.points: list[tuple[str, dict, object]] = []
        self.temporalities: set[int] = set()
        self.paths: set[str] = set()
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                if collector.status == 200:
                    collector.paths.add(self.path)
                    collector.take(service.ExportMetricsServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, request) -> None:
        for resource in request.resource_metrics:
            assert [one.value.string_value for one in resource.resource.attributes] == ["edgekit-fleet"]
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                data = getattr(metric, metric.WhichOneof("data"))
                self.temporalities |= (
                    {data.aggregation_temporality} if hasattr(data, "aggregation_temporality") else set()
                )
                for point in data.data_points:
                    about = {one.key: one.value.string_value for one in point.attributes}
                    self.points.append((metric.name, about, point))

    def of(self, name: str) -> list[tuple[dict, object]]:
        return [(about, point) for found, about, point in self.points if found == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore.open(tmp_path / "fleet.db")
    opened.commit([], [birth()])
    yield opened
    opened.close()


@pytest.fixture
def exporting(store, collector):
    """One that has begun, before the first window."""
    made = OtlpExport(store, collector.url, timeout_s=0.3)
    made.step(NOW)
    yield made
    made.close()


def test_a_window_is_deltas_and_its_own_buckets(store, exporting, collector):
    ms = [5.0, 12.0, 12.1, 90.0]
    store.commit([arrival(1, ms=ms, cached=3, temp=58.4, errors=2, error_codes={"x": 2})], [])
    assert exporting.step(LATER) is False
    assert collector.paths == {"/v1/metrics"}
    assert collector.temporalities == {1}, "delta"
    ((about, answers),) = collector.of("edgekit.requests")
    assert about == {
        "device": "porch-1",
        "model": "digits",
        "version": "1",
        "profile": "raspberry-pi-4",
        "site": "",
        "group": "",
    }
    assert (answers.as_int, answers.time_unix_nano - answers.start_time_unix_nano) == (7, 60 * 10**9)
    assert answers.time_unix_nano == NOW * 10**6
    assert [
        collector.of(name)[0][1].as_int
        for name in ("edgekit.requests.failed", "edgekit.requests.late", "edgekit.cache.hits")
    ] == [2, 1, 3]
    assert {name: [point.as_double for _, point in collector.of(name)] for name in GAUGES} == {
        "edgekit.board.temperature": [58.4], "edgekit.board.cpu": [], "edgekit.board.memory": [],
    }  # fmt: skip
    (device,) = (point for about, point in collector.of(LATENCY) if about["source"] == "device")
    expected = Histogram()
    for value in ms:
        expected.record(value)
    found = {device.positive.offset + place: n for place, n in enumerate(device.positive.bucket_counts) if n}
    assert (found, device.scale, device.count, device.zero_count) == (dict(expected.buckets), 5, 4, 0)
    assert device.sum == pytest.approx(sum(ms), rel=0.011)
    assert device.min <= min(ms)
    assert device.max >= max(ms)


def test_a_collector_that_was_away_gets_every_window_once_also_after_a_restart(store, exporting, collector, caplog):
    collector.status = 400
    for seq in range(1, 6):
        store.commit([arrival(seq, received=NOW + seq)], [])
        exporting.step(LATER)
    assert collector.points == []
    assert caplog.text.count("took no metrics") == 1
    collector.status = 200
    again = OtlpExport(store, collector.url)
    again.step(LATER)
    again.step(LATER)
    again.close()
    assert len(collector.of("edgekit.requests")) == 5


def test_more_windows_than_one_request_holds_come_once_each(store, exporting, collector, monkeypatch):
    monkeypatch.setattr("edgekit.fleet.otlp._MOST_WINDOWS", 4)
    store.commit([arrival(seq, received=NOW + seq // 3, ms=[float(seq)]) for seq in range(1, 15)], [])
    while exporting.step(LATER):
        pass
    counts = Counter(round(point.sum) for about, point in collector.of(LATENCY))
    assert counts == Counter(range(1, 15))


def test_windows_of_the_last_seconds_wait_and_those_of_before_the_start_stay(store, collector):
    store.commit([arrival(1, received=NOW)], [])
    first = OtlpExport(store, collector.url)
    assert first.step(NOW + 20_000) is False
    store.commit([arrival(2, received=NOW + 30_000)], [])
    first.step(NOW + 31_000)
    assert collector.of("edgekit.requests") == []
    first.step(NOW + 36_000)
    first.close()
    assert len(collector.of("edgekit.requests")) == 1


def test_a_wide_histogram_has_at_most_160_buckets_and_every_count():
    value = json.loads(payload(1).decode())
    value |= {"n": 9, "cm": 9, "lat": {"device": [5, -600, [3, -1200, 2], 4]}}
    window = parse_window(json.dumps(value).encode(), "porch-1")
    metrics = metrics_of([(window, NOW)]).resource_metrics[0].scope_metrics[0].metrics
    (point,) = (metric.data.data_points[0] for metric in metrics if metric.name == LATENCY)
    assert len(point.positive.bucket_counts) <= 160
    assert (point.count, point.zero_count, sum(point.positive.bucket_counts)) == (9, 4, 5)
    assert window.seal.epoch == EPOCH


def test_the_server_exports_what_boards_send(tmp_path, collector, store):
    with Mosquitto(tmp_path) as broker:
        settings = Settings(broker.url, 0, f"sqlite:///{tmp_path / 'fleet.db'}", "127.0.0.1:0", otlp=collector.url)
        with FleetServer(settings) as server:
            until = time.monotonic() + 60
            while not store.select("SELECT value FROM counter WHERE name = 'otlp'"):
                assert time.monotonic() < until
                time.sleep(0.02)
            assert server.health()["store_error"] == ""


def test_what_is_no_collector_is_refused_with_what_to_do(in_process, tmp_path):
    assert endpoint("https://c.example/otlp/v1/metrics") == "https://c.example/otlp/v1/metrics"
    with pytest.raises(FleetError, match="http://collector:4318"):
        endpoint("collector:4317")
    ran = in_process(
        "fleet", "serve", "--broker", "mqtt://127.0.0.1:1", "--listen", "127.0.0.1:0", "--otlp", "ftp://u:secret@h"
    )
    assert ran.code == 1
    assert "not a collector's URL" in ran.err
    assert "secret" not in ran.err
