"""Items that an artifact answers otherwise than the original."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from edgekit.building.making import MOST, Watcher, shown
from edgekit_converters.data.dataset import RandomDataset
from edgekit_converters.fidelity.reference import Reference
from edgekit_runtime.contract.adapt import top
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract

CONTRACT = Contract(
    "classification",
    (InputContract("image", (200, 100, 3), "float32", ImageSpec(200, 100, (0.0,) * 3, (255.0,) * 3)),),
    (OutputContract("probs", (3,), "float32"),),
    labels=("ant", "bee", "cat"),
)


def answers(*scores):
    return tuple({"probs": np.array(row, np.float32)} for row in scores)


def reference(*scores, labels=None):
    best = tuple(int(np.argmax(row)) for row in scores)
    return Reference(answers(*scores), labels, best, tuple(map(str, range(len(scores)))))


def test_only_items_with_another_best_class_are_kept_the_surest_first():
    watcher = Watcher(reference([0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.9, 0.05, 0.05], labels=(0, 1, 2)), CONTRACT)
    for index, answer in enumerate(answers([0.4, 0.6, 0], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8])):
        watcher(index, answer)
    assert [(item["index"], item["original"]["label"], item["artifact"]["label"]) for item in watcher.differing] == [
        (2, "ant", "cat"),
        (0, "ant", "bee"),
    ]
    assert [item["truth"] for item in watcher.differing] == ["cat", "ant"]


def test_an_answer_that_is_not_finite_differs_and_can_be_said_in_json():
    watcher = Watcher(reference([0.1, 0.9, 0.0]), CONTRACT)
    watcher(0, {"probs": np.full(3, np.nan, np.float32)})
    assert watcher.differing[0]["artifact"]["score"] == 0.0


def test_logits_are_shown_as_the_probabilities_that_an_application_gets():
    contract = replace(CONTRACT, scores="logits")
    watcher = Watcher(reference([2.286, 0.0, 0.0]), contract)
    (answer,) = answers([0.0, 0.0, 1.5])
    watcher(0, answer)
    (item,) = watcher.differing
    expected = top({"probs": answer["probs"]}, contract, 1)[0]
    assert (item["artifact"]["label"], item["artifact"]["score"]) == ("cat", expected.score)
    assert item["original"]["score"] == pytest.approx(np.exp(2.286) / (np.exp(2.286) + 2), abs=1e-6)


def test_other_tasks_have_none():
    watcher = Watcher(Reference(answers([1, 2, 3]), None, None, ("0",)), CONTRACT)
    watcher(0, answers([3, 2, 1])[0])
    assert watcher.differing == []


def test_no_more_are_kept_than_a_page_can_show():
    watcher = Watcher(reference(*[[0.9, 0.1, 0.0]] * 50), CONTRACT)
    for index in range(50):
        watcher(index, answers([0, 1, 0])[0])
    assert len(watcher.differing) == MOST


def test_each_is_shown_with_a_small_picture_in_its_order():
    watcher = Watcher(reference([0.5, 0.4, 0.1], [0.9, 0.1, 0.0]), CONTRACT)
    for index in range(2):
        watcher(index, answers([0, 0, 1])[0])
    told = shown(watcher.differing, RandomDataset(CONTRACT, 2), CONTRACT)
    assert [entry["item"] for entry in told] == ["random noise, item 1", "random noise, item 0"]
    head, data = told[0]["image"].split(",")
    assert head == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (48, 96)
