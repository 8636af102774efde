"""What a build says and leaves behind, on linear models as ONNX: seconds, and no TensorFlow."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from linear import onnx_bytes
from PIL import Image

from edgekit.building import making
from edgekit.building.build_journey import build, refuse_full_disk
from edgekit.building.build_report import summary
from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import labels_at_chance, too_few_for
from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.output_errors import OutputError
from edgekit.packaging.writer import write_whole
from edgekit_converters.choose import Refusal
from edgekit_converters.data.describe_contract import default_file
from edgekit_converters.data.draft_contract import draft
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import CalibrationError, MetricError, SourceError
from edgekit_converters.sources.load import load
from edgekit_converters.targets.onnx_to_tf import available
from edgekit_profiles import ProfileError
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.system.errors import EdgekitError, MissingExtraError

pytestmark = pytest.mark.convert
RNG = np.random.default_rng(0)


@pytest.fixture
def request_for(tmp_path):
    """A request for a 4 -> 3 linear model, or the ONNX bytes that are given, on 120 random items."""

    def ask(data=None, **changes):
        model = changes.pop("model", tmp_path / "net.onnx")
        model.write_bytes(
            data or onnx_bytes(RNG.normal(size=(4, 3)).astype(np.float32), np.zeros(3, np.float32), (-1, 4))
        )
        np.savez(tmp_path / "set.npz", x=RNG.normal(size=(120, 4)).astype(np.float32), **changes.pop("arrays", {}))
        if changes.pop("calibrated", False):
            np.savez(tmp_path / "calibration.npz", x=RNG.normal(size=(60, 4)).astype(np.float32))
            changes["calibration"] = str(tmp_path / "calibration.npz")
        asked = {"profiles": ("x86-64",), "recipes": ("onnx-f32",), "evaluation": str(tmp_path / "set.npz")} | changes
        return BuildRequest(model=model, output=tmp_path / "out", **asked)

    return ask


def graph(nodes, weights=(), inputs=("x",), classes=4) -> bytes:
    """An ONNX model of float [N, 4] inputs and one output `y`."""
    from onnx import TensorProto, helper, numpy_helper

    made = helper.make_graph(
        [helper.make_node(op, take, give, **attributes) for op, take, give, attributes in nodes],
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", classes])],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(made, opset_imports=opset, ir_version=9).SerializeToString()


def notes(report):
    return {finding.code: finding for finding in report.findings if finding.level == "note"}


def test_values_from_0_to_1_that_are_no_distribution_are_not_ranked_as_classes(request_for):
    report = build(request_for(graph([("Sigmoid", ["x"], ["y"], {})]), arrays={"y": np.zeros(120, np.int64)}))
    assert "do not sum to 1" in notes(report)["guessed-task"].what
    assert "its labels are not used" in notes(report)["labels-unused"].what
    (candidate,) = report.candidates
    assert (candidate["fidelity"]["metric"], candidate["fidelity"]["agreement"]) == (None, None)
    assert read_bundle(report.bundles[0].path).manifest.contract.task == "raw"


def test_a_guessed_classifier_is_said_in_summary_and_report(request_for):
    report = build(request_for(graph([("Softmax", ["x"], ["y"], {})])))
    assert any("taken for classification, and 'y' for probabilities" in line for line in summary(report))
    assert sum(read_bundle(report.bundles[0].path).artifact().top_scores) == report.candidates[0]["fidelity"]["items"]
    assert "guessed-task" in {finding["code"] for finding in json.loads(report.report.read_text())["data"]}


def encoder():
    """A vector of length 1, as a text encoder ends."""
    first, second = RNG.normal(size=(4, 64)).astype(np.float32), RNG.normal(size=(64, 256)).astype(np.float32)
    nodes = [
        ("MatMul", ["x", "first"], ["a"], {}),
        ("Relu", ["a"], ["b"], {}),
        ("MatMul", ["b", "second"], ["c"], {}),
        ("LpNormalization", ["c"], ["y"], {"axis": -1}),
    ]
    return graph(nodes, [("first", first), ("second", second)], classes=256)


@pytest.mark.parametrize("text", ['task = "classification"\n', None], ids=["said to be scores", "drafted"])
def test_an_encoder_is_never_refused_for_its_best_value(request_for, text):
    request = request_for(encoder(), recipes=("onnx-int8-qdq",), max_drop=0.01, repair_s=0.0, calibrated=True)
    file = default_file(request.model)
    file.write_text(text or draft(load(request.model)))
    report = build(request)
    (candidate,) = report.candidates
    found = candidate["fidelity"]
    assert (found["agreement"], found["outputs"][0]["kind"]) == (None, "vector")
    assert found["loss"] == pytest.approx(1 - found["cosine"], abs=1e-6)
    assert found["loss_ci95"][0] < found["loss"] < found["loss_ci95"][1]
    (bundle,) = report.bundles
    assert read_bundle(bundle.path).manifest.contract.task == "embedding"
    assert ("task-doubted" in {finding.code for finding in report.findings}) == (text is not None)
    said = list(summary(report))
    assert any("away from your model's answers (1 - cosine)" in line for line in said)
    assert not any("agreement with your model's answers" in line for line in said)


def test_a_forecast_is_judged_by_its_numbers(request_for):
    weights = np.cumsum(RNG.normal(size=(4, 24)), axis=1).astype(np.float32)
    data = graph([("MatMul", ["x", "w"], ["y"], {})], [("w", weights)], classes=24)
    report = build(request_for(data, recipes=("onnx-int8-qdq",), max_drop=0.2, repair_s=0.0, calibrated=True))
    (candidate,) = report.candidates
    assert (candidate["fidelity"]["metric"], candidate["fidelity"]["agreement"]) == (None, None)
    assert "neighbours go together" in notes(report)["guessed-task"].what
    assert report.as_json()["bundles"][0]["decision"]["verdict"] == "undecided"


def test_float_on_few_items_is_shipped_without_more(request_for):
    """24 items leave an interval of 13 %, which the same arithmetic in another order does not need."""
    decision = build(request_for(max_drop=0.01)).as_json()["bundles"][0]["decision"]
    assert (decision["verdict"], decision["items"]) == ("ship", None)
    assert "but for the rounding of floats" in decision["why"]


def test_a_model_that_mixes_the_items_of_a_batch_ends_the_build(request_for):
    centred = graph([("ReduceMean", ["x"], ["m"], {"axes": [0]}), ("Sub", ["x", "m"], ["y"], {})])
    with pytest.raises(
        SourceError, match=r"net\.onnx: the output 'y' of one item depends on the other items of its batch"
    ):
        build(request_for(centred))


def test_a_float_artifact_that_answers_otherwise_is_a_failed_conversion(request_for, monkeypatch):
    from edgekit_converters.targets.workspace import Workspace

    make = Workspace.make
    other = onnx_bytes(-np.eye(4, 3, dtype=np.float32), np.zeros(3, np.float32), (-1, 4))

    def wrong(*arguments):
        return replace(make(*arguments), data=other)

    monkeypatch.setattr(Workspace, "make", wrong)
    report = build(request_for(onnx_bytes(np.eye(4, 3, dtype=np.float32), np.zeros(3, np.float32), (-1, 4))))
    (refusal,) = report.bundles[0].choice.refused
    assert refusal.code == "conversion-failed"
    assert "its float32 answers differ from the original's: cosine -1.0000" in refusal.reason


PICTURES = '[input]\nkind = "image"\nmean = 0\nstd = 255\n'


def pictures(folder: Path, names: tuple[str, ...]) -> str:
    for name in names:
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(10):
            pixels = RNG.integers(0, 256, (2, 2, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    return str(folder / "photos")


@pytest.fixture
def picture_request(request_for, tmp_path):
    def ask(*folders):
        (tmp_path / "net.contract.toml").write_text(f'labels = ["cat", "dog", "newt"]\n{PICTURES}')
        weights = RNG.normal(size=(12, 3)).astype(np.float32)
        data = onnx_bytes(weights, np.zeros(3, np.float32), (-1, 3, 2, 2))
        return request_for(data, evaluation=None, calibration=pictures(tmp_path, folders))

    return ask


def test_one_misspelt_folder_never_costs_all_the_labels(picture_request):
    with pytest.raises(CalibrationError, match=r"no class is called 'dgo'.*Did you mean 'dog'"):
        build(picture_request("cat", "dgo"))


@pytest.mark.parametrize("calibrated", [True, False])
def test_the_code_says_which_of_the_two_sets_is_wrong(request_for, tmp_path, calibrated):
    np.save(tmp_path / "other.npy", np.ones((20, 5), np.float32))  # the model takes 4
    np.savez(tmp_path / "part.npz", x=RNG.normal(size=(20, 4)).astype(np.float32), y=np.zeros(19, np.int64))
    for name in ("nowhere", "other.npy", "part.npz"):
        with pytest.raises(CalibrationError) as caught:
            build(request_for(calibrated=calibrated, evaluation=str(tmp_path / name)))
        assert (caught.value.code, name in str(caught.value)) == ("evaluation", True)
    for evaluation in ({}, {"evaluation": None}):
        with pytest.raises(CalibrationError) as caught:
            build(request_for(calibration=str(tmp_path / "other.npy"), **evaluation))
        assert caught.value.code == "calibration"


def test_folders_that_are_no_classes_are_calibrated_with_and_it_is_said(picture_request):
    report = build(picture_request("morning", "evening"))
    assert "none names a class" in notes(report)["folders-no-labels"].what
    assert report.candidates[0]["fidelity"]["metric"] is None


def test_folders_that_are_classes_are_labels_of_what_is_held_out(picture_request):
    report = build(picture_request("cat", "dog"))
    assert report.candidates[0]["fidelity"]["metric"] == "top1"


def test_one_given_set_of_one_item_or_of_none_that_can_be_read_is_blamed_itself(request_for, tmp_path):
    np.save(tmp_path / "same.npy", np.zeros((60, 4), np.float32))
    with pytest.raises(
        CalibrationError, match=r"same.npy: every item is the same, all 60 of them. Give different items"
    ):
        build(request_for(calibration=str(tmp_path / "same.npy"), evaluation=None))
    np.save(tmp_path / "few.npy", np.eye(4, dtype=np.float32)[np.arange(60) % 2])
    with pytest.raises(CalibrationError, match=r"few.npy: every item duplicates a held-out evaluation item"):
        build(request_for(calibration=str(tmp_path / "few.npy"), evaluation=None))


@pytest.mark.parametrize(
    "body", ["raise KeyError('boxes')", "return None", "return float('nan')", "raise SystemExit(0)"]
)
def test_a_metric_that_fails_ends_the_build_before_anything_is_converted(request_for, tmp_path, monkeypatch, body):
    from edgekit_converters.targets.workspace import Workspace

    monkeypatch.setattr(Workspace, "make", lambda *arguments: pytest.fail("something was converted"))
    monkeypatch.chdir(tmp_path)
    module = f"metric_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(f"def score(outputs, labels):\n    {body}\n")
    request = request_for(arrays={"y": np.arange(120) % 3}, metric=f"{module}:score")
    with pytest.raises(MetricError, match=rf"^{module}:score: (raised|gave) .*first item: \w+ float32 \[3\]; label"):
        build(request)


def classified(best: list[int], labels: list[int]) -> list[str]:
    outputs = tuple({"p": np.eye(10, dtype=np.float32)[one]} for one in best)
    return [f.what for f in labels_at_chance(Reference(outputs, tuple(labels), tuple(best), ()), "set")]


def test_labels_that_are_off_by_one_are_told():
    truth = [i % 10 for i in range(50)]
    assert classified(truth, [(label + 1) % 10 for label in truth]) == [
        "set: the original itself is right on 0.0 % of 50 items, no better than guessing"
    ]
    assert classified(truth, truth) == []


@pytest.mark.parametrize(
    ("best", "labels"),
    {
        "few items": ([0, 1] * 9, [1, 0] * 9),
        "one class": ([1] * 30, [0] * 30),
        "a poor model": ([0] * 8 + list(range(2, 10)) * 4, [0] * 20 + [1] * 20),
        "nearly one class, which it always answers": ([0] * 40, [0] * 38 + [1, 1]),
    }.values(),
)
def test_a_poor_model_or_a_small_set_is_not_called_guessing(best, labels):
    assert classified(best, labels) == []


def test_dead_links_alone_are_told_by_name(picture_request, tmp_path):
    request = picture_request("cat")
    for file in Path(request.calibration).rglob("*.png"):
        file.unlink()
        file.symlink_to("/nowhere.png")
    with pytest.raises(CalibrationError, match=r"photos: 10 of 10 files cannot be read: .*cat/0.png.*No such file"):
        build(request)


NAMES = ["../escaped", "/", ".", "..", "", ".hidden", "-o", "a/b", "a\\b", "a\nb", "a\x1b[2Jb", "x" * 101, "Käse"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_is_no_plain_file_name_is_refused_before_anything_is_loaded(request_for, tmp_path, name):
    request = request_for(b"no model", name=name)
    with pytest.raises(OutputError, match="--name: invalid bundle name"):
        build(request)
    assert not request.output.exists()


@pytest.mark.parametrize(
    ("stem", "called"),
    [("net.v2", "net.v2"), ("my net (ü)", "my-net"), (".hidden", "hidden"), ("ü", "model"), ("x" * 200, "x" * 100)],
)
def test_the_models_own_name_is_made_fit(stem, called):
    assert BuildRequest(Path(f"{stem}.onnx"), (), output=Path("out")).bundle_name == called


def test_a_failed_build_leaves_no_folder_that_it_made(request_for, tmp_path):
    request = request_for(b"no model")
    request = BuildRequest(request.model, ("x86-64",), output=tmp_path / "deep" / "er", evaluation=request.evaluation)
    with pytest.raises(SourceError):
        build(request)
    assert not (tmp_path / "deep").exists()
    (tmp_path / "deep").mkdir()
    with pytest.raises(SourceError):
        build(request)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["deep"]


def test_a_profile_or_recipe_that_is_named_twice_is_built_once(request_for):
    report = build(request_for(profiles=("x86-64", "x86-64"), recipes=("onnx-f32", "onnx-f32")))
    assert [bundle.profile for bundle in report.bundles] == ["x86-64"]
    assert len(report.candidates) == 1


def test_a_board_is_named_in_full_in_what_is_built(request_for):
    terms = BundleTerms(compatible=("pi5",))
    (built,) = build(replace(request_for(profiles=("rpi4", "raspberry-pi-4")), terms=terms)).bundles
    manifest = read_bundle(built.path).manifest
    assert (manifest.target.profile, manifest.compatible) == ("raspberry-pi-4", ("raspberry-pi-4", "raspberry-pi-5"))


def test_two_profiles_of_one_name_are_refused(request_for, tmp_path):
    from importlib.resources import files

    text = (files("edgekit_profiles") / "boards" / "raspberry-pi-4.toml").read_text()
    own = tmp_path / "raspberry-pi-4.toml"
    own.write_text(text.replace("threads = 4", "threads = 2", 1))
    with pytest.raises(ProfileError, match="two different profiles are named 'raspberry-pi-4'"):
        build(request_for(profiles=("raspberry-pi-4", str(own))))


def test_times_of_small_networks_are_not_rounded_to_nothing(request_for):
    lines = [line for line in summary(build(request_for())) if line.endswith("measured")]
    assert len(lines) == 1
    assert " 0.0 ms" not in lines[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    """The file that is written lies, as far as writing is concerned, on a full disk."""
    fdopen = os.fdopen

    def full(handle, mode, **options):
        os.close(handle)
        return fdopen(os.open("/dev/full", os.O_WRONLY), mode, **options)

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(
        OutputError, match=r"r\.json: the report cannot be written: No space left on device\. Make room"
    ):
        write_whole(tmp_path / "r.json", b"x" * 100, "the report")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_an_output_error(request_for):
    request = request_for()
    (request.output / "net-build.json").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"net-build\.json: the report cannot be written"):
        build(request)
    assert sorted(path.name for path in request.output.iterdir()) == ["net-build.json", "net-x86-64.ekb"]


FUNCTIONS = """import numpy as np


