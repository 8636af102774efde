"""A PyTorch source as float .tflite, through litert-torch.
Neither TensorFlow nor ONNX lies in between.

Rules:
- pictures become NHWC, as TFLite's kernels want them; every other input and every output keeps the source's axes;
- the result is run against the original on random data, and what differs is an error;
- inputs and outputs are called by their place: `args_0`, `output_0`.

    network(source).data
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError, one_line
from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.sources import onnx_graph
from edgekit_converters.sources.quiet import quiet
from edgekit_converters.sources.torch import TorchSource, flatten_outputs
from edgekit_converters.targets.artifact import transposed_pixels
from edgekit_runtime.engines.registry import load_engine

TOOLS = ("litert-torch", "torch")
_INSTEAD = "Choose onnx-int8-qdq or onnx-f32, or replace the operator that it names"


@dataclass(frozen=True)
class LitertNetwork:
    """data: float .tflite.
    inputs, outputs: its name of each, in the source's order.
    transposed: inputs in NHWC."""

    data: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    transposed: frozenset[str]


def available() -> bool:
    """True when the `torch-tflite` extra is installed."""
    return importlib.util.find_spec("litert_torch") is not None


def network(source: TorchSource, batch: int = 1) -> LitertNetwork:
    """Convert with litert-torch.
    Raises ConversionError where it cannot express the model, or its answers differ from the original's."""
    where = source.path.name
    if batch != 1 and not source.free_batch:
        raise ConversionError(
            f"the model has a fixed batch of 1, and cannot be given one of {batch}",
            where=where,
            do="Export it with a free batch axis",
        )
    transposed = frozenset(spec.name for spec in source.inputs if spec.layout == "NCHW")
    arrays = onnx_graph.proof_inputs(source, max(onnx_graph.PROOFS // batch, 1) * batch)
    fed = [
        np.ascontiguousarray(transposed_pixels(array, spec)) if spec.name in transposed else array
        for array, spec in zip(arrays, source.inputs, strict=True)
    ]
    examples = [array[:batch] for array in fed]
    data = _convert(source, [spec.name in transposed for spec in source.inputs], examples)
    found = LitertNetwork(
        data,
        tuple(f"args_{place}" for place in range(len(source.inputs))),
        tuple(f"output_{place}" for place in range(len(source.outputs))),
        transposed,
    )
    with load_engine("tflite", data) as engine:
        # the engine has them in the file's own order, as `serving_default_args_0:0` or as the signature says
        places = [_place(spec.tensor) for spec in engine.inputs]
        parts = [
            engine.run([fed[place][at : at + batch] for place in places]) for at in range(0, len(arrays[0]), batch)
        ]
        answers = map(np.concatenate, zip(*parts, strict=True))
        got = dict(zip((spec.tensor for spec in engine.outputs), answers, strict=True))
    for wanted, spec in zip(source.predict(arrays), source.outputs, strict=True):
        if all(onnx_graph.agreement(values, wanted) for values in got.values()):
            raise ConversionError(
                f"litert-torch's network gives other answers than the original for the output '{spec.name}'",
                where=where,
                do=_INSTEAD,
            )
    return found


def _convert(source: TorchSource, transposed: Sequence[bool], fed: Sequence[NDArray[Any]]) -> bytes:
    """transposed: the inputs that come as NHWC. fed: an example of each."""
    with quiet():
        import litert_torch  # type: ignore[import-not-found,unused-ignore]
        import torch

    class Positional(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        """The network with its pictures in NHWC and its outputs in a tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.network = source.module

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            placed = (one.permute(0, 3, 1, 2) if nhwc else one for one, nhwc in zip(inputs, transposed, strict=True))
            return tuple(flatten_outputs(self.network(*placed))[1])

    with tempfile.TemporaryDirectory() as folder, quiet(), torch.no_grad():
        file = Path(folder) / "network.tflite"
        try:
            made = litert_torch.convert(Positional(), tuple(map(torch.from_numpy, fed)))
            made.export(str(file))
        except Exception as error:  # torch, JAX and MLIR have no common error
            raise ConversionError(
                f"litert-torch cannot convert it: {one_line(error)}", where=source.path.name, do=_INSTEAD
            ) from error
        return _readable(file.read_bytes())


def _readable(data: bytes) -> bytes:
    """The file without litert-torch's note on constants, and a name for each layer.

    The note keeps weights as StableHLO's, where TensorFlow's quantizer looks for none. Layers are called after the
    Python class that was traced, all of them: here after their operators.
    """
    model = tfl.read(data)
    model.metadata = [one for one in model.metadata or () if one.name != b"keep_stablehlo_constant"]
    for part, graph in enumerate(model.subgraphs):
        ends = {int(index) for index in (*graph.inputs, *graph.outputs)}
        for number, operator in enumerate(graph.operators):
            for place, index in enumerate(operator.outputs):
                if int(index) not in ends:
                    name = f"{f'body_{part}/' if part else ''}{tfl.op_of(model, operator).lower()}_{number}"
                    graph.tensors[index].name = (f"{name}:{place}" if place else name).encode()
    return tfl.write(model)


def _place(tensor: str) -> int:
    """Of `serving_default_args_1:0`: 1."""
    return int(tensor.split("args_")[1].split(":")[0])
