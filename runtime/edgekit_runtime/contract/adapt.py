"""An artifact's tensors: what it takes, the state between two runs, and what it gives.

    adapter = Adapter(contract.inputs[0], artifact.inputs[0])
    tensor = adapter(canonical)                        # batch axis added: shape (1, ...)
    carry = Carry(contract, artifact.inputs, artifact.outputs)
    state = carry.begin()                              # the contract's initial values, as this artifact takes them
    raw = engine.run(carry.feed(tensors, state))       # tensors: the caller's, in the artifact's order
    state = carry.after(raw)
    outputs = Finisher(contract, artifact.outputs)(raw)    # {"probs": float32 [1000]}, dequantized, read-only
    top(outputs, contract, 3)                          # [Prediction("tabby", 281, 0.83), ...]

Rules (the way is chosen once, from the specs):
- a tensor with the artifact's dtype and shape is taken as it is; for uint8 pixels see `pixels`;
- a float tensor into int8: scale, round half to even, clip. A tensor ready for another artifact becomes, by its scale
  and zero-point, what the original took first;
- a state with the input's dtype, scale, zero-point and shape is passed on as its bytes;
- a state whose 8 bits differ in scale or zero-point is requantized once, by a table of 256 values; any other state goes
  through real numbers and the input's layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.contract.pixels import Step, quantize
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, TensorSpec
from edgekit_runtime.system.errors import ContractError, InputError
from edgekit_runtime.system.records import record

CLIP_EVERY = 16
"""One request in so many has its tensors checked for clipped values."""
CLIP_SAMPLE = 2048
"""About so many values are checked."""
_UINT8 = np.dtype(np.uint8)
_least, _most = np.minimum.reduce, np.maximum.reduce  # those of an array call Python
Shortcut = Callable[[NDArray[Any]], "NDArray[Any] | None"]
State = tuple[NDArray[Any], ...]
"""One tensor a carried pair, as the artifact takes it, with a batch axis of 1."""


class Adapter:
    """Callable: one canonical item (no batch axis) in, one tensor with a batch axis of 1 out.

    An image input of canonical shape [H, W, C] takes uint8 pixels, or floats as the original model took them. Any input
    takes the dtype and item shape of `ready`, the tensor whose form a caller may pass (None: this artifact's own)."""

    def __init__(self, contract: InputContract, tensor: TensorSpec, ready: TensorSpec | None = None) -> None:
        self._contract = contract
        self._tensor = tensor
        same = ready is None or (ready.dtype, ready.quantization) == (tensor.dtype, tensor.quantization)
        self._foreign = None if same or ready is None or ready.quantization is None else ready
        self._dtype = np.dtype(tensor.dtype)
        self._item_shape = tuple(tensor.shape[1:])
        kind = kind_of(contract)
        self._axes = kind.axes(contract, tensor, fits=self._fits(contract.shape))
        self._from_pixels: Step | None
        self._way, self._from_pixels = kind.step(contract, tensor)
        self._passes = same if tensor.quantization is not None else self._axes is None
        self._limits = _limits(tensor)
        self._stride = _stride(math.prod(self._item_shape))
        if (q := tensor.quantization) is not None:  # what becomes the least and the greatest of its integers
            limits = np.iinfo(self._dtype)
            self._range = (limits.min - q.zero_point) * q.scale, (limits.max - q.zero_point) * q.scale

    @property
    def way(self) -> str:
        """How pixels are converted: same, xor, affine, table, float, or cast."""
        return self._way

    def __call__(self, item: NDArray[Any]) -> NDArray[Any]:
        if self._from_pixels is not None and item.dtype == _UINT8 and item.shape == self._contract.shape:
            return self._from_pixels(item)[None].view(self._dtype)
        if self._foreign is not None and item.dtype == self._foreign.dtype:
            assert self._foreign.quantization is not None  # back to what the original model took
            scale, zero_point = self._foreign.quantization.scale, self._foreign.quantization.zero_point
            item = ((item.astype(np.int64) - zero_point) * scale).astype(np.float32)
        elif item.dtype == self._dtype and self._passes:
            if self._fits(item.shape):
                return item[None]
            if self._tensor.quantization is not None and item.shape == self._contract.shape:
                return self._layout(item)[None]
        if item.shape != self._contract.shape:
            what, do = f"shape {list(item.shape)} does not fit", f"Pass shape {list(self._contract.shape)}"
            raise InputError(what, where=f"input '{self._contract.name}'", do=do)
        return self._layout(self._from_original(item))[None]

    def shortcuts(self, as_it_is: Sequence[np.dtype[Any]]) -> dict[np.dtype[Any], Shortcut]:
        """Dtype -> the shortest way for an array of the contract's shape.
        It gives None for values that the decoder has to look at. as_it_is: dtypes of which it looks at none."""
        ways: dict[np.dtype[Any], Shortcut] = dict.fromkeys(as_it_is, self)
        pixels = self._from_pixels is not None and self._dtype == np.uint8
        if self._dtype in ways and self._passes and not pixels and self._item_shape == self._contract.shape:
            ways[self._dtype] = itemgetter(None)  # what `__call__` does, without a call
        return ways if self._contract.dtype != "float32" else {np.dtype(np.float32): self._from_floats} | ways

    def _from_floats(self, item: NDArray[Any]) -> NDArray[Any] | None:
        least, most = float(_least(item, axis=None)), float(_most(item, axis=None))
        if not -math.inf < least <= most < math.inf:
            return None
        if self._tensor.quantization is None:
            return self(item)
        fits = self._range[0] <= least and most <= self._range[1]
        return self._layout(quantize(item, self._tensor.quantization, self._dtype, fits=fits))[None]

    def clipped(self, tensor: NDArray[Any], sample: int) -> tuple[int, int]:
        """(values at the limits of the artifact's 8 bits, all values), of a sample of a tensor.
        About CLIP_SAMPLE values are checked, starting elsewhere for each `sample` number. (0, 0) without 8-bit numbers.
        A value at a limit need not have been beyond it: dark pictures have pixels of 0."""
        if self._limits is None:
            return 0, 0
        seen = tensor.reshape(-1).view(np.uint8)[sample % self._stride :: self._stride]
        # +1 (int8: +129) carries the two limits, and nothing else, to 0 and 1.
        return int(np.count_nonzero((seen + self._limits) < 2)), seen.size

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self._item_shape) and all(
            w in (-1, h) for w, h in zip(self._item_shape, shape, strict=True)
        )

    def _layout(self, item: NDArray[Any]) -> NDArray[Any]:
        return item if self._axes is None else np.ascontiguousarray(item.transpose(self._axes))

    def _from_original(self, item: NDArray[Any]) -> NDArray[Any]:
        if self._tensor.quantization is not None:
            return quantize(item, self._tensor.quantization, self._dtype)
        if np.issubdtype(self._dtype, np.integer) and not np.issubdtype(item.dtype, np.integer):
            what = f"dtype {item.dtype} cannot become {self._dtype} without losing values"
            raise InputError(what, where=f"input '{self._contract.name}'", do=f"Pass {self._dtype}")
        return np.ascontiguousarray(item, self._dtype)