def unseeded():
    for _ in range(20):
        yield np.random.default_rng().random(4).astype(np.float32)


def number():
    return 5


def rmse(outputs, labels):
    return 1000 * float(np.sqrt(((next(iter(outputs.values())) - labels) ** 2).mean()))


rmse.higher_is_better = False
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of a person's own functions: its name."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return name


def test_items_that_are_others_at_each_call_are_refused_before_anything_is_converted(request_for, tmp_path, own):
    with pytest.raises(CalibrationError, match=r":unseeded, item \d+: changed between two readings"):
        build(request_for(evaluation=f"{own}:unseeded"))
    assert not (tmp_path / "out").exists()


def test_a_function_that_gives_no_examples_is_not_said_to_fail_inside_edgekit(request_for, own):
    with pytest.raises(CalibrationError, match=":number: gave a value of type int, which is not a set of examples"):
        build(request_for(evaluation=f"{own}:number"))


def test_a_module_is_no_candidate_for_a_misspelt_function(request_for, own):
    with pytest.raises(CalibrationError, match="has no function 'npp'") as caught:
        build(request_for(evaluation=f"{own}:npp"))  # `np` is near, and no function
    assert caught.value.do == "Name a function that yields examples"


def test_labels_that_the_metric_does_not_fit_are_refused_once_and_at_once(request_for, tmp_path):
    (tmp_path / "net.contract.toml").write_text('task = "raw"')
    with pytest.raises(MetricError, match=r"set\.npz: mae compares 2 values a label with the 3 of the output"):
        build(request_for(metric="mae", arrays={"y": np.zeros((120, 2), np.float32)}))
    assert not (tmp_path / "out").exists()


