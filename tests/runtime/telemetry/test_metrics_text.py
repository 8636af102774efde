"""The page is read by Prometheus' own parser, and says what the meter counted."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.cache.disk import DiskStats
from edgekit_runtime.cache.memory_tier import MemoryStats
from edgekit_runtime.cache.shared import SharedStats
from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.metrics import ModelMetrics, metrics_text

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    if os.environ.get("CI"):
        raise
    text_string_to_metric_families = None

parsed_by_prometheus = pytest.mark.skipif(
    text_string_to_metric_families is None, reason="prometheus_client is not installed here (it is in the dev extra)"
)


def a_meter() -> Meter:
    meter = Meter()
    for ms in (0.5, 3.0, 4.0, 4.1, 300.0):
        meter.record("device", ms, ms < 100, {"decode": 0.4, "queue": 0.0, "engine": ms, "finish": 0.1}, (2, 100, None))
    meter.record("cache", 0.004, None, {"identify": 0.003})
    meter.error("input")
    meter.error("budget")
    meter.refused()
    meter.compared(differs=False)
    meter.compared(differs=True)
    meter.compared(differs=False)
    return meter


def a_model(meter: Meter | None = None, **changes) -> ModelMetrics:
    given = {
        "info": {"engine": "litert", "engine_version": "2.1.3", "recipe": "tflite-int8"},
        "queued": 3,
        "batches": {1: 10, 4: 2, 7: 1},
        "caches": {
            "memory": MemoryStats(1, 5, 5, 4096, 0, 0),
            "disk": DiskStats(2, 6, 7, 8192, 0, 0, 0, 0, 0, 0, None, False, 1 << 20, 3),
            "shared": SharedStats(0, 5, 0, 0, 0, 0, 0, 0, 2, 0),
        },
    }
    return ModelMetrics("digits", "1", (meter or a_meter()).counted(), **(given | changes))


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """As Prometheus reads it: (name, sorted labels without model and version) -> value."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model", "version")}
            key = (sample.name, tuple(sorted(labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(page: str, name: str, **labels: str) -> float:
    return samples(page)[name, tuple(sorted(labels.items()))]


@parsed_by_prometheus
@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("edgekit_healthy", {}, 1),
        ("edgekit_requests_total", {"source": "device"}, 5),
        ("edgekit_requests_total", {"source": "cache"}, 1),
        ("edgekit_requests_total", {"source": "stale"}, 0),
        ("edgekit_errors_total", {"code": "input"}, 1),
        ("edgekit_budget_total", {"outcome": "met"}, 4),
        ("edgekit_budget_total", {"outcome": "missed"}, 1),
        ("edgekit_budget_total", {"outcome": "refused"}, 1),
        ("edgekit_host_compared_total", {"outcome": "agreed"}, 2),
        ("edgekit_host_compared_total", {"outcome": "differed"}, 1),
        ("edgekit_latency_seconds_count", {"source": "device"}, 5),
        ("edgekit_latency_seconds_sum", {"source": "device"}, 0.3116),
        ("edgekit_latency_seconds_bucket", {"source": "device", "le": "0.0005"}, 1),
        ("edgekit_latency_seconds_bucket", {"source": "device", "le": "0.004"}, 3),
        ("edgekit_latency_seconds_bucket", {"source": "device", "le": "0.008"}, 4),
        ("edgekit_latency_seconds_bucket", {"source": "device", "le": "+Inf"}, 5),
        ("edgekit_stage_seconds_count", {"stage": "infer"}, 5),
        ("edgekit_stage_seconds_count", {"stage": "prepare"}, 6),
        ("edgekit_queued_requests", {}, 3),
        ("edgekit_batch_size_bucket", {"le": "4"}, 12),
        ("edgekit_batch_size_bucket", {"le": "8"}, 13),
        ("edgekit_batch_size_sum", {}, 25),
        ("edgekit_cache_hits_total", {"tier": "memory"}, 1),
        ("edgekit_cache_hits_total", {"tier": "disk"}, 2),
        ("edgekit_cache_misses_total", {"tier": "disk"}, 6),
        ("edgekit_cache_misses_total", {"tier": "shared"}, 5),
        ("edgekit_cache_refused_total", {"tier": "disk"}, 3),
        ("edgekit_cache_refused_total", {"tier": "shared"}, 2),
        ("edgekit_cache_entries", {"tier": "disk"}, 7),
        ("edgekit_cache_bytes", {"tier": "memory"}, 4096),
        ("edgekit_cache_bytes", {"tier": "disk"}, 8192),
        ("edgekit_input_values_total", {}, 500),
        ("edgekit_input_values_clipped_total", {}, 10),
        (
            "edgekit_model_info",
            {"engine": "litert", "engine_version": "2.1.3", "recipe": "tflite-int8"},
            1,
        ),
    ],
)  # fmt: skip
def test_prometheus_reads_what_the_meter_counted(name, labels, expected):
    assert value(metrics_text([a_model()]), name, **labels) == pytest.approx(expected)


@parsed_by_prometheus
def test_a_model_that_was_never_asked_has_a_page_of_zeros():
    page = metrics_text([ModelMetrics("digits", "1", Meter().counted())])
    assert value(page, "edgekit_requests_total", source="device") == 0
    assert value(page, "edgekit_budget_total", outcome="refused") == 0


@parsed_by_prometheus
def test_every_family_has_help_and_a_type_once_however_many_models_there_are():
    page = metrics_text([a_model(), a_model(), ModelMetrics("other", "2", Meter().counted(), healthy=False)])
    heads = re.findall(r"^# (HELP|TYPE) (\S+)", page, re.MULTILINE)
    assert len(heads) == len(set(heads)) == 2 * len({name for _, name in heads})
    named = {tuple(sorted(s.labels.items())) for f in text_string_to_metric_families(page) for s in f.samples}
    assert {dict(labels).get("copy") for labels in named} == {None, "2"}
    assert "edgekit_healthy{" in page


@parsed_by_prometheus
@given(st.text(max_size=20), st.text(max_size=20))
def test_any_name_survives_the_way(name, recipe):
    name, recipe = (text.replace("\r", "") for text in (name, recipe))
    page = metrics_text([ModelMetrics(name, "1", Meter().counted(), {"recipe": recipe})])
    read = next(f for f in text_string_to_metric_families(page) if f.name == "edgekit_model_info").samples[0]
    assert read.labels == {"model": name, "version": "1", "recipe": recipe}


@given(st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=200))
def test_every_bucket_is_exact_and_they_only_grow(values):
    meter = Meter()
    for ms in values:
        meter.record("device", ms, None)
    page = metrics_text([ModelMetrics("m", "1", meter.counted())])
    found = re.findall(r'edgekit_latency_seconds_bucket\{.*le="([^"]+)"\} (\d+)', page)
    counts = [int(n) for _, n in found]
    assert counts == [sum(ms <= float(le) * 1e3 * (1 + 1e-12) for ms in values) for le, _ in found]
    assert counts == sorted(counts)


def test_a_histogram_from_a_coarser_window_counts_the_same():
    fine, coarse = Histogram(), Histogram()
    for ms in (0.4, 1.0, 1.5, 3.0):
        fine.record(ms)
        coarse.record(ms)
    coarse.downscale(0)
    assert [coarse.at_most(o) for o in range(-3, 4)] == [fine.at_most(o) for o in range(-3, 4)]
