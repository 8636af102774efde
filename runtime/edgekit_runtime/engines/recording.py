"""An engine that keeps the inputs of its first run and the time of its runs.
A real example to measure with.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.engines.registry import Engine


class RecordingEngine(Engine):
    """Stands in front of another engine.

    given: copies of the first run's inputs; first_s: how long it took.
    last_s: how long the last one took; runs: how many there were.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.info, self.inputs, self.outputs = engine.info, engine.inputs, engine.outputs
        self.given: list[NDArray[Any]] = []
        self.first_s = self.last_s = 0.0
        self.runs = 0

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        start = perf_counter()
        outputs = self._engine.run(inputs)
        self.last_s = perf_counter() - start
        self.runs += 1
        if not self.given:
            self.first_s = self.last_s
            self.given = [np.array(array) for array in inputs]
        return outputs

    def reset(self) -> None:
        self._engine.reset()

    def close(self) -> None:
        self._engine.close()
