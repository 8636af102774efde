"""A source as float .tflite, which every TFLite recipe starts from (see `tflite_quantize`).

    float_model(source).data            # make(float_model(source), recipe("tflite-int8"), Plan(), statistics)

Rules:
- the batch is fixed, 1 unless another is asked for: many .tflite graphs cannot be resized;
- TensorFlow's converter takes what TensorFlow can trace, litert-torch PyTorch sources, or onnx2tf if that fails or is
  missing; an ONNX source first becomes TensorFlow code (see `onnx_to_tf`); a float .tflite stays as it is;
- pictures of PyTorch and ONNX sources become NHWC; every other input and every output keeps the source's axes;
- litert-torch's result is run against the original on random data, and a difference is an error;
- TensorFlow ("Select TF") and custom operators are refused by name and layer: boards' runtimes do not have them;
- transpositions of a picture's or a sequence's axes that are left are counted: each costs time.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.recipe.artifact import (
    FloatModel,
    TensorFlowNetwork,
    tool_versions,
    transposed_pixels,
    transposed_shape,
)
from edgekit_converters.recipe.conversion_errors import ConversionError, MissingToolsError, one_line
from edgekit_converters.recipe.foreign_code import import_tensorflow, quiet
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.shapes import graph_names
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.sources.tensorflow_source import TracedSource
from edgekit_converters.sources.tflite_source import TfliteModel
from edgekit_converters.sources.torch_source import TorchSource, flatten_outputs
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.errors import EdgekitError, install_command

_TOOLS = ("tensorflow-cpu", "tensorflow")
_INSTEAD = "Replace these operators in the model, or choose an ONNX recipe: onnx-int8-qdq, onnx-f32"
# Transpositions from channels last to channels first, or back.
_LAYOUTS = {(0, 2, 1), (0, 3, 1, 2), (0, 2, 3, 1), (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)}


def float_model(source: SourceModel, progress: Progress = silent, batch: int = 1) -> FloatModel:
    """Convert the source to float .tflite with a fixed batch.

    batch: items at once; more than 1 only for sources whose batch is free.

    Raises ConversionError, naming operators and layers if TensorFlow's converter names them.
    """
    progress("conversion", 0, None)
    if isinstance(source, TfliteModel):
        return _as_it_is(source, batch)
    if isinstance(source, TorchSource) and (found := _of_torch(source, batch)) is not None:
        return found
    tf = import_tensorflow()
    if not isinstance(source, TracedSource):
        from edgekit_converters.targets.onnx_to_tf import network as onnx_network

        network = onnx_network(source, f"{source.path.name}, tflite", batch)
    elif batch != 1 and not all(spec.free_batch for spec in (*source.inputs, *source.outputs)):
        raise ConversionError(
            f"the model has a fixed batch of 1, and cannot be given one of {batch}",
            where=source.path.name,
            do="Save it with a free batch axis",
        )
    else:
        network = source.network
    data, names = _convert(tf, source, network, batch), (graph_names(source.inputs), graph_names(source.outputs))
    return _described(source, data, *names, tool_versions((*_TOOLS, *network.tools)), network.transposed)


def _described(
    source: SourceModel,
    data: bytes,
    inputs: Sequence[str],
    outputs: Sequence[str],
    tools: dict[str, str],
    transposed: frozenset[str],
) -> FloatModel:
    """Describe the converted file. inputs, outputs: its names, in the source's order."""
    model = tfl.read(data)
    # an interpreter lists several outputs in another order than the signature
    graph, [signature] = model.subgraphs[0], model.signatureDefs

    def ends(names: Sequence[str], specs: Sequence[TensorSpec], tensors: Any, entries: Any) -> tuple[str, ...]:
        own = dict(zip(names, (spec.name for spec in specs), strict=True))
        return tuple(own[name] for name in _names_in_order(tensors, entries or ()))

    own_inputs = ends(inputs, source.inputs, graph.inputs, signature.inputs)
    own_outputs = ends(outputs, source.outputs, graph.outputs, signature.outputs)
    return FloatModel("tflite", data, own_inputs, own_outputs, tools, transposed, _transposes(model))


