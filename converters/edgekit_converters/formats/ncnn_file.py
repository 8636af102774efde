"""What an ncnn network computes, and what it asks of a runtime."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from edgekit_converters.formats.needs import Needs, Use
from edgekit_converters.formats.workload import WorkloadReading, convolution_kind, dense_kind
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.workload import Op, OpKind
from edgekit_runtime.modelfile.ncnn_structure import WIDTHS, NcnnLayer, NcnnNetwork, read_network
from edgekit_runtime.system.errors import ModelFileError

FREE = frozenset({"Input", "Split", "Noop", "Dropout", "MemoryData", "Reshape", "Flatten", "Squeeze", "ExpandDims"})
"""They take no time: ncnn hands the same memory on."""


def network_of(data: bytes) -> NcnnNetwork:
    """Raises ConversionError."""
    try:
        return read_network(data)
    except ModelFileError as error:
        raise ConversionError(error.what, do=error.do) from error


def pieces(network: NcnnNetwork) -> Iterator[tuple[NcnnLayer, slice, slice]]:
    """Each layer, and where its kernel (without tag) and its other constants are."""
    at = 0
    for layer in network.layers:
        start = at + 4 if layer.kernel else at
        end = start + layer.kernel * WIDTHS.get(int.from_bytes(network.weights[at:start], "little"), 4)
        rest = -(-end // 4) * 4
        at = rest + 4 * (layer.constants - layer.kernel)
        yield layer, slice(start, end), slice(rest, at)


def read(data: bytes) -> WorkloadReading:
    """Raises ConversionError."""
    reading = WorkloadReading()
    for layer in network_of(data).layers:
        eight = layer.eight_bit
        reading.weights += layer.kernel
        reading.eight_bit_weights += eight * layer.kernel
        moved = sum(map(prod, (*layer.inputs, *layer.outputs)))
        if layer.kernel:
            rows = prod((layer.inputs if layer.kind.startswith("Deconv") else layer.outputs)[0][1:])
            if layer.kind == "InnerProduct":
                rows = layer.outputs[0][0] if len(layer.outputs[0]) == 2 else 1
            work, kind = (rows * layer.kernel, moved, layer.kernel, layer.tops[0]), "INT8" if eight else ""
            reading.counted.append(Op(_kind(layer, rows), *work, eight_bit=eight, activation=kind))
        elif layer.kind not in FREE:
            reading.counted.append(Op("ew", 0, moved, 0, layer.tops[0]))
    return reading


def _kind(layer: NcnnLayer, rows: int) -> OpKind:
    if layer.kind == "InnerProduct":
        return dense_kind(rows)
    if layer.kind.endswith("DepthWise"):
        return "dw"
    across = [layer.params.get(key, "1") for key in (1, 3, 2)]
    pairs = [(int(layer.params.get(key + 10, one)), int(one)) for key, one in zip((1, 3, 2), across, strict=True)]
    return convolution_kind(pairs[0], pairs[1], pairs[2])


def read_needs(data: bytes) -> Needs:
    """Raises ConversionError. Every version of ncnn has the layers that the check knows."""
    return Needs("ncnn", ops=tuple(Use(layer.kind, 1, layer.name) for layer in network_of(data).layers))
