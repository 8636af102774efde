"""Requests with doubtful answers, for the builder (`TelemetryOptions(samples=)`).

    doubts = Doubts(keeper, journey)
    doubts.close()

Rules:
- an answer is doubtful if its two best classes are less than MARGIN apart, if a host or a shadow decides otherwise, and
  one in DRIFT_EVERY while scores drift;
- the outputs that are kept are those that the caller got.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.adapt import softmax
from edgekit_runtime.serving.journey import Journey
from edgekit_runtime.serving.request import Answer, Outputs
from edgekit_runtime.serving.tap import tap
from edgekit_runtime.telemetry.samples import SampleKeeper

MARGIN = 0.1
DRIFT_EVERY, LATER_EVERY = 100, 20
"""One request of so many is looked at while scores drift; of those that are asked for with `submit` or `apredict`."""


class Doubts:
    def __init__(self, keeper: SampleKeeper, journey: Journey) -> None:
        self._keeper, self._journey, self._draw = keeper, journey, random.Random()
        journey.doubted = self._doubted
        tap(journey).add(self)

    def close(self) -> None:
        self._journey.doubted = None
        tap(self._journey).remove(self)

    def wants(self, answer: Answer | None) -> bool:
        if answer is None:
            return self._draw.random() < 1 / LATER_EVERY and self._keeper.open
        return bool(self._why(answer.outputs)) and self._keeper.open

    def take(self, copied: dict[str, Any], answer: Answer, budget_ms: float | None) -> None:
        if why := self._why(answer.outputs):
            self._doubted(copied, answer.outputs, why)

    def _why(self, outputs: Outputs) -> str:
        contract = self._journey.contract
        if contract.task == "classification" and is_close(outputs[contract.outputs[0].name], contract.scores):
            return "low-margin"
        return "drift" if self._keeper.drifting and self._draw.random() < 1 / DRIFT_EVERY else ""

    def _doubted(self, given: Mapping[str, Any], outputs: Outputs, why: str) -> None:
        """given: inputs that stay as they are, decoded or not."""
        self._keeper.offer(lambda: self._journey.intake.decode(given)[0], outputs, why)


def is_close(scores: NDArray[Any], kind: str | None) -> bool:
    """Whether the two best probabilities are less than MARGIN apart. kind: as `contract.scores`."""
    flat = scores.reshape(-1).astype(np.float64)
    if flat.size < 2:
        return False
    if kind == "logits":
        flat = softmax(flat)
    second, best = np.partition(flat, -2)[-2:]
    return bool(best - second < MARGIN)
