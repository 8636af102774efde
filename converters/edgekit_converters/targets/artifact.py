"""A recipe is data; an artifact is the bytes it made, and carries its recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgekit_converters.targets.plan import Plan
from edgekit_runtime.tensors import TensorSpec

__all__ = ["Artifact", "Precision", "Recipe"]

Precision = Literal["int8", "int16x8", "dynamic", "float16", "float32"]


@dataclass(frozen=True)
class Recipe:
    """name: `<format>-<precision>[-<form>]`, e.g. tflite-int8, tflite-dynamic, onnx-int8-qdq.

    precision: `int8` quantizes weights and activations and needs calibration data, `int16x8` as well, with activations
    of 16 bits; `dynamic` quantizes weights only. mixed: some layers stay in float. symmetric: the zero-point of every
    activation is 0 and biases stay in float, as TensorRT wants it. finished: nothing is made, the source's file is taken as
    it is, in whatever precision it has. per_tensor: dense layers have one scale for the whole kernel, as runtimes want it
    that know no other. default: tried when no recipe is named.
    """

    name: str
    format: Literal["tflite", "onnx"]
    precision: Precision
    mixed: bool = False
    symmetric: bool = False
    default: bool = True
    finished: bool = False
    per_tensor: bool = False

    @property
    def needs_calibration(self) -> bool:
        return self.precision in ("int8", "int16x8") and not self.finished


@dataclass(frozen=True)
class Artifact:
    """One converted model.

    inputs, outputs: in the engine's order, `name` from the contract, `tensor` from the file.
    quantized_macs, quantized_weights: the fraction (0..1) of multiply-accumulates and of weight elements that run in
    8 bits. tools: distribution -> version of everything that had a hand in it. samples: calibration samples used. plan:
    how it departs from its recipe.
    """

    recipe: Recipe
    data: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    quantized_macs: float
    quantized_weights: float
    tools: dict[str, str]
    samples: int = 0
    plan: Plan = field(default_factory=Plan)
