"""Before a board is at hand, a check says what it would do to the bundle: refuse it, answer wrongly, or run it."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace

import pytest
import tiny
from parts import missing

from edgekit.boards.catalogue import finding
from edgekit.boards.checked import CheckRequest, UnknownRuntimeError, check, chosen_runtimes, demote, runtime_named
from edgekit.boards.replay import NoEnvironmentError, ReplayResult, environment
from edgekit.packaging.assemble import BundleArtifact
from edgekit_profiles import load
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import BundleError, install_command

OLD = (("tflite-runtime", "2.14.0"),)


def codes(checked, level="error"):
    return [found.code for found in checked.findings if found.level == level]


@pytest.fixture(scope="session")
def old_runtime():
    """tflite-runtime 2.14.0 beside this environment, or the reason why not."""
    try:
        return environment("tflite-runtime", "2.14.0")
    except NoEnvironmentError as error:
        return missing("tflite-runtime 2.14.0 for this Python", f"a package index and Python 3.11 ({error.what})")


@pytest.fixture(scope="session")
def bundle(digits_model, tmp_path_factory):
    """The digits network for a Raspberry Pi 4, with int8 and float artifacts."""
    from edgekit.building.build_journey import build
    from edgekit.building.build_request import BuildRequest

    folder = tmp_path_factory.mktemp("checked")
    report = build(
        BuildRequest(
            digits_model.model,
            ("raspberry-pi-4",),
            output=folder,
            calibration=str(digits_model.calibration),
            evaluation=str(digits_model.evaluation),
            recipes=("tflite-int8", "tflite-f32"),
        )
    )
    assert report.bundles[0].path is not None
    return report.bundles[0].path


def test_a_version_that_the_runtime_lacks_is_found_in_the_file_and_by_loading_it(planted, old_runtime):
    checked = check(CheckRequest(planted.version_12, load("raspberry-pi-4"), OLD))
    assert not checked.ok
    assert codes(checked) == ["op-version"]
    assert "FULLY_CONNECTED version 12" in checked.findings[0].what
    assert "tflite-as-is-per-tensor" in checked.findings[0].do
    assert "Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'" in checked.findings[0].what


def test_a_silently_wrong_file_is_found_in_its_tensors_and_by_its_answers(planted, old_runtime):
    checked = check(CheckRequest(planted.claims_1, load("raspberry-pi-4"), OLD))
    assert codes(checked) == ["wrong-dense-hybrid", "replay-differs"]
    assert checked.replayed is not None
    assert checked.replayed.cosine is not None
    assert checked.replayed.cosine < 0.95


def test_both_are_right_on_the_runtime_that_the_board_would_use(planted):
    for file in (planted.version_12, planted.claims_1):
        checked = check(CheckRequest(file, load("raspberry-pi-4")))
        assert checked.ok, checked.findings
        assert checked.replayed is not None
        assert checked.replayed.runtime == f"litert {available()['litert']}"
        others = [found for found in checked.findings if found.runtime == "tflite-runtime 2.14.0"]
        assert [found.level for found in others] == ["warning"]


def test_a_bundle_is_replayed_artifact_by_artifact_on_another_runtime(bundle, old_runtime):
    checked = check(CheckRequest(bundle, load("raspberry-pi-4"), OLD))
    assert checked.ok, checked.findings
    assert codes(checked, "warning") == ["numpy-2"] * len(checked.replays)
    assert {one.runtime for one in checked.replays} == {"tflite-runtime 2.14.0"}
    assert all(one.cosine > 0.99 and one.examples > 0 for one in checked.replays)


def test_what_files_tell_is_told_without_an_engine_in_under_a_second(bundle, monkeypatch):
    import subprocess

    monkeypatch.setattr(subprocess, "run", None)
    check(CheckRequest(bundle, load("raspberry-pi-4"), replay=False))
    begun = time.process_time()
    checked = check(CheckRequest(bundle, load("raspberry-pi-4"), replay=False))
    assert time.process_time() - begun < 1
    assert checked.ok
    assert checked.replays == ()


def test_a_board_without_a_runtime_and_one_without_memory(bundle):
    old = check(CheckRequest(bundle, load("jetson-nano"), replay=False))
    assert set(codes(old)) == {"runtime-unavailable"}
    profile = load("raspberry-pi-4")
    small = replace(profile, memory=replace(profile.memory, ram_mb=64))
    assert "memory" in codes(check(CheckRequest(bundle, small, replay=False)))
    tiny = replace(profile, memory=replace(profile.memory, ram_mb=0))
    assert "file-size" in codes(check(CheckRequest(bundle, tiny, replay=False)))


@pytest.fixture(scope="session")
def two_formats(tmp_path_factory):
    """A bundle whose first artifact is TFLite, with ONNX beside it."""
    return tiny.bundle(tmp_path_factory.mktemp("two"), alternates=[BundleArtifact(tiny.artifact("onnx-f32"))])


@pytest.mark.parametrize(
    ("board", "missing", "instead"),
    [
        ("raspberry-pi-4-32bit", "onnx-f32", "tflite-int8"),
        ("raspberry-pi-4-trixie-32bit", "tflite-int8", "onnx-f32"),
    ],
)
def test_an_artifact_in_whose_place_another_answers_there_is_no_error(two_formats, board, missing, instead):
    checked = check(CheckRequest(two_formats, load(board), replay=False))
    assert checked.ok, checked.findings
    (found,) = (one for one in checked.findings if one.code == "runtime-unavailable")
    assert found.artifact == missing
    assert found.do == f"Nothing, where {instead} will do: it answers there instead"


def test_a_reason_that_two_runtimes_share_is_said_once(bundle):
    found = check(CheckRequest(bundle, load("pixel-4"), replay=False)).findings[0]
    assert found.code == "runtime-unavailable"
    assert found.what.count("Android has no glibc") == 1


@pytest.mark.parametrize(
    ("runtime", "package"), [(("onnxruntime", "1.17.0"), "onnxruntime"), (("litert", "1.0.1"), "ai-edge-litert")]
)
def test_a_runtime_of_numpy_1_is_installed_by_its_own_name(two_formats, runtime, package):
    found = check(CheckRequest(two_formats, load("raspberry-pi-4"), (runtime,), replay=False)).findings
    (limit,) = (one for one in found if one.code == "numpy-2")
    assert limit.do.startswith(f"Install it with its limit: pip install '{package}=={runtime[1]}' 'numpy<2'")


def test_a_bundle_of_another_board_is_said_and_no_error(bundle):
    checked = check(CheckRequest(bundle, load("raspberry-pi-5"), replay=False))
    assert checked.ok
    assert codes(checked, "warning") == ["other-board"]


def test_a_forged_golden_answer_is_found(bundle, tmp_path):
    """The bundle packs other answers than the artifact gives."""
    from edgekit.packaging.writer import BundleDraft, write_bundle
    from edgekit_runtime.bundle.reader import read_bundle

    opened = read_bundle(bundle)
    manifest, draft = opened.manifest, BundleDraft()
    for blob in manifest.blobs:
        draft.add(opened.blob(blob.sha256))
    first, *rest = manifest.golden
    forged = replace(
        first,
        answers=tuple(
            replace(a, outputs={name: draft.add(opened.blob(blob)[::-1]) for name, blob in a.outputs.items()})
            for a in first.answers
        ),
    )
    path = tmp_path / "forged.ekb"
    write_bundle(path, draft, replace(manifest, golden=(forged, *rest), blobs=()), [])
    checked = check(CheckRequest(path, load("raspberry-pi-4")))
    assert codes(checked)[0] == "replay-differs"


def test_a_runtime_that_no_index_has_is_a_warning(bundle):
    checked = check(CheckRequest(bundle, load("raspberry-pi-4"), (("litert", "0.0.1"),)))
    assert checked.ok
    assert "replay-unavailable" in codes(checked, "warning")
    assert checked.replayed is None


def test_an_onnx_file_is_checked_too(digits_onnx):
    checked = check(CheckRequest(digits_onnx, load("raspberry-pi-4")))
    assert checked.ok, checked.findings
    assert checked.replayed is not None
    assert checked.replayed.runtime.startswith("onnxruntime ")


@pytest.mark.parametrize(
    "text", ["tflite-runtime", "tflite-runtime=2.14", "tensorflow==2.21", "litert==new", "litert==2.²", ""]
)
def test_what_names_no_runtime_is_refused(text):
    with pytest.raises(UnknownRuntimeError):
        runtime_named(text)


def test_a_runtime_may_go_by_its_distribution():
    assert runtime_named("ai-edge-litert==2.1.1") == runtime_named("litert == 2.1.1") == ("litert", "2.1.1")


def test_a_model_file_that_finds_no_room_to_be_tried_in_says_where_to_make_some(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    file = tmp_path / "net.tflite"
    file.write_bytes(tiny.model_bytes("tflite-f32"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        checked = check(CheckRequest(file, load("raspberry-pi-4")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (found,) = [one for one in checked.findings if one.code == "replay-impossible"]
    assert found.what == "the bundle cannot be written: File too large"
    assert found.do == f"Make room in {tmp_path}, or name another folder with TMPDIR"


def test_a_model_file_that_cannot_be_tried_without_an_extra_says_which(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rfc8785", None)
    (tmp_path / "net.tflite").write_bytes(tiny.model_bytes("tflite-f32"))
    checked = check(CheckRequest(tmp_path / "net.tflite", load("raspberry-pi-4")))
    (found,) = [one for one in checked.findings if one.code == "replay-impossible"]
    assert found.do == f"Run: {install_command('convert')}; or pass the bundle"


@pytest.mark.parametrize("text", ["1.21", "1.21.0", "1.21.0.0", "01.21"])
def test_a_version_has_one_spelling_and_so_is_found_again_on_the_board(text):
    """The emulated board says `onnxruntime 1.21.0`, and its profile knows wheels by that."""
    named = runtime_named(f"onnxruntime=={text}")
    assert named == ("onnxruntime", "1.21.0")
    (chosen, *_) = chosen_runtimes(load("raspberry-pi-4"), [named])
    answered = ReplayResult("onnxruntime 1.21.0", "emulated", 0.0)
    found = finding("replay-late", "it was late", runtime=str(chosen.runtime))
    assert demote(found, answered).level == "warning"


def test_what_is_neither_a_bundle_nor_a_model_is_refused(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("no model")
    for path in (file, tmp_path / "nothing.ekb"):
        with pytest.raises(BundleError):
            check(CheckRequest(path, load("raspberry-pi-4")))


def newer_dense(data, version):
    """The file with dense layers that say another version."""
    from edgekit_converters.formats import tflite_edit as tfl

    model = tfl.read(data)
    for entry in model.operatorCodes:
        if max(entry.builtinCode, entry.deprecatedBuiltinCode) == tfl.schema().BuiltinOperator.FULLY_CONNECTED:
            entry.version = version
    return tfl.write(model)


def test_a_file_that_only_the_reference_kernels_refuse_is_asked_of_those_that_a_board_runs(
    planted, old_runtime, tmp_path
):
    """tflite-runtime 2.14.0 knows FULLY_CONNECTED up to 9 with reference kernels, up to 10 with the others."""
    file = tmp_path / "dense_10.tflite"
    file.write_bytes(newer_dense(planted.int8.read_bytes(), 10))
    checked = check(CheckRequest(file, load("raspberry-pi-4"), OLD))
    assert checked.ok, checked.findings
    assert codes(checked, "warning") == ["numpy-2", "replay-kernels"]
    assert "FULLY_CONNECTED' version '10'" in checked.findings[1].what
    assert checked.replayed.kernels == "default"
    assert checked.replayed.cosine > 0.99
    assert check(CheckRequest(planted.int8, load("raspberry-pi-4"), OLD)).replayed.kernels == "reference"


def test_what_an_emulated_board_answers_is_told_of_each_artifact_in_its_own_steps(two_formats, monkeypatch):
    """One step of an 8-bit output is not one of a float output, which is 1e-4 of the largest value."""
    from edgekit.boards.emulated_replay import EmulatedReplay, GoldenVerdict
    from edgekit.boards.replay import replay_emulated

    def golden(recipe, number, steps):
        return GoldenVerdict(recipe, number, "probs", True, steps, 0.999, True, True, "it")

    goldens = (golden("tflite-int8", 0, 1.0), golden("tflite-int8", 1, 0.0), golden("onnx-f32", 0, 2.5))
    told = EmulatedReplay(True, "board", "an engine 1", "cortex-a72", "Debian", "7.2", 2.5, goldens, ())
    monkeypatch.setattr("edgekit.boards.emulated_replay.replay", lambda *asked, **given: told)
    replays, findings = replay_emulated(two_formats, load("raspberry-pi-4"))
    assert findings == []
    assert [(one.artifact, one.worst, one.quantized, one.examples) for one in replays] == [
        ("tflite-int8", 1.0, True, 2),
        ("onnx-f32", 2.5, False, 1),
    ]


def test_the_emulated_board_has_the_last_word_on_the_same_runtime(planted, old_runtime, monkeypatch):
    """What native kernels refuse is a warning once the board's own answer; of another runtime it says nothing."""
    from edgekit.boards import checked as journey
    from edgekit.boards.replay import ReplayResult

    for runtime, ok in (("tflite-runtime 2.14.0", True), ("litert 2.1.3", False)):
        answered = ReplayResult(runtime, "emulated", 0.0, 1.0, 8, cpu="cortex-a72")
        monkeypatch.setattr(journey, "replay_emulated", lambda *asked, told=answered: ([told], []))
        checked = check(CheckRequest(planted.claims_1, load("raspberry-pi-4"), OLD, emulate=True))
        (differs,) = (found for found in checked.findings if found.code == "replay-differs")
        assert (differs.level == "warning") is ok
