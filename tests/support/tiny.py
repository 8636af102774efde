"""The tiny models of tests/models as artifacts, contracts and bundles: what the runtime's tests open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edgekit.packaging.assemble import BundleContent, assemble
from edgekit.packaging.writer import SigningKey, write_bundle
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract
from edgekit_runtime.engines.registry import ENGINES, load_engine

MODELS = Path(__file__).parents[1] / "models"
LABELS = ("red", "green", "blue", "dark")
IMAGE = ImageSpec(height=8, width=8, mean=(0.0, 0.0, 0.0), std=(255.0, 255.0, 255.0))
CONTRACT = Contract(
    task="classification",
    inputs=(InputContract("image", (8, 8, 3), "float32", IMAGE),),
    outputs=(OutputContract("probs", (4,), "float32"),),
    labels=LABELS,
    scores="probabilities",
)
RECIPES = {
    "tflite-int8": ("tiny_int8.tflite", Recipe("tflite-int8", "tflite", "int8")),
    "tflite-f32": ("tiny_f32.tflite", Recipe("tflite-f32", "tflite", "float32")),
    "onnx-f32": ("tiny_f32.onnx", Recipe("onnx-f32", "onnx", "float32")),
    "ncnn-f32": ("tiny_f32.ncnn", Recipe("ncnn-f32", "ncnn", "float32")),
    "tflite-int8, 4 at once": ("tiny_int8_b4.tflite", Recipe("tflite-int8", "tflite", "int8")),
    "tflite-f32, any number": ("tiny_free_f32.tflite", Recipe("tflite-f32", "tflite", "float32")),
}
RECIPE_OF_FORMAT = {"tflite": "tflite-int8", "onnx": "onnx-f32", "ncnn": "ncnn-f32"}
RECIPE_OF_ENGINE = {
    name: RECIPE_OF_FORMAT[kind.formats[0]] for name, kind in ENGINES.items() if kind.formats[0] in RECIPE_OF_FORMAT
}


def colour(red: int, green: int, blue: int) -> np.ndarray:
    """A uint8 [8, 8, 3] picture of one colour."""
    return np.full((8, 8, 3), (red, green, blue), np.uint8)


RED, GREEN, BLUE, DARK = colour(230, 20, 20), colour(20, 230, 20), colour(20, 20, 230), colour(5, 5, 5)


def model_bytes(recipe: str) -> bytes:
    return (MODELS / RECIPES[recipe][0]).read_bytes()


def artifact(recipe: str, engine: str | None = None) -> Artifact:
    data, kind = model_bytes(recipe), RECIPES[recipe][1]
    with load_engine(kind.format, data, engine=engine) as loaded:
        layout = "NHWC" if kind.format == "tflite" else "NCHW"
        (image,), (probs,) = loaded.inputs, loaded.outputs
        inputs, outputs = (replace(image, name="image", layout=layout),), (replace(probs, name="probs"),)
    return Artifact(kind, data, inputs, outputs, 1.0, 1.0, {})


def content(recipe: str = "tflite-int8", engine: str | None = None, **changes) -> BundleContent:
    made = BundleContent(
        name="tiny",
        version="1",
        model_id="0" * 64,
        contract=CONTRACT,
        target=Target("x86-64", "x86_64", threads=1),
        artifact=artifact(recipe, engine),
        golden=[{"image": picture} for picture in (RED, BLUE)],
        engine=engine,
    )
    return replace(made, **changes)


def bundle(folder: Path, recipe: str = "tflite-int8", *, key: SigningKey | None = None, **changes) -> Path:
    """Write a bundle of the tiny classifier and return its path."""
    path = folder / f"tiny-{recipe}.ekb"
    draft, manifest = assemble(content(recipe, **changes))
    write_bundle(path, draft, manifest, [key] if key else [])
    return path


def bundle_for(engine: str, folder: Path) -> Path:
    assert engine in ENGINES
    return bundle(folder, RECIPE_OF_ENGINE[engine], engine=engine)