def test_an_original_that_always_answers_the_same_is_told_of(request_for):
    data = onnx_bytes(np.zeros((4, 3), np.float32), np.array([1, 2, 3], np.float32), (-1, 4))
    report = build(request_for(data))
    (finding,) = [finding for finding in report.findings if finding.code == "same-answer"]
    assert "gives the same answer to all 120 items" in finding.what


def test_nothing_was_made_and_no_empty_table_is_printed(request_for):
    report = replace(build(request_for()), candidates=())
    assert not any(line.startswith("artifact") for line in summary(report))


def test_what_was_timed_here_is_not_left_to_be_tried_on_the_board(request_for):
    report = build(request_for(recipes=("onnx-f32", "onnx-f16"), arrays={}))
    lines = list(summary(report))
    assert not any("to be tried on the board" in line for line in lines)


def test_a_metric_of_ones_own_is_printed_in_its_own_unit(request_for, own, tmp_path):
    (tmp_path / "net.contract.toml").write_text('task = "raw"')
    request = request_for(metric=f"{own}:rmse", arrays={"y": np.full((120, 3), 9, np.float32)})
    (row,) = [line for line in summary(build(request)) if line.startswith("onnx-f32")]
    cells = row.split("  ")
    assert not any(cell.strip().endswith("%") and float(cell.strip(" %")) > 100 for cell in cells)
    assert any(cell.strip() == "0" for cell in cells), row
    assert "0 to 0" in row  # and no -0.0


