"""A finished .tflite file whose dense layers have a scale a channel, with one scale a layer instead.

Rules:
- runtimes that know no scales a channel for dense layers load such a file and answer wrongly, or refuse its version of the
  operator; with one scale they run it as it was meant, a little less exactly;
- a kernel is rounded a second time, from the numbers that the file has; a bias of integers is brought to the new scale;
- what the file claims as its oldest runtime is dropped: it was said of the other form.

    data = per_tensor_dense(dynamic_range_tflite)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit_converters.errors import ConversionError
from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.targets.tflite_dynamic import symmetric

__all__ = ["per_tensor_dense"]

_OLD = 9  # of FULLY_CONNECTED: does all that these files ask of it, and is in every runtime since 2.3
_CLAIM = b"min_runtime_version"


def per_tensor_dense(data: bytes) -> bytes:
    """The file itself where no dense layer has more than one scale. Raises ConversionError for weights of 4 bits."""
    model = tfl.read(data)
    changed = False
    for graph in model.subgraphs:
        made: dict[tuple[int, str], int] = {}
        for operator in graph.operators:
            if tfl.op_of(model, operator) == "FULLY_CONNECTED" and _scales(graph, operator) > 1:
                _change(model, graph, operator, made)
                changed = True
    if not changed:
        return data
    _lower_versions(model)
    model.metadata = [entry for entry in model.metadata or () if bytes(entry.name or b"") != _CLAIM]
    tfl.compact(model)
    return tfl.write(model)


def _scales(graph: Any, operator: Any) -> int:
    quantization = graph.tensors[operator.inputs[1]].quantization
    return 0 if quantization is None or quantization.scale is None else len(quantization.scale)


def _change(model: Any, graph: Any, operator: Any, made: dict[tuple[int, str], int]) -> None:
    source, kernel = (graph.tensors[operator.inputs[place]] for place in (0, 1))
    layer = tfl.layer_of(graph, operator)
    if tfl.type_of(kernel) != "INT8":
        raise ConversionError(
            f"the weights of '{layer}' are {tfl.type_of(kernel)}, and only int8 is given one scale",
            do="Convert the model that it was made from",
        )
    scales = np.asarray(kernel.quantization.scale, np.float32)
    values = tfl.constant(model, kernel).astype(np.float32) * scales[:, None]
    small, one = symmetric(values, None)
    tfl.set_input(operator, 1, _again(model, graph, int(operator.inputs[1]), small, one, made))
    if tfl.type_of(source) != "FLOAT32" and len(operator.inputs) > 2 and operator.inputs[2] >= 0:
        index = int(operator.inputs[2])
        steps = np.float64(source.quantization.scale[0]) * scales.astype(np.float64)
        bias = tfl.constant(model, graph.tensors[index])
        step = np.float32(np.float64(source.quantization.scale[0]) * float(one[0]))
        again = np.rint(bias * steps / float(step)).astype(bias.dtype)
        tfl.set_input(operator, 2, _again(model, graph, index, again, np.asarray([step]), made))


def _lower_versions(model: Any) -> None:
    """A converter gives all dense layers the version that one of them needs."""
    for graph in model.subgraphs:
        for operator in graph.operators:
            if tfl.op_of(model, operator) != "FULLY_CONNECTED":
                continue
            ends = {tfl.type_of(graph.tensors[operator.inputs[place]]) for place in (0, 1)}
            if ends <= {"FLOAT32", "INT8"}:
                version = int(model.operatorCodes[operator.opcodeIndex].version)
                operator.opcodeIndex = tfl.code(model, "FULLY_CONNECTED", min(version, _OLD))


def _again(model: Any, graph: Any, index: int, values: Any, scale: Any, made: dict[tuple[int, str], int]) -> int:
    """Another tensor of the same name and type with these values; the old one is left to `compact`. Once for those that
    several operators share, at the same scale."""
    place = (index, np.asarray(scale, np.float32).tobytes().hex())
    if place not in made:
        schema, old = tfl.schema(), graph.tensors[index]
        new = schema.TensorT()
        new.shape, new.shapeSignature, new.hasRank = old.shape, old.shapeSignature, old.hasRank
        new.type, new.name, new.buffer = old.type, old.name, tfl.add_constant(model, values)
        new.quantization = schema.QuantizationParametersT()
        new.quantization.scale = np.asarray(scale, np.float32)
        new.quantization.zeroPoint = np.zeros(1, np.int64)
        graph.tensors.append(new)
        made[place] = len(graph.tensors) - 1
    return made[place]
