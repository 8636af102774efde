"""Split a detector's answer into boxes and scores, so that each has a scale of its own.

    model = split(network, contract)                # outputs "boxes" and "scores" instead of one; the same numbers
    joined = joining(contract, model.output_names)  # how the old answer is made of the new ones, or None

In 8 bits a tensor has one scale: boxes of 0..640 leave a score of 0..1 no step.

Rules:
- columns of the answer are followed back through concatenations, slices, reshapes and elementwise arithmetic to where
  they are made; a convolution or dense layer that makes both is cut in two; what cannot be followed is cut there;
- objectness is multiplied into the scores, as a detector's answer is read; a class beside a score is not split;
- in float the answers are those of the model before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.channels import trace, without
from edgekit_converters.compress.network import Network, free_name
from edgekit_converters.formats.keras_record import JoinedOutput
from edgekit_runtime.contract.spec import Contract, DetectionSpec

_BY_ELEMENT = frozenset({"Activation", "ReLU", "Exp", "Sigmoid", "Tanh", "Relu", "Relu6", "Silu"})
_NOT_LAST = frozenset({"softmax"})
_PRODUCTS = frozenset({"Conv2D", "Dense"})
_SAME = object()
_NUMBERED = frozenset({"Multiply", "Add", "Subtract", "Divide", "TrueDivide", "Minimum", "Maximum"})


def can_split(contract: Contract) -> bool:
    """Whether one output holds boxes and scores."""
    spec = contract.detection
    return (
        spec is not None
        and len(contract.outputs) == 1
        and spec.row in ("box scores", "box objectness scores")
        and not (spec.suppressed or spec.count)
        and (spec.row == "box scores" or spec.activation == "none")
    )


def column_axis(shape: tuple[int, ...], spec: DetectionSpec) -> int:
    """The axis of an answer without its batch along which a box's numbers and scores are."""
    if spec.candidates == "first":
        return len(shape) - 1
    return next(axis for axis, size in enumerate(shape) if size != 1)


def joining(contract: Contract, names: Sequence[str]) -> JoinedOutput | None:
    """How the old answer is made of the new ones; None if the scores are not part of it.

    contract: of the model before.
    names: of the new outputs.
    """
    spec, (output,) = contract.detection, contract.outputs
    assert spec is not None
    if spec.row != "box scores":
        return None
    return JoinedOutput(output.name, tuple(names), column_axis(tuple(output.shape), spec))