def _of_torch(source: TorchSource, batch: int) -> FloatModel | None:
    """Convert with litert-torch; None if that fails and onnx2tf may try. Raises ConversionError."""
    from edgekit_converters.targets import onnx_to_tf

    if not available():
        if onnx_to_tf.available():
            return None
        raise MissingToolsError(
            "TFLite from a PyTorch model needs the 'torch-tflite' extra, which is not installed",
            where=source.path.name,
            do=f"Run: {install_command('torch-tflite')}, or choose onnx-int8-qdq or onnx-f32",
        )
    transposed = frozenset(spec.name for spec in source.inputs if spec.layout == "NCHW")
    try:
        data = _traced(source, batch, transposed)
    except ConversionError:
        if onnx_to_tf.available():
            return None
        raise
    inputs = [f"args_{place}" for place in range(len(source.inputs))]
    outputs = [f"output_{place}" for place in range(len(source.outputs))]
    return _described(source, data, inputs, outputs, tool_versions(("litert-torch", "torch")), transposed)


def _convert(tf: Any, source: SourceModel, network: TensorFlowNetwork, batch: int) -> bytes:
    """Trace the network and convert it; an error names operators and their layers."""
    signature = []
    for spec, name in zip(source.inputs, graph_names(source.inputs), strict=True):
        shape = transposed_shape(spec) if spec.name in network.transposed else spec.shape
        signature.append(tf.TensorSpec([batch, *shape[1:]], spec.dtype, name=name))
    outs = graph_names(source.outputs)

    def infer(*inputs: Any) -> dict[str, Any]:
        return dict(zip(outs, network.call(*inputs), strict=True))

    graph: Any = None
    with quiet() as log:
        try:
            holder = tf.Module()  # keeps the weights in sight of the converter, which freezes only what it can track
            holder.weights = list(network.weights)
            function = tf.function(infer, input_signature=signature).get_concrete_function()
            graph = function.graph.as_graph_def()
            return bytes(tf.lite.TFLiteConverter.from_concrete_functions([function], holder).convert())
        except EdgekitError:
            raise
        except Exception as error:
            text, where = f"{error}\n{log.text()}", source.path.name
            operators = re.findall(r"'tf\.(\w+)' op is neither a custom op nor a flex op", text)
            for names in re.findall(r"(?:TF Select ops|Flex ops|Custom ops|[Cc]ustom ops): ([\w, ]+)", text):
                operators += [name.removeprefix("Flex") for name in re.split(r",\s*", names.strip()) if name]
            if not operators:
                first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
                raise ConversionError(f"TensorFlow's converter failed: {one_line(first)}", where=where) from error
            traced = [] if graph is None else [graph.node, *(inner.node_def for inner in graph.library.function)]
            nodes = [node for inner in traced for node in inner]
            named = []
            for op in sorted(set(operators)):
                named += [(op, layer) for layer in sorted({node.name for node in nodes if node.op == op}) or [""]]
            raise _foreign(named, where) from error


def _as_it_is(source: TfliteModel, batch: int) -> FloatModel:
    data, where = source.tflite(), source.path.name
    if batch != 1:
        raise ConversionError(
            f"a .tflite file has the batch it was written with, and cannot be given one of {batch}",
            where=where,
            do="Pass the model it was made from",
        )
    model = tfl.read(data)
    foreign = [
        (op.removeprefix("Flex"), tfl.layer_of(graph, operator))
        for graph, operator, op in tfl.operators(model)
        if model.operatorCodes[operator.opcodeIndex].customCode
    ]
    if foreign:
        raise _foreign(foreign, where)
    inputs, outputs = (tuple(spec.name for spec in specs) for specs in (source.inputs, source.outputs))
    return FloatModel("tflite", data, inputs, outputs, {}, transposes=_transposes(model))


