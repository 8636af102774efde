"""Two records: compared when the machine and the load were the same, refused by name when they were not."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from edgekit.bench.compare import RecordError, compare, read_record


def record(**changes):
    """A record of a calm machine; changes by dotted path, as {"conditions.cpu": "other"}."""
    made = {
        "bundle": "a.ekb", "model": "net", "contract_digest": "ab", "bundle_digest": "cd",
        "recipe": "tflite-int8", "engine": "litert", "engine_version": "2.1.3", "threads": 1,
        "p50_ms": 10.0, "p95_ms": 12.0, "p99_ms": 14.0, "throughput_per_s": 98.0,
        "first_ms": 20.0, "ready_ms": 900.0, "peak_rss_mb": 80.0,
        "spread": {"p50_ms": [9.8, 10.3], "p95_ms": [11.0, 13.0], "p99_ms": [12.5, 16.0],
            "throughput_per_s": [95.0, 101.0]},
        "load": {"loop": "closed", "concurrency": 1, "rate_per_s": None, "arrivals": None, "budget_ms": None,
            "cache": False, "batch": "on"},
        "conditions": {
            "cpu": "Pi 4", "cores": 4, "machine": "aarch64", "system": "Linux 6.12", "governor": "performance",
            "python": "3.11.2", "numpy": "1.26.4", "load": 0.3,
            "during": {
                "frequency_mhz": {"min": 1500, "mean": 1500, "max": 1500},
                "temperature_c": {"before": 50, "after": 60, "max": 60},
                "others_cpu": 0.02, "throttled": False, "throttled_by": [],
            },
        },
    }  # fmt: skip
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = made
        for parent in parents:
            at = at[parent]
        at[last] = value
    return made


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "other", "contract_digest": "ef", "bundle_digest": "12"}, ["model"]),
        ({"conditions.cpu": "Pi 5"}, ["cpu"]),
        ({"conditions.governor": "ondemand"}, ["governor"]),
        ({"conditions.governor": None}, ["governor"]),
        ({"conditions.numpy": "2.0.0", "conditions.python": "3.13.0"}, ["python", "numpy"]),
        ({"load.concurrency": 8}, ["concurrency"]),
        ({"load.budget_ms": 20.0}, ["budget_ms"]),
        ({"load.loop": "open", "load.rate_per_s": 50.0}, ["loop", "rate_per_s"]),
        ({"conditions.during.throttled": True, "conditions.during.throttled_by": ["throttled"]}, ["throttled"]),
        ({"conditions.during.others_cpu": 0.5}, ["others_cpu"]),
        ({"conditions.during.others_cpu": None}, ["others_cpu"]),
        ({"conditions.during.frequency_mhz": {"min": 600, "mean": 1000, "max": 1500}}, ["frequency_mhz"]),
        ({"conditions.during": {}}, ["others_cpu", "frequency_mhz"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_conditions_that_differ_are_named_and_nothing_is_compared(changes, named):
    for old, new in ((record(), record(**changes)), (record(**changes), record())):
        told = compare(old, new)
        assert [one.name for one in told.refused] == named
        assert told.ratios == []


@pytest.mark.parametrize("others", [0.0, 1.0, None], ids=str)
def test_what_a_run_was_too_short_to_tell_is_no_condition(others):
    short = record(**{"conditions.during.seconds": 0.01, "conditions.during.others_cpu": others})
    long = record(**{"conditions.during.seconds": 2.0, "conditions.during.others_cpu": 0.5})
    for old, new in ((short, long), (long, short), (short, short)):
        told = compare(old, new)
        assert told.refused == []
        assert told.ratios


def test_two_throttled_runs_are_not_alike_either():
    hot = record(**{"conditions.during.throttled": True})
    assert [one.name for one in compare(hot, hot).refused] == ["throttled"]


@pytest.mark.parametrize(
    "changes",
    [
        {"bundle": "b.ekb", "bundle_digest": "12"},
        {"model": "net-pruned", "bundle_digest": "12"},
        {"contract_digest": "ef", "bundle_digest": "12"},
        {"model": None, "contract_digest": None},
        {"recipe": "onnx-int8-qdq", "engine": "onnxruntime", "engine_version": "1.31"},
        {"threads": 4},
        {"load.cache": True},
        {"load.batch": "off"},
        {"conditions.load": 3.0},
        {"conditions.during.others_cpu": 0.1},
        {"conditions.during.temperature_c": None},
    ],
    ids=lambda value: " ".join(value),
)
def test_what_is_compared_may_differ(changes):
    told = compare(record(), record(**changes))
    assert told.refused == []
    named = {path.split(".")[-1] for path in changes if "conditions" not in path} - {"contract_digest"}
    assert {one.name for one in told.subjects} == named
    assert told.ratios


@pytest.mark.parametrize(
    ("now", "spread", "verdict"),
    [(10.2, [9.9, 10.6], "noise"), (8.0, [7.8, 8.3], "better"), (13.0, [12.6, 13.5], "worse")],
)
def test_a_ratio_says_whether_it_is_more_than_noise(now, spread, verdict):
    ratios = {r.name: r for r in compare(record(), record(**{"p50_ms": now, "spread.p50_ms": spread})).ratios}
    assert (ratios["p50_ms"].ratio, ratios["p50_ms"].verdict) == (pytest.approx(now / 10.0), verdict)
    assert ratios["ready_ms"].verdict == "unknown"


def test_more_throughput_is_better():
    new = record(**{"throughput_per_s": 150.0, "spread.throughput_per_s": [140.0, 155.0]})
    assert next(r for r in compare(record(), new).ratios if r.name == "throughput_per_s").verdict == "better"


def test_a_run_without_answers_has_no_ratio():
    told = compare(record(), record(p50_ms=None, p95_ms=None, p99_ms=None, throughput_per_s=0.0, spread={}))
    assert not {"p50_ms", "p99_ms"} & {r.name for r in told.ratios}


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(record()))
    assert read_record(tmp_path / "r.json") == record()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "cannot be read: No such file"),
        ("", "it is empty"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "is not a record"),
        ('{"p50_ms": 3}', "is not a record"),
        (record(p50_ms="fast"), "is not a record"),
        (record(**{"conditions.during": [1]}), "is not a record"),
        (record(**{"conditions.during.others_cpu": "much"}), "is not a record"),
        (record(**{"conditions.during.frequency_mhz": 1500}), "is not a record"),
        (record(spread={"p50_ms": [1]}), "is not a record"),
        (record(spread=[1]), "is not a record"),
        (record(load=None), "is not a record"),
        (record(p50_ms=10**400), "is not a record"),
        (record(p50_ms=float("nan")), "is not a record"),
        (record(spread={"p50_ms": [float("inf"), 1]}), "is not a record"),
        (record(**{"conditions.during.others_cpu": float("nan")}), "is not a record"),
        (record(**{"conditions.during.frequency_mhz": {"mean": float("inf")}}), "is not a record"),
    ],
)
def test_a_file_that_is_no_record_is_one_sentence(tmp_path, text, what):
    file = tmp_path / "r.json"
    if text is not None:
        file.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(RecordError, match=what) as caught:
        read_record(file)
    assert str(file) in str(caught.value)


def test_a_record_without_ranges_is_compared_without_a_verdict(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(record(spread=None)))
    told = compare(read_record(tmp_path / "r.json"), record())
    assert {ratio.verdict for ratio in told.ratios} == {"unknown"}


def test_comparing_changes_neither_record():
    old, new = record(), record(p50_ms=5.0)
    before = deepcopy((old, new))
    compare(old, new)
    assert (old, new) == before


def test_a_record_that_is_not_there_is_refused_with_the_command_that_makes_one(tmp_path):
    with pytest.raises(RecordError) as caught:
        read_record(tmp_path / "none.json")
    assert caught.value.do == "Make one: edgekit bench BUNDLE -o RECORD.json"