def adapters(
    contract: Contract, tensors: Sequence[TensorSpec], ready: Sequence[TensorSpec]
) -> list[tuple[str, Adapter]]:
    """Name and adapter of each of `tensors`, in order.
    ready: the tensors whose form callers may pass."""
    forms = {tensor.name: tensor for tensor in ready}
    return [(one.name, Adapter(contract.input(one.name), one, forms.get(one.name))) for one in tensors]


def _limits(tensor: TensorSpec) -> np.uint8 | None:
    """What to add so that a quantized 8-bit tensor's two limits become 0 and 1."""
    if tensor.quantization is None or np.dtype(tensor.dtype).itemsize != 1:
        return None
    return np.uint8(129 if tensor.dtype == "int8" else 1)


def _stride(values: int) -> int:
    """Coprime to the number of values, so that a sample leaves out no channel or column."""
    stride = max(1, values // CLIP_SAMPLE)
    while math.gcd(stride, values) > 1:
        stride += 1
    return stride


class Carry:
    """Plans for carrying states; it holds none.
    A contract that carries nothing has an empty state."""

    def __init__(self, contract: Contract, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        pairs = {pair.input: pair for pair in contract.carried or ()}
        places = {tensor.name: place for place, tensor in enumerate(outputs)}
        missing = [pair.output for pair in pairs.values() if pair.output not in places]
        if missing or not pairs.keys() <= {tensor.name for tensor in inputs}:
            raise ContractError(f"the artifact lacks a tensor of its state: {[*pairs, *missing]}", do="Build it again")
        self.asked = tuple(tensor for tensor in inputs if tensor.name not in pairs)
        self.names = tuple(tensor.name for tensor in inputs if tensor.name in pairs)
        self._order = [tensor.name in pairs for tensor in inputs]
        self._first: list[NDArray[Any]] = []
        self._next: list[tuple[int, Step]] = []
        for tensor in inputs:
            if tensor.name in pairs:
                pair, spec = pairs[tensor.name], contract.input(tensor.name)
                place = places[pair.output]
                values = np.asarray(pair.initial or (0.0,), np.float64)
                item = np.broadcast_to(values, spec.shape) if values.size == 1 else values.reshape(spec.shape)
                self._first.append(Adapter(spec, tensor)(np.ascontiguousarray(item, spec.dtype)))
                self._next.append((place, _step(spec, outputs[place], tensor)))

    def begin(self) -> State:
        """The first run's state. Fresh arrays: an engine may keep them."""
        return tuple(array.copy() for array in self._first)

    def feed(self, tensors: Sequence[NDArray[Any]], state: State) -> list[NDArray[Any]]:
        """All inputs in the artifact's order. tensors: those of `asked`, in that order."""
        given, carried = iter(tensors), iter(state)
        return [next(carried) if is_state else next(given) for is_state in self._order]

    def after(self, outputs: Sequence[NDArray[Any]]) -> State:
        """The next run's state. outputs: all of the engine's, with their batch axis of 1."""
        return tuple(step(outputs[place]) for place, step in self._next)


def _step(spec: InputContract, made: TensorSpec, taken: TensorSpec) -> Step:
    """From the output `made` of one run to the input `taken` of the next."""
    same_shape = tuple(made.shape[1:]) == tuple(taken.shape[1:])
    if same_shape and made.dtype == taken.dtype and made.quantization == taken.quantization:
        return lambda value: value
    if same_shape and _byte(made) and _byte(taken):
        every = np.arange(256, dtype=np.uint8).view(made.dtype)
        real = dequantize(every, made, np.dtype(np.float32))
        flat = InputContract(spec.name, real.shape, "float32")
        tensor = TensorSpec(taken.name, taken.tensor, taken.dtype, (1, *real.shape), None, taken.quantization)
        table: NDArray[Any] = Adapter(flat, tensor)(real)[0]
        return lambda value: table.take(value.view(np.uint8))
    adapt, dtype = Adapter(spec, taken), np.dtype(spec.dtype)
    return lambda value: adapt(dequantize(value[0], made, dtype).reshape(spec.shape))


def _byte(tensor: TensorSpec) -> bool:
    return tensor.quantization is not None and np.dtype(tensor.dtype).itemsize == 1


@record(frozen=True)
class Prediction:
    """One class of a classifier's answer. label: its name, or its index as text without labels."""

    label: str
    index: int
    score: float


class Finisher:
    """Callable: the engine's outputs in, a mapping of contract name to item array out."""

    def __init__(self, contract: Contract, tensors: Sequence[TensorSpec]) -> None:
        names = [tensor.name for tensor in tensors]
        missing = [output.name for output in contract.outputs if output.name not in names]
        if missing:
            raise ContractError(f"the artifact lacks the output '{missing[0]}'", do=f"It has: {', '.join(names)}")
        self._plan = [
            (output.name, names.index(output.name), _reader(tensors[names.index(output.name)], np.dtype(output.dtype)))
            for output in contract.outputs
        ]

    def __call__(
        self, raw: Sequence[NDArray[Any]] | MappingProxyType[str, NDArray[Any]], item: int = 0
    ) -> Mapping[str, NDArray[Any]]:
        """Item `item` of the batch: original dtypes, read-only, no batch axis. Finished ones stay."""
        if isinstance(raw, MappingProxyType):
            return raw
        outputs = {}
        for name, position, way in self._plan:
            value = way(raw[position][item])
            value.setflags(write=False)
            outputs[name] = value.view()  # a view of a locked array cannot be unlocked
        return MappingProxyType(outputs)


def _reader(tensor: TensorSpec, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """`dequantize` for one tensor; for 8 bits a look-up of the 256 possible values."""
    if tensor.quantization is None:
        return partial(np.array, dtype=dtype)
    if np.dtype(tensor.dtype).itemsize != 1:
        return partial(dequantize, tensor=tensor, dtype=dtype)
    every = np.arange(256, dtype=np.uint8).view(tensor.dtype)
    return dequantize(every, tensor, dtype).take  # which counts negative indexes from the end: -1 is byte 255


def dequantize(value: NDArray[Any], tensor: TensorSpec, dtype: np.dtype[Any]) -> NDArray[Any]:
    """real = scale * (quantized - zero_point), as `dtype`; a fresh array."""
    if tensor.quantization is None or not np.issubdtype(value.dtype, np.integer):
        return np.array(value, dtype)
    real = value.astype(np.float32)
    real -= tensor.quantization.zero_point
    real *= np.float32(tensor.quantization.scale)
    return real.astype(dtype, copy=False)


def top(outputs: Mapping[str, NDArray[Any]], contract: Contract, k: int) -> list[Prediction]:
    """The k best classes, best first; logits become probabilities. Ties go to the lower index.
    Raises ContractError unless the task is classification, ValueError unless k is a whole number above 0."""
    if not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r:.40}")
    if contract.task != "classification":
        raise ContractError(f"top() is for classifiers; this model's task is {contract.task}", do="Read answer.outputs")
    scores = np.asarray(outputs[contract.outputs[0].name], np.float32).reshape(-1)
    if contract.scores == "logits":
        scores = softmax(scores)
    best = np.argsort(-scores, kind="stable")[:k]
    labels = contract.labels
    return [Prediction(labels[i] if labels else str(i), int(i), float(scores[i])) for i in best]


def top_score(outputs: Mapping[str, NDArray[Any]], contract: Contract) -> float | None:
    """The best class's probability; None if the model is not a classifier."""
    if contract.task != "classification":
        return None
    scores = np.asarray(outputs[contract.outputs[0].name], np.float32).reshape(-1)
    if scores.size < 2:
        return None
    with np.errstate(all="ignore"):
        best = 1.0 / np.exp(scores - scores.max()).sum() if contract.scores == "logits" else scores.max()
    return float(best)


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Over the last axis, shifted by the maximum so that nothing overflows."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: NDArray[Any] = shifted / shifted.sum(axis=-1, keepdims=True)
    return result


def vector(outputs: Mapping[str, NDArray[Any]], contract: Contract) -> NDArray[np.float32]:
    """The embedding, one axis, read-only.
    Of length 1 if the contract says so, unless it is zero.
    Raises ContractError unless the model's task is embedding."""
    spec = contract.embedding
    if contract.task != "embedding" or spec is None:
        what = f"vector is for models that embed; this model's task is {contract.task}"
        raise ContractError(what, do="Read answer.outputs")
    values = np.array(outputs[spec.output], np.float32).reshape(-1)
    if spec.normalize:
        largest = float(np.abs(values).max(initial=0.0))
        if largest > 0:  # scaled first: squares of the very large and the very small leave the range of a float
            values /= np.float32(largest)
            values /= np.float32(np.linalg.norm(values))
    values.setflags(write=False)
    return values


def taken(output: OutputContract, value: Any, name: str = "", axes: tuple[int, ...] = ()) -> NDArray[Any]:
    """One item's output that a host or a cache computed, checked against the contract.
    Read-only.

    name: its name there. axes: axes of length 1 before the item's.
    Raises ValueError for another shape or kind of numbers, NaN, infinity, and values beyond the contract's dtype."""
    name, dtype, shape = name or output.name, np.dtype(output.dtype), (*axes, *output.shape)
    if not isinstance(value, np.ndarray) or value.shape != shape or not converts(value.dtype, dtype):
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else "nothing"
        raise ValueError(f"output '{name}' came as {got}, not as {output.dtype} {list(shape)}")
    if dtype.kind in "fc" and not np.isfinite(value).all():
        raise ValueError(f"output '{name}' holds NaN or infinity")
    with np.errstate(over="ignore"):
        item: NDArray[Any] = value.reshape(output.shape).astype(dtype, copy=False)
    if item.dtype != value.dtype and not np.isfinite(item).all():
        raise ValueError(f"output '{name}' is too large for {dtype}")
    item.flags.writeable = False
    return item


def converts(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether a dtype can stand for the contract's: any float, or the same integer."""
    return wanted.kind in "biufc" and (given == wanted or given.kind == wanted.kind == "f")
