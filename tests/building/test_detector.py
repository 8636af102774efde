"""A detector without labels: boxes in pixels and sparse scores in one output, built for boards by both formats."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yolo
from conftest import run_edgekit
from PIL import Image

from edgekit.building.build_journey import build
from edgekit.building.build_report import summary
from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import few_boxes, open_subject
from edgekit.building.making import Maker, Workers
from edgekit.building.repairing import Search, with_repairs
from edgekit.report.html import html
from edgekit_converters.choose import ChoiceLimits
from edgekit_converters.data.describe_contract import describe
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.fidelity.result import Fidelity
from edgekit_converters.recipe.artifact import STATIC
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.progress import silent
from edgekit_converters.recipe.store import NO_STORE
from edgekit_converters.sources.load import load
from edgekit_runtime.contract.detect import candidates
from edgekit_runtime.system.strict_json import from_json

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def request_for(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yolo")
    model = yolo.save(folder / "net")
    (folder / "contract.toml").write_text(yolo.CONTRACT)
    np.savez(folder / "calibration.npz", x=yolo.pictures(32))
    np.savez(folder / "evaluation.npz", x=yolo.pictures(90, seed=1))

    def ask(**changes):
        return BuildRequest(
            model=model,
            profiles=("raspberry-pi-4",),
            output=folder / "out",
            calibration=str(folder / "calibration.npz"),
            evaluation=str(folder / "evaluation.npz"),
            contract=folder / "contract.toml",
            **({"max_drop": 0.1, "repair_s": 0.0, "cache": folder / "cache"} | changes),
        )

    return ask


@pytest.fixture(scope="module")
def report(request_for):
    return build(request_for(recipes=("tflite-int8", "onnx-int8-qdq", "tflite-f32")))


def fidelities(report):
    return {candidate["recipe"]: candidate["fidelity"] for candidate in report.candidates}


def test_scores_beside_boxes_in_pixels_are_not_rounded_under_their_scale(report):
    found = fidelities(report)
    assert set(found) == {"tflite-int8-mixed", "onnx-int8-qdq", "tflite-f32"}
    for recipe in ("tflite-int8-mixed", "onnx-int8-qdq"):
        assert found[recipe]["quantized_macs"] == 1.0
        assert found[recipe]["decisions"]["original"] > 50
        assert found[recipe]["agreement"] == found[recipe]["decisions"]["agreement"] >= 0.9
        assert found[recipe]["loss"] == 1 - found[recipe]["agreement"]
        assert not found[recipe]["warnings"]


def test_plain_int8_says_which_ranges_it_would_join(report):
    (bundle,) = report.bundles
    refusal = next(refusal for refusal in bundle.choice.refused if refusal.recipe == "tflite-int8")
    assert "under one scale: the smaller is left 1 of 256 levels" in refusal.reason
    assert "tflite-int8-mixed" in refusal.do


def test_no_artifact_that_keeps_the_limit_joins_the_head_under_one_scale(report):
    for candidate in report.candidates:
        causes = [cause for cause in candidate["causes"] if cause["code"] == "concat-of-unlike-ranges"]
        assert all(cause["evidence"]["levels"] > 4 for cause in causes)


def test_the_verdict_is_in_boxes(report):
    shown = html(json.loads(json.dumps(report.as_json())))
    kept = fidelities(report)[report.bundles[0].choice.chosen.recipe]["decisions"]
    assert f"keeps {kept['kept']} of the original&#39;s {kept['original']} boxes" in shown
    before, after = kept["scores"]
    assert f"{before:.2f} to {after:.2f}" in shown
    assert f"{before:.2f} to {after:.2f}" in str(report)


def test_the_same_boxes_in_other_rows_frighten_nobody(report):
    """A head as YOLOv10's sorts its rows by score: two that change places are no error of the boxes."""
    first, *others = report.candidates
    swapped = [output | {"spread_error": 1.369, "cosine": 0.1234} for output in first["fidelity"]["outputs"]]
    fidelity = first["fidelity"] | {"outputs": swapped, "cosine": 0.1234, "sqnr_db": -3.4}
    swapped = replace(report, candidates=(first | {"fidelity": fidelity}, *others))
    printed = "\n".join(summary(swapped))
    assert "agrees" in printed
    assert not any(word in printed for word in ("of spread", "136.9", "cosine", "0.1234"))
    table, folded = html(json.loads(json.dumps(swapped.as_json()))).split("All outputs and metrics", 1)
    assert not any(word in table for word in ("0.1234", "-3.4 dB"))
    assert "0.1234" in folded
    assert "in a different order count as an error" in folded


def test_a_float_detector_is_told_from_a_wrong_conversion_by_its_boxes(report):
    fidelity = from_json(Fidelity, fidelities(report)["tflite-f32"], "a fidelity", nulls=True)
    (output,) = fidelity.outputs
    swapped = replace(fidelity, outputs=(replace(output, cosine=0.5),))
    assert swapped.likeness == fidelity.decisions.agreement > 0.99
    assert replace(swapped, decisions=replace(fidelity.decisions, agreement=0.2)).likeness == 0.5


