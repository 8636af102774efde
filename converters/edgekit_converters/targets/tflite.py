"""A source as float .tflite, once.
What every TFLite recipe starts from (see `tflite_quantize`).

Rules:
- a batch of fixed size, 1 unless another is asked for: many .tflite graphs cannot be resized;
- what TensorFlow can trace goes through its converter; a PyTorch source through litert-torch (see `torch_to_tflite`),
  or as ONNX where that is not there or fails; an ONNX source first becomes TensorFlow code (see `onnx_to_tf`),
  where pictures are NHWC; a float .tflite is taken as it is;
- TensorFlow ("Select TF") and custom operators are refused by name and by layer: boards' runtimes do not carry them;
- transpositions of a picture's or a sequence's axes that are left in the graph are counted: each costs time.

    float_model(source).data            # make(float_model(source), recipe("tflite-int8"), Plan(), statistics)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from edgekit_converters.errors import ConversionError, MissingToolsError, one_line
from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.sources.quiet import import_tensorflow, quiet
from edgekit_converters.sources.shapes import graph_names
from edgekit_converters.sources.tflite import TfliteModel
from edgekit_converters.sources.torch import TorchSource
from edgekit_converters.sources.traced import TracedSource
from edgekit_converters.targets.artifact import FloatModel, TensorFlowNetwork, tool_versions, transposed_shape
from edgekit_runtime.errors import EdgekitError, install_command

_TOOLS = ("tensorflow-cpu", "tensorflow")
_INSTEAD = "Replace these operators in the model, or choose an ONNX recipe: onnx-int8-qdq, onnx-f32"
# Transpositions from channels last to channels first, or back.
_LAYOUTS = {(0, 2, 1), (0, 3, 1, 2), (0, 2, 3, 1), (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)}


def float_model(source: SourceModel, progress: Progress = silent, batch: int = 1) -> FloatModel:
    """The source as float .tflite with a fixed batch.

    batch: items at once; more than 1 for sources that TensorFlow traces and whose batch is free. Raises
    ConversionError, naming operators and layers where TensorFlow's converter names them.
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
        network = TensorFlowNetwork(source.call, list(source.variables), tools=tuple(source.tools))
    data = _convert(tf, source, network, batch)
    model = tfl.read(data)
    # an interpreter lists the tensors in another order than the signature where there are several outputs
    graph, [signature] = model.subgraphs[0], model.signatureDefs
    inputs = _names_in_order(graph.inputs, signature.inputs or ())
    outputs = _names_in_order(graph.outputs, signature.outputs or ())
    in_names = dict(zip(graph_names(source.inputs), (spec.name for spec in source.inputs), strict=True))
    out_names = dict(zip(graph_names(source.outputs), (spec.name for spec in source.outputs), strict=True))
    return FloatModel(
        "tflite",
        data,
        tuple(in_names[name] for name in inputs),
        tuple(out_names[name] for name in outputs),
        tool_versions((*_TOOLS, *network.tools)),
        network.transposed,
        _transposes(model),
    )


def _of_torch(source: TorchSource, batch: int) -> FloatModel | None:
    """Through litert-torch; None where that cannot be, and onnx2tf may try it.
    Raises ConversionError."""
    from edgekit_converters.targets import onnx_to_tf, torch_to_tflite

    if not torch_to_tflite.available():
        if onnx_to_tf.available():
            return None
        raise MissingToolsError(
            "TFLite from a PyTorch model needs the 'torch-tflite' extra, which is not installed",
            where=source.path.name,
            do=f"Run: {install_command('torch-tflite')}, or choose onnx-int8-qdq or onnx-f32",
        )
    try:
        network = torch_to_tflite.network(source, batch)
    except ConversionError:
        if onnx_to_tf.available():
            return None
        raise
    model = tfl.read(network.data)
    graph, [signature] = model.subgraphs[0], model.signatureDefs
    in_names = dict(zip(network.inputs, (spec.name for spec in source.inputs), strict=True))
    out_names = dict(zip(network.outputs, (spec.name for spec in source.outputs), strict=True))
    return FloatModel(
        "tflite",
        network.data,
        tuple(in_names[name] for name in _names_in_order(graph.inputs, signature.inputs or ())),
        tuple(out_names[name] for name in _names_in_order(graph.outputs, signature.outputs or ())),
        tool_versions(torch_to_tflite.TOOLS),
        network.transposed,
        _transposes(model),
    )


def _convert(tf: Any, source: SourceModel, network: TensorFlowNetwork, batch: int) -> bytes:
    """Trace the network and convert it.
    An error names operators and where they stand, not the page of MLIR notes."""
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
        (tfl.op_of(model, operator), tfl.layer_of(graph, operator))
        for graph in model.subgraphs
        for operator in graph.operators
        if model.operatorCodes[operator.opcodeIndex].customCode
    ]
    if foreign:
        raise _foreign([(op.removeprefix("Flex"), name) for op, name in foreign], where)
    inputs = tuple(spec.name for spec in source.inputs)
    return FloatModel(
        "tflite", data, inputs, tuple(spec.name for spec in source.outputs), {}, transposes=_transposes(model)
    )


def _names_in_order(tensors: Iterable[int], ends: Iterable[Any]) -> list[str]:
    by_index: dict[int, str] = {}
    for end in ends:
        name, index = bytes(end.name).decode(), int(end.tensorIndex)
        if index in by_index:
            raise ConversionError(
                f"'{name}' and '{by_index[index]}' are one tensor in the artifact",
                do="Return the value once from the original model",
            )
        by_index[index] = name
    return [by_index[int(index)] for index in tensors]


def _transposes(model: Any) -> int:
    """TRANSPOSE operators that turn computed values from one layout to the other."""
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
    """operators: with the layer of each, where it is known."""
    shown = ", ".join(f"{op} in '{layer}'" if layer else op for op, layer in operators[:5])
    more = f" and {len(operators) - 5} more" if len(operators) > 5 else ""
    return ConversionError(f"TFLite has no kernel for {shown}{more}", where=where, do=_INSTEAD)
