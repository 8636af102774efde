"""A detector, from a bundle to boxes in the caller's own picture, whatever the caller has."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import spots

from edgekit_runtime import Frame, open_bundle
from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.system.errors import BundleError, ContractError
from edgekit_runtime.system.strict_json import canonical_bytes


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return spots.bundle(tmp_path_factory.mktemp("spots"))


@pytest.fixture(scope="module")
def model(path):
    with open_bundle(path) as opened:
        yield opened


def corners(answer):
    return [(box.left, box.top, box.right, box.bottom) for box in answer.boxes]


# 320 x 160 becomes 16 x 8 with four rows of grey above and below: one of the network's pixels is 20 of the caller's.
WIDE = spots.spot(320, 160, left=80, top=0, side=80)
FOUND = [(40.0, 0.0, 200.0, 120.0)]


def encoded(kind, **options):
    Image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    Image.fromarray(WIDE).save(file, kind, **options)
    return file.getvalue()


FORMS = {
    "array": lambda: WIDE,
    "PNG": lambda: encoded("PNG"),
    "JPEG": lambda: encoded("JPEG", quality=95),
    "picture": lambda: pytest.importorskip("PIL.Image").fromarray(WIDE),
    "bgr": lambda: Frame(np.stack([WIDE] * 3, axis=-1), "bgr"),
    "nv12": lambda: Frame(
        np.concatenate([WIDE.reshape(-1), np.full(320 * 80, 128, np.uint8)]), "nv12", width=320, height=160,
        full_range=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_boxes_come_back_in_the_callers_pixels(model, form):
    pytest.importorskip("PIL")
    answer = model.predict(FORMS[form]())
    (box,) = answer.boxes
    assert (box.label, box.index) == ("spot", 0)
    assert box.score > 0.9  # the square loses a little at its edges when it is scaled down
    np.testing.assert_allclose(corners(answer), FOUND, atol=2)  # boxes are quantized too


def test_an_answer_out_of_the_cache_has_its_boxes_in_the_callers_pixels(model):
    pytest.importorskip("PIL")
    data = encoded("PNG")
    first, second = model.predict(data), model.predict(data)
    assert second.source == "cache"
    assert corners(second) == corners(first)


def test_an_exact_picture_needs_no_undoing(model):
    answer = model.predict(spots.spot(16, 16, 4, 4, 4)[:, :, None])
    np.testing.assert_allclose(corners(answer), [(2, 2, 10, 10)], atol=0.2)


def test_every_way_to_ask_knows_where_the_picture_lies(model):
    pytest.importorskip("PIL")
    other = spots.spot(320, 160, left=160, top=80, side=80)
    np.testing.assert_allclose(corners(model.submit(other).result()), [(120, 40, 280, 160)], atol=2)


def test_nothing_bright_is_nothing_found(model):
    assert model.predict(np.zeros((16, 16, 1), np.uint8)).boxes == []


def test_a_detector_has_neither_classes_nor_a_vector(model):
    answer = model.predict(np.zeros((16, 16, 1), np.uint8))
    with pytest.raises(ContractError, match="task is detection"):
        answer.top(1)
    with pytest.raises(ContractError, match="task is detection"):
        _ = answer.vector


def test_what_a_bundle_says_of_boxes_is_read_back_as_it_was_written(path):
    assert read_bundle(path).manifest.contract == spots.CONTRACT


def test_a_bundle_whose_boxes_make_no_sense_is_refused(path):
    manifest = json.loads(json.dumps(read_bundle(path).manifest.as_json()))
    manifest["contract"]["detection"]["boxes"] = "elsewhere"
    with pytest.raises(BundleError, match="detection boxes: the model has no output 'elsewhere'"):
        parse_manifest(canonical_bytes(manifest), "spots.ekb")
