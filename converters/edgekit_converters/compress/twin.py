"""A Keras model that computes what an ONNX network computes, and the tensors of both.

    model = keras_twin(source)              # of any source with .onnx(); the shapes and names of its ends are the same
    names = tensor_names(network, simulation, values, workspace, "tflite", samples)

Rules:
- only listed operators are accepted, with the attributes that Keras has too;
- values of four axes are channels last; the input and the output keep the source's axes;
- the twin must answer as the source does, within 1e-4 of the largest value, on random inputs;
- tensors of a simulation and of a converter's graph are matched by their values on real inputs;
- tensors that the artifact keeps in float are in float in the simulation too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.network import Network, free_name
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.formats.onnx_file import FoldedView, attribute, parse
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.foreign_code import import_keras, quiet
from edgekit_converters.sources.float_onnx import random_inputs
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.targets.workspace import Workspace

_ALIKE = 1e-4
"""Of the largest magnitude of an answer."""
_TRIALS = 4
_ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}
_NO_NAME = re.compile(r"[^A-Za-z0-9_.]+")
_INSTEAD = "Give the Keras model, or build without compress; docs/compress.md lists the operators"


def keras_twin(source: SourceModel) -> Any:
    """A Keras 3 model. source: one float32 input, one output.

    Raises CompressError naming the first operator that is not accepted.
    """
    import_keras()
    inputs, outputs = source.inputs, source.outputs
    if len(inputs) != 1 or len(outputs) != 1 or inputs[0].dtype != "float32":
        what = f"the model has {len(inputs)} inputs and {len(outputs)} outputs"
        raise CompressError(f"{what}, and one float32 input and one output can be trained", where=source.path.name)
    make = getattr(source, "onnx", None)
    if make is None:
        raise CompressError(
            f"a {source.format} model cannot be trained",
            where=source.path.name,
            do="Give the Keras, PyTorch or ONNX model that it was made from",
        )
    with quiet():
        model = _Twin(FoldedView(parse(make())), source).build()
        _check(model, source)
    return model


def _check(model: Any, source: SourceModel) -> None:
    for seed in range(_TRIALS):
        (x,) = random_inputs(source.inputs, 1, seed)
        (wanted,) = source.predict([x])
        found = np.asarray(model(x, training=False))
        apart = np.abs(found - wanted).max() if found.shape == wanted.shape else math.inf
        if not apart <= _ALIKE * max(float(np.abs(wanted).max()), 1e-6):
            raise CompressError(
                "the Keras model that was made of its graph answers otherwise", where=source.path.name, do=_INSTEAD
            )


class _Twin:
    """Makes one Keras tensor for each value of the graph."""

    def __init__(self, view: FoldedView, source: SourceModel) -> None:
        import keras

        self._view, self._source = view, source
        self._layers: Any = keras.layers
        self._tensors: dict[str, Any] = {}
        self._names: set[str] = set()
        self._biased: set[str] = set()  # outputs of additions that are part of a product already

    def build(self) -> Any:
        import keras

        spec, (graph_input,) = self._source.inputs[0], self._view.inputs
        first = keras.Input(spec.shape[1:], name=self._unique(spec.name))
        self._tensors[graph_input] = self._last(first, "input") if len(spec.shape) == 4 else first
        for node in self._view.layers:
            self._tensors[node.output[0]] = self._made(node)
        out = self._value(self._view.outputs[0])
        return keras.Model(first, self._first(out, "output") if len(out.shape) == 4 else out)

    def _made(self, node: Any) -> Any:
        make = _OPERATORS.get(node.op_type)
        if make is None or node.domain not in ("", "ai.onnx"):
            raise self._refusal(node, "whose 8-bit form is not simulated")
        return make(self, node)

    # --- values

    def _value(self, name: str) -> Any:
        found = self._tensors.get(name)
        if found is None:
            raise CompressError(f"its value '{name}' is not computed from the input", where=self._source.path.name)
        return found

    def _constant(self, node: Any, place: int) -> NDArray[Any] | None:
        """None if that input is missing."""
        if place >= len(node.input) or not node.input[place]:
            return None
        found = self._view.constants.get(node.input[place])
        if found is None:
            raise self._refusal(node, f"whose input '{node.input[place]}' is computed")
        return found.array()

    def _wanted(self, node: Any, place: int) -> NDArray[Any]:
        found = self._constant(node, place)
        if found is None:
            raise self._refusal(node, f"without its input {place}")
        return found

    def _last(self, value: Any, name: str) -> Any:
        return self._layers.Permute((2, 3, 1), name=self._unique(f"{name}/channels_last"))(value)

    def _first(self, value: Any, name: str) -> Any:
        """As the graph has it."""
        return self._layers.Permute((3, 1, 2), name=self._unique(f"{name}/channels_first"))(value)

    def _named(self, node: Any, part: str = "") -> dict[str, str]:
        return {"name": self._unique((node.name or node.output[0]) + part)}

    def _unique(self, name: str) -> str:
        return free_name(_NO_NAME.sub("_", name).strip("_") or "layer", self._names)

    def _refusal(self, node: Any, why: str) -> CompressError:
        name = node.name or node.output[0]
        return CompressError(
            f"the operator '{name}' is a {node.op_type} {why}", where=self._source.path.name, do=_INSTEAD
        )

    # --- products

    def conv(self, node: Any) -> Any:
        x, kernel, bias = self._value(node.input[0]), self._wanted(node, 1), self._constant(node, 2)
        if kernel.ndim != 4:
            raise self._refusal(node, f"over {kernel.ndim - 2} axes, and two are simulated")
        groups, channels = int(attribute(node, "group", 1)), int(x.shape[-1])
        options: dict[str, Any] = {
            "strides": tuple(attribute(node, "strides", [1, 1])),
            "dilation_rate": tuple(attribute(node, "dilations", [1, 1])),
            "use_bias": bias is not None,
        }
        x, options["padding"] = self._padded(node, x, kernel.shape[2:], options["strides"], options["dilation_rate"])
        if groups == 1:
            layer = self._layers.Conv2D(kernel.shape[0], kernel.shape[2:], **options, **self._named(node))
            kernel = kernel.transpose(2, 3, 1, 0)
        elif groups == channels:
            many = kernel.shape[0] // channels
            options["depth_multiplier"] = many
            layer = self._layers.DepthwiseConv2D(kernel.shape[2:], **options, **self._named(node))
            kernel = kernel[:, 0].reshape(channels, many, *kernel.shape[2:]).transpose(2, 3, 0, 1)
        else:
            raise self._refusal(node, f"with {groups} groups, which is not simulated")
        return self._weighted(layer, x, kernel, bias)

    def gemm(self, node: Any) -> Any:
        kernel, bias = self._wanted(node, 1), self._constant(node, 2)
        if attribute(node, "transA", 0) or attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1:
            raise self._refusal(node, "with transA, alpha or beta")
        kernel = kernel.T if attribute(node, "transB", 0) else kernel
        if bias is not None:
            bias = np.broadcast_to(bias.reshape(-1), kernel.shape[1:])
        return self._dense(node, kernel, bias)

    def matmul(self, node: Any) -> Any:
        """A constant added to it is its bias."""
        kernel, bias = self._wanted(node, 1), None
        if kernel.ndim != 2 or len(self._value(node.input[0]).shape) != 2:
            raise self._refusal(node, "of more than two axes")
        user = self._view.only_user(node.output[0])
        if user is not None and user.op_type == "Add":
            other = next((name for name in user.input if name != node.output[0]), "")
            found = self._view.constants.get(other)
            if found is not None and found.array().size == kernel.shape[1]:
                bias = found.array().reshape(-1)
        made = self._dense(node, kernel, bias)
        if bias is not None:
            self._biased.add(user.output[0])
        return made

    def _dense(self, node: Any, kernel: NDArray[Any], bias: NDArray[Any] | None) -> Any:
        layer = self._layers.Dense(kernel.shape[1], use_bias=bias is not None, **self._named(node))
        return self._weighted(layer, self._value(node.input[0]), kernel, bias)

    @staticmethod
    def _weighted(layer: Any, x: Any, kernel: NDArray[Any], bias: NDArray[Any] | None) -> Any:
        out = layer(x)
        layer.set_weights([kernel] if bias is None else [kernel, bias])
        return out

    def batch_norm(self, node: Any) -> Any:
        layer = self._layers.BatchNormalization(epsilon=attribute(node, "epsilon", 1e-5), **self._named(node))
        out = layer(self._value(node.input[0]))
        layer.set_weights([self._wanted(node, place) for place in (1, 2, 3, 4)])
        return out

    # --- windows

    def _padded(
        self, node: Any, x: Any, size: Sequence[int], strides: Sequence[int], dilations: Sequence[int] = (1, 1)
    ) -> tuple[Any, str]:
        """The value with the zeros that Keras does not add itself, and Keras' name for the rest."""
        auto = attribute(node, "auto_pad", b"NOTSET")
        if auto in (b"SAME_UPPER", b"VALID"):
            return x, "same" if auto == b"SAME_UPPER" else "valid"
        if auto != b"NOTSET":
            raise self._refusal(node, f"with auto_pad {auto.decode()}")
        top, left, bottom, right = attribute(node, "pads", [0, 0, 0, 0])
        given = ((top, bottom), (left, right))
        if given == ((0, 0), (0, 0)):
            return x, "valid"
        if given == tuple(map(_same, x.shape[1:3], size, strides, dilations)):
            return x, "same"
        return self._layers.ZeroPadding2D(given, **self._named(node, "/pad"))(x), "valid"

    def max_pool(self, node: Any) -> Any:
        """Zeros do as padding if no value is below zero."""
        size, options = self._window(node)
        x, padding = self._padded(node, self._value(node.input[0]), size, options["strides"])
        maker = self._view.maker(node.input[0])
        if x is not self._value(node.input[0]) and (maker is None or maker.op_type not in ("Relu", "Clip", "Sigmoid")):
            raise self._refusal(node, "whose padding Keras does not have")
        return self._layers.MaxPooling2D(size, padding=padding, **options)(x)

    def average_pool(self, node: Any) -> Any:
        size, options = self._window(node)
        given = self._value(node.input[0])
        x, padding = self._padded(node, given, size, options["strides"])
        counts = bool(attribute(node, "count_include_pad", 0))
        if (x is not given and not counts) or (padding == "same" and counts):
            raise self._refusal(node, "whose padding Keras does not have")
        return self._layers.AveragePooling2D(size, padding=padding, **options)(x)

    def _window(self, node: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
        size = tuple(attribute(node, "kernel_shape", []))
        plain = set(attribute(node, "dilations", [1])) == {1} and not attribute(node, "ceil_mode", 0)
        if len(size) != 2 or not plain:
            raise self._refusal(node, "of a kind that Keras does not have")
        return size, {"strides": tuple(attribute(node, "strides", [1, 1])), **self._named(node)}

    def mean(self, node: Any) -> Any:
        """Over both axes of a picture."""
        x, keep = self._value(node.input[0]), True
        if node.op_type == "ReduceMean":
            axes = self._constant(node, 1)
            over = sorted(int(one) % 4 for one in (attribute(node, "axes", []) if axes is None else axes))
            keep = bool(attribute(node, "keepdims", 1))
            if over != [2, 3]:
                raise self._refusal(node, "of other axes than height and width")
        return self._layers.GlobalAveragePooling2D(keepdims=keep, **self._named(node))(x)

    # --- one value to another

    def activation(self, node: Any) -> Any:
        return self._layers.Activation(_ACTIVATIONS[node.op_type], **self._named(node))(self._value(node.input[0]))

    def clip(self, node: Any) -> Any:
        low, high = (
            attribute(node, name, None) if found is None else float(found.reshape(-1)[0])
            for name, found in (("min", self._constant(node, 1)), ("max", self._constant(node, 2)))
        )
        high = None if high is None or high >= np.finfo(np.float32).max else high
        if low != 0 or high not in (None, 6):
            raise self._refusal(node, f"to {low}..{high}, and 0..6 is simulated")
        return self._layers.ReLU(max_value=high, **self._named(node))(self._value(node.input[0]))

    def softmax(self, node: Any) -> Any:
        x = self._value(node.input[0])
        axis, rank = int(attribute(node, "axis", -1)), len(x.shape)
        if axis % rank != (1 if rank == 4 else rank - 1):
            raise self._refusal(node, "over another axis than the channels")
        return self._layers.Softmax(**self._named(node))(x)

    def same(self, node: Any) -> Any:
        return self._value(node.input[0])

    def merge(self, node: Any) -> Any:
        """A sum or product of two values, or of one and a constant."""
        if node.output[0] in self._biased:
            return self._value(next(name for name in node.input if name in self._tensors))
        computed = [name for name in node.input if name in self._tensors]
        if len(computed) == 2 and node.op_type in ("Add", "Mul"):
            layer = self._layers.Add if node.op_type == "Add" else self._layers.Multiply
            return layer(**self._named(node))([self._value(name) for name in computed])
        place = 1 if node.input[0] in self._tensors else 0
        number = self._wanted(node, place).astype(np.float64)
        x = self._value(node.input[1 - place])
        if number.size != 1 or (place == 0 and node.op_type in ("Sub", "Div")):
            raise self._refusal(node, "with a constant that is not one number behind it")
        value = float(number.reshape(-1)[0])
        scale, offset = {
            "Add": (1.0, value),
            "Sub": (1.0, -value),
            "Mul": (value, 0.0),
            "Div": (1 / (value or math.nan), 0.0),
        }[node.op_type]
        return self._layers.Rescaling(scale, offset, **self._named(node))(x)

    def concat(self, node: Any) -> Any:
        found = [self._value(name) for name in node.input]
        rank = len(found[0].shape)
        axis = int(attribute(node, "axis", 1)) % rank
        if axis == 0:
            raise self._refusal(node, "of the batch")
        at = {1: 3, 2: 1, 3: 2}[axis] if rank == 4 else axis
        return self._layers.Concatenate(axis=at, **self._named(node))(found)

    def reshape(self, node: Any) -> Any:
        """Also Flatten, Squeeze and Unsqueeze: by the graph's shape of the result."""
        x, shape = self._value(node.input[0]), self._view.shape(node.output[0])
        sides = None if shape is None else shape[1:]
        if sides is None or min(sides, default=1) < 1:
            raise self._refusal(node, "to a shape that is not known")
        if len(x.shape) == 4 and len(sides) == 1 and tuple(x.shape[1:3]) == (1, 1):
            return self._layers.Flatten(**self._named(node))(x)
        name = node.name or node.output[0]
        plain = self._first(x, name) if len(x.shape) == 4 else x
        made = self._layers.Reshape(tuple(sides), **self._named(node))(plain)
        return self._last(made, name) if len(sides) == 3 else made

    def transpose(self, node: Any) -> Any:
        x, order = self._value(node.input[0]), list(attribute(node, "perm", []))
        if order[:1] != [0] or len(order) != len(x.shape):
            raise self._refusal(node, "that moves the batch")
        name, four = node.name or node.output[0], len(order) == 4
        made = self._layers.Permute(tuple(order[1:]), **self._named(node))(self._first(x, name) if four else x)
        return self._last(made, name) if four else made

    def pad(self, node: Any) -> Any:
        pads, number = self._wanted(node, 1), self._constant(node, 2)
        mode = attribute(node, "mode", b"constant")
        zeros = mode == b"constant" and (number is None or not number.any())
        before, after = [int(one) for one in pads[:4]], [int(one) for one in pads[4:]]
        around_picture = len(pads) == 8 and before[:2] + after[:2] == [0] * 4 and min(before + after) >= 0
        if not zeros or not around_picture or (len(node.input) > 3 and node.input[3]):
            raise self._refusal(node, "with something else than zeros around a picture")
        around = ((before[2], after[2]), (before[3], after[3]))
        return self._layers.ZeroPadding2D(around, **self._named(node))(self._value(node.input[0]))

    def resize(self, node: Any) -> Any:
        x, shape = self._value(node.input[0]), self._view.shape(node.output[0])
        exact = attribute(node, "coordinate_transformation_mode", b"half_pixel")
        factors = [] if shape is None else [to / of for to, of in zip(shape[2:], x.shape[1:3], strict=False)]
        whole = len(factors) == 2 and all(one >= 1 and one == int(one) for one in factors)
        if attribute(node, "mode", b"nearest") != b"nearest" or not whole or exact == b"align_corners":
            raise self._refusal(node, "which is not a repetition of pixels")
        return self._layers.UpSampling2D(tuple(map(int, factors)), **self._named(node))(x)


def _same(side: int, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """(before, after): TensorFlow's "same" padding."""
    needed = max(0, (math.ceil(side / stride) - 1) * stride + (window - 1) * dilation + 1 - side)
    return needed // 2, needed - needed // 2


_OPERATORS: dict[str, Callable[[_Twin, Any], Any]] = {
    "Conv": _Twin.conv, "Gemm": _Twin.gemm, "MatMul": _Twin.matmul, "BatchNormalization": _Twin.batch_norm,
    "MaxPool": _Twin.max_pool, "AveragePool": _Twin.average_pool, "GlobalAveragePool": _Twin.mean,
    "ReduceMean": _Twin.mean,
    "Relu": _Twin.activation, "Sigmoid": _Twin.activation, "Tanh": _Twin.activation, "Clip": _Twin.clip,
    "Softmax": _Twin.softmax, "Identity": _Twin.same, "Dropout": _Twin.same,
    "Add": _Twin.merge, "Sub": _Twin.merge, "Mul": _Twin.merge, "Div": _Twin.merge, "Concat": _Twin.concat,
    "Reshape": _Twin.reshape, "Flatten": _Twin.reshape, "Squeeze": _Twin.reshape, "Unsqueeze": _Twin.reshape,
    "Transpose": _Twin.transpose, "Pad": _Twin.pad, "Resize": _Twin.resize,
}  # fmt: skip

_PROBES = 4
_ALIKE_TARGETS = 1e-4
"""Of a tensor's largest magnitude: converters sum in another order."""


def tensor_names(
    network: Network,
    simulation: Simulation,
    values: Sequence[NDArray[Any]],
    workspace: Workspace,
    format: str,  # noqa: A002
    items: NDArray[np.float32],
) -> dict[str, int]:
    """Names in the target's float graph -> places in the network.

    items: [N, ...], N of 4 or more are better.

    Raises CompressError if the answer itself is not found.
    """
    graph = workspace.graph(format)
    probes = items[:: max(1, len(items) // _PROBES)][:_PROBES]
    own = [[np.sort(np.ravel(one)) for one in simulation.values(item[None], values, ())] for item in probes]
    with graph.watch() as watched:
        theirs = [
            {name: np.sort(np.ravel(value)) for name, value in watched.run(arrays).items()}
            for arrays in workspace.feeds(format, [[item[None]] for item in probes])
        ]
    found: dict[str, int] = {}
    for name in theirs[0]:
        for place in range(len(network.nodes)):
            if all(_alike(mine[place], other[name]) for mine, other in zip(own, theirs, strict=True)):
                found[name] = place
                break
    ends = [{output, head} for output, head in zip(network.outputs, network.heads, strict=True)]
    if not all(end & set(found.values()) for end in ends):
        raise CompressError(
            f"the {format} converter makes another network of this model than the one that is trained",
            where=workspace.source.path.name,
            do="Build without compress",
        )
    return found


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.size != other.size:
        return False
    return float(np.abs(one - other).max(initial=0)) <= _ALIKE_TARGETS * max(float(np.abs(one).max(initial=0)), 1e-6)
