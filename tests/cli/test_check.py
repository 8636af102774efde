"""edgekit check, and edgekit doctor with a code, as a person runs them."""

from __future__ import annotations

import pytest
import tiny

from edgekit_runtime.bundle.reader import read_bundle

NOTHING_RUN = ("--profile", "raspberry-pi-4", "--no-replay")


def test_a_planted_file_is_refused_with_code_reason_and_the_next_command(edgekit, planted):
    ran = edgekit("check", planted.version_12, *NOTHING_RUN, "--runtime", "tflite-runtime==2.14.0")
    assert ran.code == 1
    assert "version_12.tflite on raspberry-pi-4: 1 error" in ran.out
    assert "error op-version: version_12.tflite: FULLY_CONNECTED version 12 in" in ran.out
    assert "do:  edgekit build version_12.tflite --recipe tflite-as-is-per-tensor" in ran.out


def test_json_is_what_was_promised(edgekit, planted):
    found = edgekit("check", planted.claims_1, *NOTHING_RUN, "--runtime", "tflite-runtime==2.14.0", "--json").json
    assert found["profile"] == "raspberry-pi-4"
    assert found["ok"] is False
    assert found["replayed"] is None
    first = found["findings"][0]
    assert first.keys() >= {"code", "level", "what", "why", "do"}
    assert (first["code"], first["level"]) == ("wrong-dense-hybrid", "error")


def test_several_boards_are_one_object(edgekit, planted):
    ran = edgekit("check", planted.version_12, *NOTHING_RUN, "--profile", "raspberry-pi-5", "--json")
    assert ran.code == 0
    assert ran.json["ok"] is True
    assert [one["profile"] for one in ran.json["checks"]] == ["raspberry-pi-4", "raspberry-pi-5"]


def test_what_was_not_replayed_is_not_simply_ok(edgekit, planted):
    assert (
        "version_12.tflite on raspberry-pi-4: ok, not replayed"
        in edgekit("check", planted.version_12, *NOTHING_RUN).out
    )
    ran = edgekit("check", planted.int8, "--profile", "raspberry-pi-4", "--runtime", "litert==0.0.1")
    assert ran.code == 0
    assert "int8.tflite on raspberry-pi-4: ok, not replayed" in ran.out
    assert "has ai-edge-litert 0.0.1 for this machine" in ran.out


def test_for_a_phone_counts_what_its_accelerators_leave(edgekit, planted):
    ran = edgekit("check", planted.int8, "--for", "ios")
    assert ran.code == 0
    assert "int8.tflite for ios: int8.tflite," in ran.out
    assert "LiteRT's Core ML delegate takes 0" in ran.out
    assert "(INT8)" in ran.out
    both = edgekit("check", planted.int8, "--for", "android", "--for", "web", "--json").json
    assert [one["for"] for one in both["checks"]] == ["android", "web"]


def test_for_refuses_other_places_and_a_board_besides(edgekit, planted):
    ran = edgekit("check", planted.int8, "--for", "watch")
    assert ran.code == 2
    assert "'watch' is not one of 'android', 'ios', 'web'" in ran.err
    ran = edgekit("check", planted.int8, "--for", "web", *NOTHING_RUN)
    assert ran.code == 2
    assert "leave out --profile and --no-replay" in ran.err


def test_differences_of_float_answers_are_told_without_steps():
    from edgekit.boards.replay import ReplayResult
    from edgekit.cli.verify import replay_line

    told = replay_line(ReplayResult("litert 2.3.0", "native", 407.0, 0.9999, 8, quantized=False))
    assert "8 golden examples, furthest 4.1 % of the largest value, cosine 0.9999" in told
    assert "furthest 2 steps," in replay_line(ReplayResult("litert 2.3.0", "native", 2.0, 0.9999, 8))
    assert "furthest 1 step," in replay_line(ReplayResult("litert 2.3.0", "native", 1.0, 0.9999, 8))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("qemu: uncaught target signal 11 (Segmentation fault) - core dumped", "emulated-signal"),
        ("uncaught target signal 11", "emulated-signal"),
        ("qemu: uncaught target signal 4 (Illegal instruction) - core dumped", "illegal-instruction"),
        ("Segmentation fault (core dumped)", "replay-crashed"),
        ("ImportError: x.so: failed to map segment from shared object", "map-segment"),
    ],
)
def test_explain_knows_what_systems_say(in_process, message, code):
    assert in_process("doctor", message, "--json").json["entries"][0]["code"] == code


def test_without_an_emulator_the_command_that_installs_it_is_the_answer(planted, tmp_path, monkeypatch):
    from edgekit.boards.replay import replay_emulated
    from edgekit_profiles import load

    bundle = made_into_a_bundle(planted.int8)
    monkeypatch.setenv("PATH", str(tmp_path))
    with bundle as subject:
        replayed, findings = replay_emulated(subject.bundle, load("raspberry-pi-4"))
    assert replayed == []
    assert [(found.code, found.level) for found in findings] == [("emulator-missing", "error")]
    assert "apt-get install" in findings[0].do


def made_into_a_bundle(file):
    from edgekit.boards.subject import open_subject

    return open_subject(file)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nothing.ekb", "--profile", "raspberry-pi-4"), "bundle-format"),
        (("nothing.ekb", "--profile", "raspberry-pie"), "profile-unknown"),
        (("nothing.ekb", "--profile", "raspberry-pi-4", "--runtime", "tensorflow==2"), "runtime-name"),
    ],
)
def test_what_cannot_be_checked_is_one_error(in_process, arguments, code):
    ran = in_process("check", *arguments, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == code


def test_emulation_without_a_replay_is_a_contradiction(edgekit):
    assert edgekit("check", "net.ekb", "--profile", "raspberry-pi-4", "--emulate", "--no-replay").code == 2


def test_explain_prints_an_entry_by_its_code_and_by_the_words_of_a_message(edgekit):
    by_code = edgekit("doctor", "op-version")
    by_words = edgekit("doctor", "ValueError: Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'.")
    assert by_code.code == by_words.code == 0
    assert by_code.out == by_words.out
    assert by_code.out.startswith("op-version: ")
    assert "  do      " in by_code.out


def test_explain_lists_every_code(edgekit):
    from edgekit.boards.catalogue import entries

    ran = edgekit("doctor", "--codes")
    assert all(f"\n  {code} " in ran.out for code in entries())
    assert [one["code"] for one in edgekit("doctor", "--codes", "--json").json["entries"]] == list(entries())


@pytest.mark.parametrize("text", ["op-versoin", "the weather is fine"])
def test_what_nobody_knows_is_an_error_with_a_way_on(in_process, text):
    ran = in_process("doctor", text, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "unexplained"
    assert ran.json["error"]["do"]


def test_a_bundle_says_for_which_board_and_a_model_file_does_not(edgekit, planted, tmp_path):
    bundle = tiny.bundle(tmp_path)
    own = read_bundle(bundle).manifest.target.profile
    assert edgekit("check", bundle, "--no-replay", "--json").json["profile"] == own
    refused = edgekit("check", planted.int8, "--no-replay")
    assert refused.code == 2
    assert "pass --profile" in refused.err
