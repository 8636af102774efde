"""An ncnn network as a graph, run by the engine of boards.

    graph = NcnnGraph(artifact.data)
    with graph.watch(["17"]) as watched:
        watched.run([picture])["17"]            # float32 [1, C, H, W]

Rules:
- a watched blob is split, and its copy becomes an output of the network that runs;
- the layer that makes NAME has the constants `NAME/kernel`, [out, in / groups, h, w] or [out, in], and `NAME/bias`;
- the inputs of products in 8 bits have grids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.graph import KernelWindow, Layer, WatchedGraph, macs_by_tensor
from edgekit_converters.formats.grid import Grid
from edgekit_converters.formats.ncnn_file import FREE, network_of, pieces
from edgekit_converters.formats.workload import Kind
from edgekit_runtime.engines.registry import Engine, load_engine
from edgekit_runtime.modelfile.ncnn_structure import NcnnLayer, NcnnNetwork, NcnnSide, pack_network

_KINDS: dict[str, Kind] = {
    "Convolution": "conv", "ConvolutionDepthWise": "depthwise", "InnerProduct": "dense", "Deconvolution": "conv",
    "DeconvolutionDepthWise": "conv", "Concat": "concat", "BinaryOp": "elementwise", "Pooling": "pool",
    **dict.fromkeys(FREE, "move"), **dict.fromkeys(("Permute", "Slice", "Padding", "PixelShuffle"), "move"),
    **dict.fromkeys(("ReLU", "Sigmoid", "Swish", "HardSwish", "Softmax", "Clip", "TanH", "PReLU"), "activation"),
}  # fmt: skip
_FUSED = {"1": "relu", "2": "leaky_relu", "3": "clip", "4": "sigmoid", "5": "mish", "6": "hard_swish"}
_TYPES = {1: "i1", 2: "<f2", 4: "<f4"}


class NcnnGraph:
    """The Graph of an ncnn artifact. Raises ConversionError for other bytes."""

    format: Literal["tflite", "onnx", "ncnn"] = "ncnn"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._network = network_of(data)
        self.inputs, self.outputs = (tuple(s.name for s in x) for x in (self._network.inputs, self._network.outputs))
        found = pieces(self._network)
        self._places = {layer.tops[0]: (layer, kernel, rest) for layer, kernel, rest in found if layer.kernel}

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        macs = macs_by_tensor("ncnn", self.data)
        return tuple(self._layer(layer, macs) for layer in self._network.layers if layer.bottoms)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        computed = [name for layer in self._network.layers if layer.bottoms for name in layer.tops]
        return tuple(dict.fromkeys([*self.inputs, *computed]))

    @cached_property
    def grids(self) -> Mapping[str, Grid]:
        found = {}
        for layer, _, rest in self._places.values():
            if layer.eight_bit:
                step = 1 / float(np.frombuffer(self._network.weights[rest], "<f4")[-1])
                found[layer.bottoms[0]] = Grid(step, -127 * step, 127 * step)
        return found

    def constant(self, name: str) -> NDArray[Any]:
        place, shape, kind = self._constant(name)
        values = np.frombuffer(self._network.weights[place], kind).reshape(shape)
        if kind != "i1":
            return values.astype(np.float32)
        layer, _, rest = self._places[name.rpartition("/")[0]]
        count = int(layer.params[0])
        scales = np.frombuffer(self._network.weights[rest], "<f4")[-1 - count : -1]
        return np.asarray((values.reshape(count, -1) / scales[:, None]).reshape(values.shape), np.float32)

    def with_constants(self, values: Mapping[str, NDArray[Any]]) -> NcnnGraph:
        weights = bytearray(self._network.weights)
        for name, array in values.items():
            place, shape, kind = self._constant(name)
            weights[place] = np.asarray(array, kind).reshape(shape).tobytes()
        text = self._network.param().encode()
        return NcnnGraph(pack_network(text, bytes(weights), self._network.inputs, self._network.outputs))

    @contextmanager
    def watch(self, tensors: Sequence[str] | None = None) -> Iterator[WatchedGraph]:
        wanted = set(self.tensors if tensors is None else tensors)
        inner = [name for name in self.tensors if name in wanted - {*self.inputs, *self.outputs}]
        shapes = {n: s for one in self._network.layers for n, s in zip(one.tops, one.outputs, strict=True)}
        outputs = [NcnnSide(f"{name}/seen", (1, *shapes[name])) for name in inner]
        outputs += [side for side in self._network.outputs if side.name in wanted] or self._network.outputs[:1]
        layers = list[NcnnLayer]()
        for layer in self._network.layers:
            renamed = tuple(f"{name}/on" if name in inner else name for name in layer.bottoms)
            layers.append(replace(layer, bottoms=renamed))
            for name in layer.tops:
                if name in inner:
                    tops = (f"{name}/on", f"{name}/seen")
                    layers.append(NcnnLayer("Split", f"{name}/split", (name,), tops, {}, (), (), 0, 0))
        network = NcnnNetwork((), (), tuple(layers), b"", False)
        data = pack_network(network.param().encode(), self._network.weights, self._network.inputs, outputs)
        with load_engine("ncnn", data) as engine:
            yield _NcnnReader(engine, [name for name in self.inputs if name in wanted], self.inputs)

    def _layer(self, layer: NcnnLayer, macs: Mapping[str, int]) -> Layer:
        name, known = layer.tops[0], layer.tops[0] in self._places and not layer.kind.startswith("Deconv")
        window = _window(layer) if known else None
        return Layer(
            name=name,
            op=layer.kind,
            kind=_KINDS.get(layer.kind, "other"),
            inputs=layer.bottoms,
            outputs=layer.tops,
            weight=f"{name}/kernel" if known else None,
            bias=f"{name}/bias" if known and _has_bias(layer) else None,
            weight_axis=0 if known else None,
            macs=macs.get(name, 0),
            window=None if window is None or min(window.pads) < 0 else window,
            fused=_FUSED.get(layer.params.get(9, "0")),
        )

    def _constant(self, name: str) -> tuple[slice, tuple[int, ...], str]:
        """Its bytes, shape and type. Raises KeyError."""
        layer, kernel, rest = self._places[name.rpartition("/")[0]]
        outputs = int(layer.params[0])
        if name.endswith("/bias"):
            return slice(rest.start, rest.start + 4 * outputs), (outputs,), "<f4"
        window = _window(layer)
        shape = (outputs, -1, *window.kernel) if window is not None else (outputs, -1)
        return kernel, shape, _TYPES[(kernel.stop - kernel.start) // layer.kernel]


class _NcnnReader:
    def __init__(self, engine: Engine, seen: Sequence[str], inputs: Sequence[str]) -> None:
        self._engine, self._seen, self._inputs = engine, seen, inputs

    def run(self, inputs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        given = dict(zip(self._inputs, inputs, strict=True))
        answers = zip(self._engine.outputs, self._engine.run(inputs), strict=True)
        found = {spec.tensor.removesuffix("/seen"): array for spec, array in answers}
        return found | {name: given[name] for name in self._seen}


def _has_bias(layer: NcnnLayer) -> bool:
    return layer.params.get(1 if layer.kind == "InnerProduct" else 5) == "1"


def _window(layer: NcnnLayer) -> KernelWindow | None:
    """None for a dense layer. Pads below 0: ncnn works them out."""
    if layer.kind == "InnerProduct":
        return None
    number = {key: int(value) for key, value in layer.params.items() if key in (1, 2, 3, 4, 7, 11, 12, 13, 14, 15, 16)}
    width, gap, step, left = number[1], number.get(2, 1), number.get(3, 1), number.get(4, 0)
    pads = (number.get(14, left), left, number.get(16, left), number.get(15, left))
    return KernelWindow(
        (number.get(11, width), width), (number.get(13, step), step), (number.get(12, gap), gap), pads,
        number.get(7, 1) if layer.kind.endswith("DepthWise") else 1, channels_last=False,
    )  # fmt: skip
