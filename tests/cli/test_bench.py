"""edgekit bench on the tiny classifier: what it prints, what it writes, what it refuses to compare."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import tiny

PROMISED = {
    "bundle", "recipe", "engine", "engine_version", "threads", "n", "min_ms", "p50_ms", "p95_ms", "p99_ms",
    "throughput_per_s", "first_ms", "ready_ms", "peak_rss_mb", "stages_ms", "conditions",
}  # fmt: skip
MOVING = {"others_cpu", "frequency_mhz", "throttled"}


@pytest.fixture
def bundle(tmp_path):
    return tiny.bundle(tmp_path)


def test_every_promised_key_is_there(edgekit, bundle):
    found = edgekit("bench", bundle, "-n", "50", "--json").json
    assert found.keys() >= PROMISED
    assert found["n"] == found["asked"] == 50
    assert found["min_ms"] <= found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert "engine" in found["stages_ms"]
    assert found["answers"] == {"device": 50}
    assert 0 < found["rss_mb"]["before"] <= found["peak_rss_mb"]
    assert found["conditions"].keys() >= {"cpu", "cores", "governor", "frequency_mhz", "temperature_c", "during"}
    assert found["conditions"]["during"].keys() >= {"throttled", "throttled_by", "others_cpu"}


def test_a_person_reads_percentiles_stages_start_memory_and_conditions(edgekit, bundle):
    out = edgekit("bench", bundle, "-n", "20").out
    for part in (
        "1 thread",
        "20 answers to 20 requests",
        "1 caller",
        "p50",
        "p99",
        "(new process: Python, imports, opening)",
        "opening alone",
        "peak memory",
        "engine",
        "NumPy",
    ):
        assert part in out


def test_engines_are_listed_with_what_decided(edgekit, bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TUNE", "0.5")
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    ran = edgekit("bench", bundle, "-n", "10", "--engines", "--json")
    told = ran.json["engines"]
    assert told["candidates"][0].keys() >= {"candidate", "p50_ms", "p99_ms", "cpu_ms", "memory_mb", "runs", "cosine"}
    out = edgekit("bench", bundle, "-n", "10", "--engines").out
    assert "engines tried here" in out
    assert f"  * {told['chosen']}" in out
    assert f"* elected, {told['how']}: " in out


def test_several_callers_share_the_requests(edgekit, bundle):
    found = edgekit("bench", bundle, "-n", "200", "--concurrency", "4", "--json").json
    assert (found["n"], found["load"]["loop"], found["load"]["concurrency"]) == (200, "closed", 4)
    assert found["spread"]["p50_ms"][0] <= found["spread"]["p50_ms"][1]


def test_a_rate_asks_whether_or_not_there_are_answers(edgekit, bundle):
    asked = ("--rate", "200", "--arrivals", "fixed", "--duration-s", "0.5", "--use", "video", "--batch", "off")
    found = edgekit("bench", bundle, *asked, "--json").json
    assert found["asked"] == 100
    assert (found["load"]["loop"], found["load"]["budget_ms"], found["load"]["batch"]) == ("open", 500.0, "off")
    assert sum(found["budget"].values()) + sum(found["errors"].values()) == 100
    assert found["asked_late_ms"] is not None


def test_with_the_cache_on_every_input_is_computed_once(edgekit, bundle):
    found = edgekit("bench", bundle, "-n", "50", "--cache", "--json").json
    assert found["answers"] == {"cache": 49, "device": 1}  # two golden inputs, one of them asked before the timing


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rate", "5", "--concurrency", "2"), "either --rate or --concurrency"),
        (("--arrivals", "fixed"), "--arrivals goes with --rate"),
        (("-n", "50", "--duration-s", "1"), "either -n or --duration-s"),
        (("--use", "voice", "--budget-ms", "5"), "either --use or --budget-ms"),
        (("--use", "kitchen"), "is not one of"),
        (("--batch", "maybe"), "is not one of"),
        (("--rate", "0"), "is not in the range"),
        (("--rate", "nan"), "not a finite number"),
        (("--duration-s", "nan"), "not a finite number"),
    ],
)
def test_options_that_contradict_each_other_are_a_usage_error(edgekit, bundle, options, told):
    ran = edgekit("bench", bundle, *options)
    assert ran.code == 2
    assert told in ran.err


def test_a_record_is_written_and_compared_with(edgekit, bundle, tmp_path):
    first = edgekit("bench", bundle, "-n", "100", "-o", "before.json", "--json").json
    assert json.loads((tmp_path / "before.json").read_text()) == first
    ran = edgekit("bench", bundle, "-n", "100", "--compare", "before.json", "--json")
    compared = ran.json["compared"]
    if ran.code == 0:
        assert {r["name"] for r in compared["ratios"]} >= {"p50_ms", "p99_ms", "throughput_per_s"}
        assert compared["refused"] == compared["subjects"] == []
    else:  # a busy machine may have been less busy a second ago
        assert {one["name"] for one in compared["refused"]} <= MOVING
        assert compared["ratios"] == []


def test_records_of_other_conditions_are_refused_before_anything_is_timed(edgekit, bundle, tmp_path):
    made = edgekit("bench", bundle, "-n", "20", "--json").json
    made["conditions"]["cpu"] = "Cortex-A72"
    (tmp_path / "pi.json").write_text(json.dumps(made))
    ran = edgekit("bench", bundle, "-n", "20", "--concurrency", "2", "--compare", "pi.json")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: pi.json: conditions differ: cpu: Cortex-A72 then,")
    assert "concurrency: 1 then, 2 now" in ran.err
    told = edgekit("bench", bundle, "--compare", "pi.json", "--json")
    assert told.json["error"]["code"] == "conditions-differ"


def test_a_record_of_another_model_is_refused_and_one_of_another_build_is_not(edgekit, bundle, tmp_path):
    made = edgekit("bench", bundle, "-n", "20", "--json").json
    (tmp_path / "build.json").write_text(json.dumps(made | {"bundle_digest": "0" * 64}))
    (tmp_path / "other.json").write_text(json.dumps(made | {"model": "file_types", "contract_digest": "0" * 64}))
    ran = edgekit("bench", bundle, "-n", "20", "--compare", "other.json")
    assert ran.code == 1
    assert "not compared with other.json, because it is another model:" in ran.out
    assert "model: file_types then, tiny now" in ran.out
    ran = edgekit("bench", bundle, "-n", "20", "--compare", "build.json", "--json")
    assert {one["name"] for one in ran.json["compared"]["refused"]} <= MOVING
    assert [one["name"] for one in ran.json["compared"]["subjects"]] == ["bundle_digest"]


def test_records_whose_machine_was_busier_are_refused_afterwards(edgekit, bundle, tmp_path):
    made = edgekit("bench", bundle, "-n", "20", "--json").json
    made["conditions"]["during"] |= {"throttled": True, "throttled_by": ["under-voltage"]}
    (tmp_path / "hot.json").write_text(json.dumps(made))
    ran = edgekit("bench", bundle, "-n", "20", "--compare", "hot.json", "-o", "now.json")
    assert ran.code == 1
    assert "not compared with hot.json, because conditions differ:" in ran.out
    assert "throttled: under-voltage then" in ran.out
    assert json.loads((tmp_path / "now.json").read_text())["n"] == 20


def test_a_file_that_is_no_record_and_a_folder_that_is_not_there_are_one_line_each(edgekit, bundle, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    ran = edgekit("bench", bundle, "--compare", "x.json")
    assert (ran.code, ran.err.splitlines()) == (
        1,
        ["error: x.json: is not a record of edgekit bench: 'conditions' is missing. Make one: "
            "edgekit bench BUNDLE -o RECORD.json [bench-record]"],
    )  # fmt: skip
    ran = edgekit("bench", bundle, "--duration-s", "3600", "-o", "nowhere/x.json")  # refused before, not after
    assert ran.code == 1
    assert "nowhere/x.json: cannot be written: no such directory" in ran.err


def test_figures_are_printed_even_where_the_record_can_no_longer_be_written(bundle, tmp_path, capfd):
    """The folder goes away while the benchmark runs."""
    from edgekit.cli.bench import report

    found = {"p50_ms": 1.0}
    assert report(found, ["p50 1.0"], tmp_path / "file" / "x.json", False) == 0
    (tmp_path / "blocked").write_text("a file in its way")
    assert report(found, ["p50 1.0"], tmp_path / "blocked" / "x.json", False) == 1
    out, err = capfd.readouterr()
    assert out == "p50 1.0\n" * 2
    assert "the record cannot be written" in err


def test_a_run_of_nobodys_length_lasts_long_enough_to_tell_what_others_took(edgekit, bundle):
    found = edgekit("bench", bundle, "--json").json
    assert found["n"] > 200
    assert found["conditions"]["during"]["seconds"] >= 1.0
    assert found["conditions"]["during"]["others_cpu"] is not None
    assert edgekit("bench", bundle, "-n", "20", "--json").json["conditions"]["during"]["others_cpu"] is None


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_NPROC and address space")
def test_more_callers_than_the_machine_can_start_are_one_sentence(bundle, tmp_path):
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); from edgekit.cli import main; "
        "main()"
    )
    command = [sys.executable, "-c", code, "bench", bundle, "--concurrency", "1024"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    assert re.search(r"^error: only \d+ of 1024 callers could be started", ran.stderr, re.MULTILINE), ran.stderr
