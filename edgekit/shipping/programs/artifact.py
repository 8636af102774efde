"""The artifact that is exported, and its golden examples.

Rules:
- with float sides, the quantized inputs and outputs of the TFLite file that is written are float32;
- `golden.npz` has `N.in.NAME`, an item of the contract without a batch axis (pixels are uint8), and `N.out.NAME`, the
  workstation's answer as float32, dequantized.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.shipping.programs.template import one_line
from edgekit_runtime.bundle.manifest import ArtifactEntry, GoldenExample, GoldenOutputs
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract, ImageSpec, TensorSpec
from edgekit_runtime.modelfile.ncnn_structure import read_network
from edgekit_runtime.system.errors import EdgekitError


class TargetError(EdgekitError):
    """The target cannot express the bundle's contract or artifacts."""

    code = "export-target"


FLOAT_STEP = 1e-4
"""A float output's step, as a share of the golden's largest magnitude: see `Tolerance`."""
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Program:
    """What a target adds to the folder, or puts in the place of a file that every folder has.

    files: name -> content.
    packages: what must be installed.
    start: command lines that run it; empty if there is no program."""

    files: Mapping[str, bytes]
    packages: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportedArtifact:
    """A bundle and one of its artifacts.

    entry: as the bundle has it.
    float_sides: whether the file that is written gets float32 sides."""

    bundle: Bundle
    entry: ArtifactEntry
    float_sides: bool = False

    @property
    def contract(self) -> Contract:
        return self.bundle.manifest.contract

    @property
    def title(self) -> str:
        """For a comment of any language."""
        manifest = self.bundle.manifest
        return one_line(f"{manifest.name} {manifest.version}, {self.entry.recipe}")

    @property
    def picture(self) -> ImageSpec | None:
        """The picture's form if the model's one input is an image."""
        found = pictures(self.contract.inputs)
        return found[0] if len(self.contract.inputs) == 1 and found else None

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the file that is written has them."""
        return tuple(map(self._side, self.entry.inputs))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As the file that is written has them."""
        return tuple(map(self._side, self.entry.outputs))

    def _side(self, tensor: TensorSpec) -> TensorSpec:
        cast = self.float_sides and tensor.quantization is not None
        return replace(tensor, dtype="float32", quantization=None) if cast else tensor

    def model_files(self) -> dict[str, bytes]:
        """Name -> the model's file, or the two that ncnn reads."""
        if self.entry.format != "ncnn":
            return {f"model.{self.entry.format}": self.model()}
        network = read_network(self.model())
        return {"model.param": network.param().encode(), "model.bin": network.weights}

    def model(self, edit: Callable[[Any], None] | None = None) -> bytes:
        """The file that is written.

        edit: changes the TFLite model further, once its sides are cast."""
        data = self.bundle.blob(self.entry.blob)
        if edit is None and (self.inputs, self.outputs) == (self.entry.inputs, self.entry.outputs):
            return data
        from edgekit_converters.formats import tflite_edit, tflite_sides

        model = tflite_edit.read(data)
        tflite_sides.cast_sides(model)
        if edit is not None:
            edit(model)
        return tflite_edit.write(model)

    @cached_property
    def examples(self) -> tuple[tuple[GoldenExample, GoldenOutputs], ...]:
        """The golden examples that this artifact answered."""
        return tuple(
            (golden, answer) for golden in self.bundle.manifest.golden for answer in golden.answers
            if answer.recipe == self.entry.recipe
        )  # fmt: skip

    @property
    def maker(self) -> str:
        """The engine that gave the golden answers."""
        if not self.examples:
            return "the workstation's engine"
        return one_line(f"{self.examples[0][1].engine} {self.examples[0][1].engine_version}")

    @property
    def steps(self) -> int:
        """How far an answer of the same engine may lie from the golden one."""
        return max((answer.tolerance.steps for _, answer in self.examples), default=0)

    @property
    def cosine(self) -> float:
        """The least similarity of an answer of another engine with the golden one."""
        return min((answer.tolerance.cosine for _, answer in self.examples), default=0.0)

    def golden(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Inputs and dequantized answers of each example, by name."""
        for golden, answer in self.examples:
            frames, answers = () if golden.steps is None else (golden.steps,), {}
            for tensor in self.entry.outputs:
                if tensor.name in answer.outputs:
                    raw = np.frombuffer(self.bundle.blob(answer.outputs[tensor.name]), tensor.dtype)
                    raw = raw.reshape((*frames, *tensor.shape[1:]))
                    answers[tensor.name] = dequantize(raw, tensor, np.dtype(np.float32))
            yield self.bundle.golden_items(golden), answers

    def golden_npz(self) -> bytes:
        arrays: Arrays = {}
        for number, (items, answers) in enumerate(self.golden()):
            arrays |= {f"{number}.in.{name}": item for name, item in items.items()}
            arrays |= {f"{number}.out.{name}": answer for name, answer in answers.items()}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()