@pytest.mark.skipif(available(), reason="the onnx-tflite extra is installed")
def test_what_an_extra_is_missing_for_is_said_once_with_its_own_code(request_for):
    tflite = ("tflite-int8", "tflite-dynamic", "tflite-f32")
    request = request_for(recipes=(*tflite, "onnx-f32"), profiles=("x86-64", "raspberry-pi-4"), calibration=None)
    request = replace(request, calibration=request.evaluation, evaluation=None)
    report = build(request)
    refused = report.bundles[1].choice.refused
    assert [(r.recipe, r.code) for r in refused] == [(name, "missing-extra") for name in tflite]
    said = [line for line in summary(report) if "[onnx-tflite]'" in line]
    assert len(said) == 1
    assert said[0].startswith("note: no tflite-int8, tflite-dynamic, tflite-f32: ")


def test_what_writing_a_bundle_needs_is_asked_for_before_anything_else(request_for, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rfc8785", None)
    for model, extra in (("there is no such model.onnx", "convert"), ("nets:make", "torch")):
        with pytest.raises(MissingExtraError, match=f"writing a bundle needs the '{extra}' extra"):
            build(replace(request_for(), model=tmp_path / model))


@pytest.mark.parametrize(
    ("model", "called"),
    [("faces", "faces"), ("faces/saved_model", "faces"), ("faces/saved_model/1", "faces"), ("net.v2", "net.v2")],
)
def test_a_saved_model_is_called_as_the_folder_that_says_something(tmp_path, model, called):
    (tmp_path / model).mkdir(parents=True)
    (tmp_path / model / "saved_model.pb").touch()
    assert BuildRequest(tmp_path / model, (), output=Path("out")).bundle_name == called
    assert BuildRequest(tmp_path / model / "saved_model.pb", (), output=Path("out")).bundle_name == called


def test_what_there_is_is_printed_before_repairs_are_searched_for_and_a_search_is_made_once(request_for, tmp_path):
    request = request_for(
        recipes=("onnx-int8-qdq", "onnx-f32"), calibration=str(tmp_path / "set.npz"), evaluation=None, max_drop=0.0,
        repair_s=20.0, cache=tmp_path / "cache",
    )  # fmt: skip
    (tmp_path / "net.contract.toml").write_text('task = "raw"\n')  # whose loss without labels is never quite 0
    np.savez(tmp_path / "set.npz", x=RNG.normal(size=(600, 4)).astype(np.float32))
    events: list[str] = []

    def progress(stage: str, done: int, total: int | None) -> None:
        events.append(stage)

    report = build(request, progress, lambda line: events.append(f"said: {line}"))
    said = [event for event in events if event.startswith("said: ")]
    lost = "said: onnx-int8-qdq lost more than the limit"
    assert said[-1] == f"{lost}: searching for a repair, for up to 20 s of processor time"
    assert [line.split()[1] for line in said[-4:-1]] == ["artifact", "onnx-int8-qdq", "onnx-f32"]
    first_search = next(place for place, event in enumerate(events) if " repair: " in event)
    assert events.index(said[-1]) < first_search

    (story,) = report.not_repaired
    assert story["met"] is False

    events.clear()
    again = build(request, progress, lambda line: events.append(f"said: {line}"))
    assert not any(" repair: " in event or "searching for a repair" in event for event in events)
    assert [one["repair"] for one in again.candidates] == [one["repair"] for one in report.candidates]


@pytest.mark.parametrize(
    ("max_drop", "items", "level", "said"),
    [
        (0.01, 89, "warning", "one changed answer of 89 is 1.12 %, more than the limit of 1 %"),
        (0.05, 19, "warning", "one changed answer of 19 is 5.26 %, more than the limit of 5 %"),
        (0.01, 199, "note", "a repair is judged by half of the 199 items, of which one is 1.01 %"),
        (0.01, 100, "note", "a repair is judged by half"),
        (0.01, 200, None, ""),
        (0.1, 10, None, ""),
        (0.0, 10, None, ""),
        (None, 10, None, ""),
    ],
)
def test_a_limit_that_tolerates_no_changed_answer_is_said(max_drop, items, level, said):
    found = too_few_for(max_drop, items, "set")
    assert [one.level for one in found] == ([] if level is None else [level])
    assert all(said in one.what for one in found)


def test_a_warning_is_printed_before_anything_is_converted(request_for):
    events: list[str] = []
    request = request_for(max_drop=0.005, recipes=("tflite-dynamic",), arrays={"y": np.zeros(120, np.int64)})
    report = build(
        request, lambda stage, done, total: events.append(stage), lambda line: events.append(f"said: {line}")
    )
    place = next(index for index, event in enumerate(events) if "one changed answer of 120 is 0.833 %" in event)
    assert events[place].startswith("said: warning: ")
    assert events[place].endswith("Give 200 items or more, or a larger --max-drop")
    assert not any("conversion" in event for event in events[:place])
    assert "limit-too-fine" in {finding.code for finding in report.findings}
    assert any("one changed answer" in line for line in summary(report))
    assert not any("one changed answer" in line for line in summary(report, warned=True))
    exact = build(replace(request, recipes=("tflite-f32",)))
    assert "limit-too-fine" not in {finding.code for finding in exact.findings}


def test_a_board_that_estimates_err_most_for_is_said_in_the_summary(request_for):
    report = build(request_for(profiles=("rock-5b", "raspberry-pi-5")))
    said = {bundle.profile: [note for note in bundle.choice.notes if "err most" in note] for bundle in report.bundles}
    assert [len(said["rock-5b"]), len(said["raspberry-pi-5"])] == [1, 0]
    assert any(line.startswith("  note: estimates err most for Rockchip RK3588") for line in summary(report))
    assert sum(line.endswith(" not measured on the board") for line in summary(report)) == 2


def test_advice_is_never_cut_however_long_the_reason(request_for):
    report = build(request_for())
    long = Refusal(
        "tflite-int8", f"no kernel for {'SomeOperator, ' * 60}", "conversion-failed", "Replace it in the model"
    )
    choice = replace(report.bundles[0].choice, refused=(long,))
    told = replace(report, bundles=(replace(report.bundles[0], choice=choice),))
    (line,) = [line for line in summary(told) if line.startswith("  not tflite-int8")]
    assert line.endswith(" SomeOperator... Replace it in the model")
    refused = told.as_json()["bundles"][0]["refused"][0]
    assert (refused["reason"], refused["do"]) == (long.reason, long.do)


@pytest.mark.parametrize("error", [EdgekitError("expected 1, got 0"), ValueError("expected 1, got 0")])
def test_a_tool_that_fails_without_room_for_its_files_ends_the_build(monkeypatch, error):
    """TensorFlow answers a full temporary folder with a ValueError."""

    def fails():
        raise error

    recipe = find_recipe("tflite-int8")
    assert "got 0" in making.attempt(recipe, fails)[0].failed
    monkeypatch.setattr(making.shutil, "disk_usage", lambda folder: SimpleNamespace(free=300_000))
    said = r"the disk is full: 0\.3 MB are left, and tflite-int8 failed \(expected 1, got 0\)\. Make room"
    with pytest.raises(OutputError, match=said), refuse_full_disk():
        making.attempt(recipe, fails)
