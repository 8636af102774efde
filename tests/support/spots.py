"""A bundle of the tiny detector of tests/models: bright spots, each a box of half the picture's width and height."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edgekit.packaging.assemble import BundleContent, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.contract.spec import Contract, DetectionSpec, ImageSpec, InputContract, OutputContract
from edgekit_runtime.engines.registry import load_engine

MODEL = Path(__file__).parents[1] / "models" / "spots_int8.tflite"
IMAGE = ImageSpec(16, 16, mean=(0.0,), std=(255.0,), color="gray", resize="letterbox")
CONTRACT = Contract(
    task="detection",
    inputs=(InputContract("image", (16, 16, 1), "float32", IMAGE),),
    outputs=(OutputContract("found", (16, 5), "float32"),),
    labels=("spot",),
    detection=DetectionSpec(
        "found", "box scores", "cxcywh", span=(1.0, 1.0), score_threshold=0.7, iou_threshold=0.2
    ),
)  # fmt: skip


def spot(width: int, height: int, left: int, top: int, side: int) -> np.ndarray:
    """A uint8 [height, width] picture, black but for a white square."""
    picture = np.zeros((height, width), np.uint8)
    picture[top : top + side, left : left + side] = 255
    return picture


def bundle(folder: Path) -> Path:
    data = MODEL.read_bytes()
    with load_engine("tflite", data) as loaded:
        inputs = (replace(loaded.inputs[0], name="image", layout="NHWC"),)
        outputs = (replace(loaded.outputs[0], name="found"),)
    made = BundleContent(
        name="spots",
        version="1",
        model_id="1" * 64,
        contract=CONTRACT,
        target=Target("x86-64", "x86_64", threads=1),
        artifact=Artifact(Recipe("tflite-int8", "tflite", "int8"), data, inputs, outputs, 1.0, 1.0, {}),
        golden=[{"image": spot(16, 16, 4, 4, 4)[:, :, None]}],
        engine=None,
    )
    path = folder / "spots.ekb"
    write_bundle(path, *assemble(made), [])
    return path
