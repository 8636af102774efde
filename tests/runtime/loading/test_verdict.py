"""What is kept of a trial, and what is believed of what was kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.loading.candidates import CandidateTrial, TuningCandidate
from edgekit_runtime.loading.election import choose_verdict, read, store
from edgekit_runtime.system.sealed import name_of

FAST = TuningCandidate("tflite-int8", "aa", "litert", "2.3.0", 1)
SLOW = TuningCandidate("tflite-int8", "aa", "litert", "2.3.0", 2)
LAME = TuningCandidate("onnx-int8-qdq", "bb", "onnxruntime", "1.31.1", 1)
REFUSED = {"code": "selftest", "what": "crashed with SIGILL", "where": "x.ekb", "do": "use another"}
TRIED = (
    CandidateTrial(FAST, 3.2, 90, 6.0, 4.0, 30.0, 0.8),
    CandidateTrial(SLOW, 3.9, 90, 6.0, 4.0, 12.0, 1.2),
    CandidateTrial(LAME, refused=REFUSED),
)
OFFER = (FAST, SLOW, LAME)


def test_the_champion_is_chosen_and_the_reason_given():
    verdict = choose_verdict(TRIED, FAST, None)
    assert verdict.chosen == FAST
    assert verdict.why == "the fastest by p50 and p99: p50 3.2 ms; the next: p50 3.9 ms"
    assert verdict.in_order() == (FAST, SLOW)
    described = {one["candidate"]: one["refused"] for one in verdict.describe()["candidates"]}
    assert described[LAME.label] == "x.ekb: crashed with SIGILL"


def test_the_reason_is_true_where_another_takes_less_and_where_it_is_open():
    tried = (replace(TRIED[0], p50_ms=7.03), replace(TRIED[1], p50_ms=6.8))
    assert choose_verdict(tried, FAST, None).why == (
        "of those within 5% of the fastest the least p99 x processor time, give or take 10%: p50 7.03 ms; "
        "the next: p50 6.8 ms"
    )
    unsettled = choose_verdict(TRIED, FAST, None, settled=False)
    assert unsettled.why.endswith("3.9 ms; the board was busy or it was close, so a later opening measures again")
    assert not unsettled.settled


def test_one_with_a_lower_p50_and_a_heavier_tail_comes_with_both_figures():
    tried = (replace(TRIED[0], p50_ms=3.2, p99_ms=3.4), replace(TRIED[1], p50_ms=3.0, p99_ms=9.0, cpu_ms=3.1))
    assert choose_verdict(tried, FAST, None).why == (
        "the fastest by p50 and p99: p50 3.2 ms, p99 3.4 ms; the next: p50 3 ms, p99 9 ms, 3.1 ms of processor"
    )


def test_the_only_one_left_of_those_that_ran_is_the_fastest_and_not_the_only_one_that_passed():
    too_slow = CandidateTrial(LAME, refused={"code": "slow", "what": "a run takes 90 ms, the best 3 ms"})
    assert choose_verdict((TRIED[0], too_slow), FAST, None).why == (
        "the fastest by p50 and p99: p50 3.2 ms; 1 more took longer at first"
    )
    no_round = replace(TRIED[1], p50_ms=30.0, ratio=None)
    assert choose_verdict((TRIED[0], no_round, too_slow), FAST, None).why.endswith("2 more took longer at first")
    assert choose_verdict((TRIED[0], TRIED[2]), FAST, None).why == "the only one that passed: p50 3.2 ms"


def test_the_only_one_that_passed_is_measured_again_while_others_had_no_turn():
    tried = (TRIED[0], CandidateTrial(SLOW), TRIED[2])
    verdict = choose_verdict(tried, FAST, None, settled=False)
    assert verdict.why.endswith("3.2 ms; the board was busy or it was close, so a later opening measures again")
    assert not verdict.settled
    assert choose_verdict((TRIED[0], TRIED[2]), FAST, None, settled=False).settled


def test_a_slower_one_that_fits_into_memory_is_taken():
    verdict = choose_verdict(TRIED, FAST, 20.0)
    assert verdict.chosen == SLOW
    assert "does not fit into 20 MB" in verdict.why
    assert choose_verdict(TRIED, FAST, 5.0) is None


def test_what_was_stored_is_read_again(tmp_path):
    kept = store(tmp_path / "deep" / "v.json", choose_verdict(TRIED, FAST, None))
    assert kept.kept
    again = read(tmp_path / "deep" / "v.json", OFFER, None)
    assert (again.chosen, again.how, again.tried) == (FAST, "stored", TRIED)
    assert read(tmp_path / "deep" / "v.json", OFFER, 20.0).chosen == SLOW


def test_a_folder_that_cannot_be_written_only_means_it_is_not_kept(tmp_path):
    (tmp_path / "file").write_text("where a folder should be")
    assert not store(tmp_path / "file" / "v.json", choose_verdict(TRIED, FAST, None)).kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"format": 1}',
        '{"format": 2, "tried": [], "chosen": {}}',
        "\x00\xff",
        "[" * 100_000,
    ],
    ids=["empty", "cut", "list", "null", "number", "bare", "format", "bytes", "deep"],
)
def test_a_damaged_file_is_as_if_it_were_not_there(tmp_path, text):
    (tmp_path / "v.json").write_text(text, encoding="utf-8")
    assert read(tmp_path / "v.json", OFFER, None) is None
    assert read(tmp_path / "absent.json", OFFER, None) is None


@given(where=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_changed_byte_never_raises(tmp_path_factory, where, byte):
    file = tmp_path_factory.mktemp("damaged") / "v.json"
    store(file, choose_verdict(TRIED, FAST, None))
    data = bytearray(file.read_bytes())
    data[where % len(data)] = byte
    file.write_bytes(data)
    verdict = read(file, OFFER, None)
    assert verdict is None or verdict.chosen in (FAST, SLOW)


def test_a_verdict_over_other_candidates_is_not_believed(tmp_path):
    store(tmp_path / "v.json", choose_verdict(TRIED, FAST, None))
    assert read(tmp_path / "v.json", (FAST, SLOW), None) is None


@pytest.mark.parametrize("changed", range(3))
def test_another_bundle_board_or_runtime_has_another_name(changed):
    parts = ["bundle", "board", "runtime"]
    before = name_of(*parts)
    assert name_of(*parts) == before
    parts[changed] += "'"
    assert name_of(*parts) != before


def test_names_do_not_run_together():
    assert name_of("ab", "c") == name_of("ab", "c") != name_of("a", "bc")


def test_it_can_be_printed_as_json():
    json.dumps(choose_verdict(TRIED, FAST, None).describe())
