"""State that goes in and comes out: what an artifact's first run is given, and what each run hands to the next.

    carry = Carry(contract, artifact.inputs, artifact.outputs)
    state = carry.begin()                              # the contract's initial values, as this artifact takes them
    outputs = engine.run(carry.feed(tensors, state))   # tensors: the caller's, in the artifact's order
    state = carry.after(outputs)

Rules:
- where the output has the dtype, scale, zero-point and shape of the input, its very bytes go on: nothing is rounded;
- where 8 bits differ in scale or zero-point, every value is requantized, once, by a table of the 256 there are: half to
  even, clipped at the input's limits;
- otherwise it goes through real numbers: dequantized, turned where the artifact's input has another layout, quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.finish import dequantize
from edgekit_runtime.contract.spec import Carried, Contract, InputContract
from edgekit_runtime.errors import ContractError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["Carry", "State"]

State = tuple[NDArray[Any], ...]
"""One tensor a pair, with a batch axis of 1, as the artifact takes it."""

Step = Callable[[NDArray[Any]], NDArray[Any]]


class Carry:
    """Pure: it holds plans and no state. A contract that carries nothing has an empty state."""

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
                self._first.append(_initial(pair, spec, tensor))
                self._next.append((place, _step(spec, outputs[place], tensor)))

    def begin(self) -> State:
        """What the first run is given. Fresh arrays: an engine may keep them."""
        return tuple(array.copy() for array in self._first)

    def feed(self, tensors: Sequence[NDArray[Any]], state: State) -> list[NDArray[Any]]:
        """All inputs in the artifact's order. tensors: those of `asked`, in that order."""
        given, carried = iter(tensors), iter(state)
        return [next(carried) if is_state else next(given) for is_state in self._order]

    def after(self, outputs: Sequence[NDArray[Any]]) -> State:
        """What the run after this one is given. outputs: all of the engine's, with their batch axis of 1."""
        return tuple(step(outputs[place]) for place, step in self._next)


def _initial(pair: Carried, spec: InputContract, tensor: TensorSpec) -> NDArray[Any]:
    values = np.asarray(pair.initial or (0.0,), np.float64)
    item = np.broadcast_to(values, spec.shape) if values.size == 1 else values.reshape(spec.shape)
    return Adapter(spec, tensor)(np.ascontiguousarray(item, spec.dtype))


def _step(spec: InputContract, made: TensorSpec, taken: TensorSpec) -> Step:
    same_shape = tuple(made.shape[1:]) == tuple(taken.shape[1:])
    if same_shape and made.dtype == taken.dtype and made.quantization == taken.quantization:
        return _same
    if same_shape and _byte(made) and _byte(taken):
        every = np.arange(256, dtype=np.uint8).view(made.dtype)
        table = _through_real(spec, made, taken, every)
        return lambda value: table.take(value.view(np.uint8))
    adapt, dtype = Adapter(spec, taken), np.dtype(spec.dtype)
    return lambda value: adapt(dequantize(value[0], made, dtype).reshape(spec.shape))


def _same(value: NDArray[Any]) -> NDArray[Any]:
    return value


def _byte(tensor: TensorSpec) -> bool:
    return tensor.quantization is not None and np.dtype(tensor.dtype).itemsize == 1


def _through_real(spec: InputContract, made: TensorSpec, taken: TensorSpec, values: NDArray[Any]) -> NDArray[Any]:
    """The 256 values of `made` as `taken` has them."""
    real = dequantize(values, made, np.dtype(np.float32))
    flat = InputContract(spec.name, real.shape, "float32")
    tensor = TensorSpec(taken.name, taken.tensor, taken.dtype, (1, *real.shape), None, taken.quantization)
    table: NDArray[Any] = Adapter(flat, tensor)(real)[0]
    return table
