"""One artifact on one engine, frame after frame.
What a session, the self-test and a build have in common.

    stepper = Stepper(contract, entry.inputs, entry.outputs, engine)
    for frame in frames:
        outputs = stepper.step({"audio": frame})        # named, dequantized, without the states that are carried
    stepper.reset()                                     # the next frame is a first one

Rules: canonical items in (a caller's inputs only), finished outputs out; a frame that fails leaves an explicit state as
it was. A model without state is stepped too: no frame knows of another. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from edgekit_runtime.contract.adapt import Adapter, Carry, Finisher
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines.registry import Engine
from edgekit_runtime.tensors import TensorSpec


class Stepper:
    """engine: its state, where it keeps one, is taken to be fresh."""

    def __init__(
        self, contract: Contract, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], engine: Engine
    ) -> None:
        self._carry = Carry(contract, inputs, outputs)
        self._adapters = [(spec.name, Adapter(contract.input(spec.name), spec)) for spec in self._carry.asked]
        self._finish = Finisher(contract.of_caller, outputs)
        self._engine = engine
        self._inside = contract.state == "internal"
        self._ran = False
        self._state = self._carry.begin()

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """The state tensors of the next frame by contract name, with their batch axis."""
        return dict(zip(self._carry.names, self._state, strict=True))

    def raw(self, items: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """One frame: all of the engine's outputs, as they come. Raises EngineError, InputError."""
        tensors = [adapt(items[name]) for name, adapt in self._adapters]
        self._ran = True
        outputs = self._engine.run(self._carry.feed(tensors, self._state))
        self._state = self._carry.after(outputs)
        return outputs

    def step(self, items: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """One frame: what a caller gets."""
        return self._finish(self.raw(items))

    def reset(self) -> None:
        """The next frame is a first one."""
        self._state = self._carry.begin()
        if self._inside and self._ran:
            self._engine.reset()
        self._ran = False
