"""A .tflite file that is what a board shall run already: quantized, or with its state inside, or both.

    source = load(Path("wake.tflite"), LoadOptions(as_is=True))

Rules: nothing is converted, and nothing can be compared with what it was made from; inputs and outputs in 8 bits are called
by the real numbers that they stand for (float32), which is what `predict` takes and gives; a state inside is forgotten by
`reset` and by nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError, SourceError
from edgekit_converters.sources import state, tflite_file
from edgekit_converters.sources.model import Description, Note, State, model_sha256
from edgekit_converters.sources.options import LoadOptions
from edgekit_converters.sources.quiet import quiet
from edgekit_converters.sources.shapes import check_inputs, check_named, image_layout, measured_outputs, unique_names
from edgekit_runtime.contract.adapt import quantize
from edgekit_runtime.contract.finish import dequantize
from edgekit_runtime.engines import Engine, load_engine
from edgekit_runtime.errors import EngineError
from edgekit_runtime.modelfile.check import delegated
from edgekit_runtime.tensors import TensorSpec

__all__ = ["FinishedTflite", "load"]


@dataclass(frozen=True, eq=False, kw_only=True)
class FinishedTflite(Description):
    """See `model.FinishedSource`. tensors: inputs and outputs as the file has them, called as the contract does."""

    data: bytes = field(repr=False)
    engine: Engine = field(repr=False)
    tensors: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]

    def finished(self) -> bytes:
        """The file's bytes."""
        return self.data

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Real numbers in and out, one item after the other: where the state is inside, each follows the one before."""
        return self.answered(inputs, self._run, at_once=False)

    def reset(self) -> None:
        if self.state == "internal":
            self.engine.reset()

    def onnx(self) -> bytes:
        """Raises ConversionError: a finished file is taken as it is."""
        raise ConversionError(
            "a finished .tflite is packed as it is, and is made into nothing else", where=self.path.name
        )

    def _run(self, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        took, gave = self.tensors
        fed = [_stored(array, spec) for array, spec in zip(arrays, took, strict=True)]
        raw = self.engine.run(fed)
        return [
            dequantize(value, tensor, np.dtype(spec.dtype))
            for value, tensor, spec in zip(raw, gave, self.outputs, strict=True)
        ]


def load(path: Path, options: LoadOptions) -> FinishedTflite:
    """Raises SourceError with the reason for whatever is refused."""
    where = str(path)
    file = tflite_file.read(path, as_is=True)
    check_named(options.shapes, list(file.names.values()), where=where)
    if options.shapes:
        raise SourceError("a file that is packed as it is keeps its shapes", where=where, do="Leave --shape out")
    try:
        with quiet():
            engine = load_engine("tflite", file.data)
    except EngineError as error:
        again = "Convert or download it again"
        do = "Set EDGEKIT_DELEGATE to the accelerator's library" if delegated(file.operators) else again
        raise SourceError(error.what, where=where, do=do) from error
    took = _named(file, engine.inputs, where, "input")
    gave = _named(file, engine.outputs, where, "output")
    inputs = tuple(replace(_real(spec), layout=image_layout(spec.shape, prefer="NHWC")) for spec in took)
    check_inputs(inputs, where=where)

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            return engine.run([_stored(array, spec) for array, spec in zip(arrays, took, strict=True)])
        except EngineError as error:
            raise SourceError(f"the model does not run: {error.what}", where=where, do="Convert it again") from error

    measured = measured_outputs([(spec.name, spec.tensor) for spec in gave], run, inputs, where=where)
    outputs = tuple(replace(_real(spec), shape=found.shape) for spec, found in zip(gave, measured, strict=True))
    engine.reset()
    pairs = () if file.stateful else state.pairs(inputs, outputs)
    kept: State = "internal" if file.stateful else "explicit" if pairs else "none"
    return FinishedTflite(
        path=path,
        format="tflite",
        sha256=model_sha256(path, options),
        inputs=inputs,
        outputs=outputs,
        state=kept,
        state_pairs=pairs,
        notes=_notes(file.stateful),
        data=file.data,
        engine=engine,
        tensors=(tuple(replace(spec, layout=real.layout) for spec, real in zip(took, inputs, strict=True)), gave),
    )


def _named(file: tflite_file.TfliteFile, specs: Sequence[TensorSpec], where: str, kind: str) -> tuple[TensorSpec, ...]:
    names = unique_names([file.names.get(spec.tensor, spec.tensor) for spec in specs], where=where, kind=kind)
    return tuple(replace(spec, name=name, shape=(1, *spec.shape[1:])) for name, spec in zip(names, specs, strict=True))


def _real(spec: TensorSpec) -> TensorSpec:
    """What the tensor stands for: real numbers where it is quantized."""
    return spec if spec.quantization is None else replace(spec, dtype="float32", quantization=None)


def _stored(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    if spec.quantization is None:
        return np.ascontiguousarray(array, spec.dtype)
    return quantize(array, spec.quantization, np.dtype(spec.dtype))


def _notes(stateful: Sequence[str]) -> tuple[Note, ...]:
    what = "the file is packed as it is: nothing was converted, and what it lost when it was made is not measured"
    found = [Note("as-is", what, "To measure it, pass the float model that it was made from")]
    if stateful:
        kept = f"the model keeps a state inside ({', '.join(stateful)}): it is asked through model.session()"
        found.append(Note("internal-state", kept))
    return tuple(found)