def split_answer(
    answer: Mapping[str, NDArray[Any]], contract: Contract, names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """An answer of the model before, as the new model gives it.

    contract, names: as of `joining`.
    """
    spec, (output,) = contract.detection, contract.outputs
    assert spec is not None
    value = np.asarray(answer[output.name])
    axis = column_axis(value.shape, spec)
    boxes, rest = np.split(value, [4], axis)
    if spec.row == "box objectness scores":
        sure, rest = np.split(rest, [1], axis)
        rest = sure * rest
    return dict(zip(names, (boxes, rest), strict=True))


def detection_keys(contract: Contract, names: Sequence[str]) -> dict[str, Any]:
    """Changed keys of `[detection]` in a contract file. contract, names: as of `joining`."""
    spec = contract.detection
    assert spec is not None
    return {"boxes": names[0], "row": "box", "scores": names[1], "candidates": spec.candidates}


def split(network: Network, contract: Contract) -> Any:
    """A Keras model of two outputs. contract: of the model as it is; `can_split` holds."""
    import keras

    spec = contract.detection
    assert spec is not None
    model = without(network, trace(network), np.zeros(0, np.int64))
    answer = model.outputs[0]
    axis = 1 + column_axis(tuple(answer.shape[1:]), spec)
    cut = _Slicer({operation.name for operation in model.operations})
    boxes = cut(answer, axis, 0, 4)
    if spec.row == "box objectness scores":
        sure, rest = cut(answer, axis, 4, 5), cut(answer, axis, 5, int(answer.shape[axis]))
        scores = keras.layers.Multiply(name=cut.unique("sure"))([rest, sure])
    else:
        scores = cut(answer, axis, 4, int(answer.shape[axis]))
    return keras.Model(model.input, [cut.named(boxes, "boxes"), cut.named(scores, "scores")])


class _Slicer:
    """names: of the model's layers and of the arithmetic between them."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def named(self, tensor: Any, name: str) -> Any:
        """An output of that name."""
        import keras

        operation = tensor._keras_history.operation
        own = isinstance(operation, keras.layers.Layer) and operation.name == name
        return tensor if own else keras.layers.Identity(name=self.unique(name))(tensor)

    def unique(self, name: str) -> str:
        return free_name(name, self._names)

    def __call__(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        """tensor[..., start:stop, ...] along that axis, made as far back as possible.

        The tensor itself if that is all of it and nothing before it is cut.
        """
        history = tensor._keras_history
        operation = history.operation
        arguments = operation._inbound_nodes[history.node_index].arguments
        whole = start == 0 and stop == int(tensor.shape[axis])
        found = None
        if not (whole and type(operation).__name__ in _PRODUCTS):
            found = self._followed(operation, arguments, axis, start, stop, len(tensor.shape))
        if found is None or (whole and found is _SAME):
            return tensor if whole else self._sliced(tensor, axis, start, stop)
        return found

    def _sliced(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        """With a new name: Keras numbers names in each process, so a loaded model may have the same."""
        made = tensor[(slice(None),) * axis + (slice(start, stop),)]
        operation = made._keras_history.operation
        operation.name = self.unique(operation.name)
        return made

    def _followed(self, operation: Any, arguments: Any, axis: int, start: int, stop: int, rank: int) -> Any:
        """The slice made before that operation; None if it cannot be, `_SAME` if nothing was cut."""
        kind, sources = type(operation).__name__, arguments.keras_tensors
        if kind == "Concatenate":
            return self._of_parts(operation, sources, axis, start, stop)
        if kind == "Multiply" and len(sources) == 2 and sources[0] is sources[1]:
            part = self(sources[0], axis, start, stop)
            again, pair = self._again(operation), [part, part]
            return _SAME if part is sources[0] else again(pair) if again is not operation else again(*pair)
        if len(sources) != 1:
            return None
        (source,) = sources
        if kind == "GetItem":
            return self._of_slice(arguments.args[1], source, axis, start, stop)
        if kind in ("Reshape", "Permute"):
            return self._of_moved(operation, kind, source, axis, start, stop, rank)
        if kind in _PRODUCTS:
            return self._of_product(operation, source, axis, start, stop, rank)
        if kind == "Activation" and operation.activation.__name__ in _NOT_LAST:
            return None
        if kind in _BY_ELEMENT:
            part = self(source, axis, start, stop)
            return _SAME if part is source else self._again(operation)(part)
        if kind == "Rescaling":
            return self._of_rescaling(operation, source, axis, start, stop, rank)
        if kind in _NUMBERED:
            return self._of_numbers(operation, arguments, source, axis, start, stop, rank)
        return None

    def _of_parts(self, operation: Any, sources: Any, axis: int, start: int, stop: int) -> Any:
        if operation.axis % len(sources[0].shape) != axis:
            parts = [self(one, axis, start, stop) for one in sources]
        else:
            parts, before = [], 0
            for one in sources:
                size = int(one.shape[axis])
                low, high = max(start - before, 0), min(stop - before, size)
                if low < high:
                    parts.append(self(one, axis, low, high))
                before += size
        if len(parts) == len(sources) and all(one is other for one, other in zip(parts, sources, strict=True)):
            return _SAME
        return parts[0] if len(parts) == 1 else self._again(operation)(parts)

    def _of_rescaling(self, operation: Any, source: Any, axis: int, start: int, stop: int, rank: int) -> Any:
        part = self(source, axis, start, stop)
        if part is source:
            return _SAME
        changed = {}
        for name in ("scale", "offset"):
            number = _part(np.asarray(getattr(operation, name), np.float32), axis, start, stop, rank)
            changed[name] = number.tolist() if number.size > 1 else float(number.reshape(-1)[0])
        return self._again(operation, **changed)(part)

    def _of_slice(self, key: Any, source: Any, axis: int, start: int, stop: int) -> Any:
        """A slice of the same axis, all others whole."""
        keys = list(key) if isinstance(key, (tuple, list)) else [key]
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys[at : at + 1] = [slice(None)] * (len(source.shape) - len(keys) + 1)
        keys += [slice(None)] * (len(source.shape) - len(keys))
        whole = all(one == slice(None) for place, one in enumerate(keys) if place != axis)
        own = keys[axis]
        if not whole or not isinstance(own, slice) or own.step not in (None, 1):
            return None
        first = own.indices(int(source.shape[axis]))[0]
        return self(source, axis, first + start, first + stop)

    def _of_moved(self, operation: Any, kind: str, source: Any, axis: int, start: int, stop: int, rank: int) -> Any:
        if kind == "Permute":
            part = self(source, operation.dims[axis - 1], start, stop)
            return _SAME if part is source else self._again(operation)(part)
        last, columns = len(source.shape) - 1, int(operation.target_shape[-1])
        if axis != rank - 1 or int(source.shape[last]) != columns:
            return None
        part = self(source, last, start, stop)
        if part is source:
            return _SAME
        return self._again(operation, target_shape=[*operation.target_shape[:-1], stop - start])(part)

    def _of_product(self, operation: Any, source: Any, axis: int, start: int, stop: int, rank: int) -> Any:
        """A layer that makes only these channels; None if its activation reads all of them."""
        if axis != rank - 1 or operation.activation.__name__ in _NOT_LAST:
            return None
        size = "filters" if type(operation).__name__ == "Conv2D" else "units"
        layer = self._again(operation, **{size: stop - start})
        made = layer(source)
        layer.set_weights([np.asarray(one)[..., start:stop] for one in operation.get_weights()])
        return made

    def _of_numbers(
        self, operation: Any, arguments: Any, source: Any, axis: int, start: int, stop: int, rank: int
    ) -> Any:
        """Arithmetic with a constant."""
        import keras

        given = list(arguments.args)
        if len(given) != 2 or arguments.kwargs:
            return None
        place = next(at for at, one in enumerate(given) if isinstance(one, keras.KerasTensor))
        number = np.asarray(keras.ops.convert_to_numpy(given[1 - place]), np.float32)
        if int(source.shape[axis]) == 1 or len(source.shape) != rank:
            return None
        part = self(source, axis, start, stop)
        if part is source:
            return _SAME
        given[place], given[1 - place] = part, _part(number, axis, start, stop, rank)
        if given[1 - place].size == 1:
            given[1 - place] = float(given[1 - place].reshape(-1)[0])
        elif given[1 - place].ndim == rank and axis == rank - 1:
            # TensorFlow moves a bias from a convolution onto such a constant, and fails where that has one channel
            given[1 - place] = np.repeat(given[1 - place], (stop - start) // given[1 - place].shape[-1], -1)
        return operation(*given)

    def _again(self, operation: Any, **changed: Any) -> Any:
        """The same layer under a new name; stateless arithmetic as it is."""
        import keras

        if not isinstance(operation, keras.layers.Layer):
            return operation
        config = operation.get_config() | changed | {"name": self.unique(operation.name)}
        return type(operation).from_config(config)


def _part(number: NDArray[np.float32], axis: int, start: int, stop: int, rank: int) -> NDArray[np.float32]:
    """Of a constant that is broadcast to that rank."""
    along = axis - (rank - number.ndim)
    if along < 0 or number.shape[along] == 1:
        return number
    return np.take(number, np.arange(start, stop), along)