def test_few_levels_are_a_warning_whatever_the_limit(report):
    """What was found of an artifact that rounds its scores away, as another tool makes it."""
    warning = "in channels 4 to 6 of 'found' 2 of 256 levels are left; the original uses many between 0 and 0.6"
    first, *others = report.candidates
    warned = replace(report, candidates=(first | {"fidelity": first["fidelity"] | {"warnings": [warning]}}, *others))
    assert any(line.startswith("warning: ") and warning in line for line in summary(warned))
    assert "2 of 256 levels are left" in html(json.loads(json.dumps(warned.as_json())))


def test_a_set_without_boxes_says_that_decisions_cannot_be_compared(request_for):
    from edgekit_converters.data.describe_contract import describe as describe_of_describe
    from edgekit_converters.sources.load import load

    request = request_for()
    contract = describe_of_describe(load(request.model), request.contract)
    nothing = Reference(({"found": np.zeros((400, 7), np.float32)},) * 3, None, None, ("",) * 3)
    (finding,) = few_boxes(contract, nothing, "photos")
    assert finding.what == (
        "photos: the original finds no box over its threshold in 3 items, so that its outputs are compared instead"
    )


@pytest.mark.slow
def test_a_detector_with_few_boxes_is_repaired_by_all_of_them_and_judged_by_cross_fitting(request_for, tmp_path):
    np.savez(tmp_path / "few.npz", x=yolo.pictures(40, seed=1))
    subject = open_subject(replace(request_for(), evaluation=str(tmp_path / "few.npz")), NO_STORE, silent)
    maker = Maker(subject, subject.workspace(silent), Workers(1, silent))
    layers = [layer for layer in maker.workspace.graph("onnx").layers if layer.macs]
    harmed = min(layers, key=lambda layer: layer.macs).name  # of the scores
    low, high = maker.workspace.statistics("onnx").ranges("minmax")[harmed]
    plan = replace(STATIC, fixed_ranges=((harmed, 0.2 * low, 0.2 * high),))
    broken = maker.make(find_recipe("onnx-int8-qdq"), plan)
    assert broken.fidelity.loss > 0.05
    found = with_repairs(maker, [broken], Search(ChoiceLimits(max_drop=0.05), 60.0, 1))
    after = found[-1]
    boxes = len(subject.folds), after.fidelity.items, after.fidelity.decisions.original
    assert boxes == (after.fidelity.folds, 40, broken.fidelity.decisions.original) == (5, 40, boxes[2])
    assert 10 < boxes[2] < 50
    assert after.repair["met"], after.repair["why"]
    assert after.fidelity.loss == after.repair["judged_drop"] <= 0.05


def test_labels_of_ultralytics_and_of_coco_are_judged_by_map(request_for, tmp_path):
    """The truth is what the original finds, so that it finds all of it."""
    request = request_for()
    source = load(request.model)
    contract = describe(source, request.contract)
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    images, annotations = [], []
    for number, pixels in enumerate(yolo.pictures(30, seed=2)):
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number:02}.png")
        images.append({"id": number, "file_name": f"{number:02}.png", "width": 80, "height": 80})
        (answer,) = source.predict([pixels[None].astype(np.float32) / 255])
        found = candidates({"found": answer[0]}, contract, 0.25)
        rows = []
        for (x1, y1, x2, y2), kind in zip(found.corners.clip(0, 80), found.classes, strict=True):
            rows.append(f"{kind} {(x1 + x2) / 160} {(y1 + y2) / 160} {(x2 - x1) / 80} {(y2 - y1) / 80}\n")
            box = [float(x1), float(y1), float(x2 - x1), float(y2 - y1)]
            annotations.append({"image_id": number, "category_id": int(kind), "bbox": box})
        (tmp_path / "labels" / f"{number:02}.txt").write_text("".join(rows))
    names = [{"id": number, "name": name} for number, name in enumerate(contract.labels)]
    (tmp_path / "data.yaml").write_text("val: images\nnames: [red, green, blue]\n")
    (tmp_path / "coco.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": names}))
    for name in ("data.yaml", "coco.json"):
        made = build(replace(request, recipes=("onnx-f32",), evaluation=str(tmp_path / name), calibration=None))
        found = made.candidates[0]["fidelity"]
        assert found["metric"] == "map"
        assert found["original"] > 0.9
        assert found["artifact"] > 0.9


def test_a_first_look_shows_boxes_of_both(request_for, tmp_path):
    request = request_for()
    (tmp_path / "net.contract.toml").write_text(yolo.CONTRACT)
    shutil.copytree(request.model, tmp_path / "net")
    np.savez(tmp_path / "like.npz", x=yolo.pictures(90))
    ran = run_edgekit("try", "net", "--like", "like.npz", "--profile", "raspberry-pi-4", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    said = [one["original"] for one in ran.json["answers"]]
    assert "nothing" in said
    assert any(re.fullmatch(r"[\d.]+ % (red|green|blue) at -?\d+,-?\d+.*", one) for one in said)
    assert sum(one["same"] for one in ran.json["answers"]) >= 8
