"""The leaky memory of tests/models as artifacts, contracts and bundles: what tests of stateful models open.

It keeps 0.9 of what it held, adds what comes in, and answers from that: y = tanh(0.9 h + x W) V.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edgekit.packaging.assemble import BundleContent, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.contract.spec import CarriedState, Contract, InputContract, OutputContract
from edgekit_runtime.engines.registry import available, load_engine

MODELS = Path(__file__).parents[1] / "models"
X, Y = InputContract("x", (3,), "float32"), OutputContract("y", (2,), "float32")
CARRIED = Contract(
    "raw",
    (X, InputContract("h_in", (4,), "float32")),
    (Y, OutputContract("h_out", (4,), "float32")),
    state="explicit",
    carried=(CarriedState("h_in", "h_out"),),
)
INSIDE = Contract("raw", (X,), (Y,), state="internal")
KINDS = {
    "inside": ("memory_inside_f32.tflite", Recipe("tflite-f32", "tflite", "float32"), ["x"], ["y"], INSIDE),
    "int8": (
        "memory_carried_int8.tflite",
        Recipe("tflite-int8", "tflite", "int8"),
        ["h_in", "x"],
        ["h_out", "y"],
        CARRIED,
    ),
    "onnx": ("memory_carried_f32.onnx", Recipe("onnx-f32", "onnx", "float32"), ["x", "h_in"], ["y", "h_out"], CARRIED),
}
HERE = [kind for kind in KINDS if KINDS[kind][1].format == "tflite" or "onnxruntime" in available()]
"""The kinds that this environment has an engine for."""


def frames(count: int, seed: int = 0) -> np.ndarray:
    """float32 [count, 3]"""
    return np.random.default_rng(seed).normal(0, 0.7, (count, 3)).astype(np.float32)


def weights() -> tuple[np.ndarray, np.ndarray]:
    """As tests/models/make.py seeds them."""
    rng = np.random.default_rng(3)
    return rng.normal(0, 0.5, (3, 4)).astype(np.float32), rng.normal(0, 0.5, (4, 2)).astype(np.float32)


def worked_out(xs: np.ndarray, begin: float = 0.0) -> np.ndarray:
    """What the memory answers to the frames, by NumPy alone: float32 [count, 2]."""
    into, out = weights()
    state, answers = np.full(4, begin, np.float32), []
    for x in xs:
        state = np.tanh(np.float32(0.9) * state + x @ into)
        answers.append(state @ out)
    return np.array(answers)


def begins(kind: str) -> float:
    """What the kind's memory holds at first."""
    return 0.25 if kind == "inside" else 0.0


def artifact(kind: str) -> Artifact:
    file, recipe, inputs, outputs, _ = KINDS[kind]
    data = (MODELS / file).read_bytes()
    with load_engine(recipe.format, data) as engine:
        took = tuple(replace(t, name=name) for t, name in zip(engine.inputs, inputs, strict=True))
        gave = tuple(replace(t, name=name) for t, name in zip(engine.outputs, outputs, strict=True))
    return Artifact(recipe, data, took, gave, 1.0, 1.0, {})


def content(kind: str, **changes) -> BundleContent:
    made = BundleContent(
        name="memory",
        version="1",
        model_id="0" * 64,
        contract=KINDS[kind][4],
        target=Target("x86-64", "x86_64", threads=1),
        artifact=artifact(kind),
        golden=[{"x": frames(6, seed)} for seed in (1, 2)],
    )
    return replace(made, **changes)


def bundle(folder: Path, kind: str, **changes) -> Path:
    """Write a bundle of the memory and return its path."""
    path = folder / f"memory-{kind}.ekb"
    draft, manifest = assemble(content(kind, **changes))
    write_bundle(path, draft, manifest)
    return path
