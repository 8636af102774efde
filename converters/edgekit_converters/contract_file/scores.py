"""Probabilities or logits: told by what the model really answers.

scores = detect_scores(np.array([[0.1, 0.9], [0.7, 0.3]]))       # "probabilities"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgekit_runtime.contract.spec import Contract

__all__ = ["detect_scores", "with_scores"]

_ENOUGH = 64  # answers looked at: one logit row in them is enough to tell


def detect_scores(rows: ArrayLike) -> Literal["probabilities", "logits"]:
    """rows: [N, C] answers of a classifier, N >= 1. Probabilities when every row is non-negative and sums to 1 +- 1e-3."""
    table = np.asarray(rows, np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"expected [N, C] rows, got shape {table.shape}")
    likely = bool((table >= 0).all() and (np.abs(table.sum(axis=1) - 1) <= 1e-3).all())
    return "probabilities" if likely else "logits"


def with_scores(contract: Contract, answers: Sequence[Mapping[str, NDArray[Any]]]) -> Contract:
    """The contract with `scores` filled in from the original's answers (`Reference.outputs`), where a person left it out."""
    if contract.task != "classification" or contract.scores is not None:
        return contract
    name = contract.outputs[0].name
    rows = np.stack([np.asarray(answer[name], np.float64).reshape(-1) for answer in answers[:_ENOUGH]])
    return replace(contract, scores=detect_scores(rows))