def _names_in_order(tensors: Iterable[int], ends: Iterable[Any]) -> list[str]:
    by_index: dict[int, str] = {}
    for end in ends:
        name, index = bytes(end.name).decode(), int(end.tensorIndex)
        if index in by_index:
            raise ConversionError(
                f"'{name}' and '{by_index[index]}' are the same tensor in the artifact",
                do="Return the value once from the original model",
            )
        by_index[index] = name
    return [by_index[int(index)] for index in tensors]


def _transposes(model: Any) -> int:
    """Count TRANSPOSE operators that change the layout of computed values."""
    graph = model.subgraphs[0]
    found = 0
    for operator in graph.operators:
        if tfl.op_of(model, operator) != "TRANSPOSE":
            continue
        values, order = (graph.tensors[index] for index in operator.inputs)
        if not tfl.is_constant(model, values) and tfl.is_constant(model, order):
            found += tuple(int(axis) for axis in tfl.constant(model, order)) in _LAYOUTS
    return found


def _foreign(operators: Sequence[tuple[str, str]], where: str) -> ConversionError:
    """Return the error for unsupported operators, each with its layer if known."""
    shown = ", ".join(f"{op} in '{layer}'" if layer else op for op, layer in operators[:5])
    more = f" and {len(operators) - 5} more" if len(operators) > 5 else ""
    return ConversionError(f"TFLite has no kernel for {shown}{more}", where=where, do=_INSTEAD)


_TORCH_INSTEAD = "Choose onnx-int8-qdq or onnx-f32, or replace the operator that it names"


def available() -> bool:
    """Whether the `torch-tflite` extra is installed."""
    return importlib.util.find_spec("litert_torch") is not None


def _traced(source: TorchSource, batch: int, transposed: frozenset[str]) -> bytes:
    """Convert with litert-torch; transposed: inputs that become NHWC.

    Raises ConversionError if it cannot express the model, or its answers differ from the original's.
    """
    where = source.path.name
    if batch != 1 and not source.free_batch:
        raise ConversionError(
            f"the model has a fixed batch of 1, and cannot be given one of {batch}",
            where=where,
            do="Export it with a free batch axis",
        )
    arrays = float_onnx.proof_inputs(source, max(float_onnx.PROOFS // batch, 1) * batch)
    fed = [
        np.ascontiguousarray(transposed_pixels(array, spec)) if spec.name in transposed else array
        for array, spec in zip(arrays, source.inputs, strict=True)
    ]
    examples = [array[:batch] for array in fed]
    data = _convert_torch(source, [spec.name in transposed for spec in source.inputs], examples)
    with load_engine("tflite", data) as engine:
        # the engine has them in the file's own order, as `serving_default_args_0:0` or as the signature says
        places = [int(spec.tensor.split("args_")[1].split(":")[0]) for spec in engine.inputs]
        parts = [
            engine.run([fed[place][at : at + batch] for place in places]) for at in range(0, len(arrays[0]), batch)
        ]
        answers = map(np.concatenate, zip(*parts, strict=True))
        got = dict(zip((spec.tensor for spec in engine.outputs), answers, strict=True))
    for wanted, spec in zip(source.predict(arrays), source.outputs, strict=True):
        if all(float_onnx.agreement(values, wanted) for values in got.values()):
            raise ConversionError(
                f"litert-torch's network gives other answers than the original for the output '{spec.name}'",
                where=where,
                do=_TORCH_INSTEAD,
            )
    return data


def _convert_torch(source: TorchSource, transposed: Sequence[bool], fed: Sequence[NDArray[Any]]) -> bytes:
    """Run litert-torch. transposed: inputs given as NHWC. fed: an example of each."""
    with quiet():
        import litert_torch  # type: ignore[import-not-found,unused-ignore]
        import torch

    class Positional(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        """The network with NHWC pictures and a tuple of outputs."""

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
                f"litert-torch cannot convert it: {one_line(error)}", where=source.path.name, do=_TORCH_INSTEAD
            ) from error
        return _readable(file.read_bytes())


def _readable(data: bytes) -> bytes:
    """Remove litert-torch's note on constants and give each layer a name.

    The note hides weights from TensorFlow's quantizer. All layers are named after the Python class that was traced:
    here after their operators.
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
