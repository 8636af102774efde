"""Classes or just numbers, probabilities or logits: told by what the model really answers.

scores = detect_scores(np.array([[0.1, 0.9], [0.7, 0.3]]))       # "probabilities"
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgekit_converters.calibration.lint import Finding
from edgekit_runtime.contract.spec import Contract

__all__ = ["detect_scores", "settle"]

_ENOUGH = 64  # answers looked at: one logit row in them is enough to tell
_SLACK = 1e-3  # what a sum of rounded numbers may be off
_OTHER = {"probabilities": "logits", "logits": "probabilities"}


def detect_scores(rows: ArrayLike) -> Literal["probabilities", "logits"]:
    """rows: [N, C] answers of a classifier, N >= 1. Probabilities when every row is non-negative and sums to 1 +- 1e-3."""
    table = np.asarray(rows, np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"expected [N, C] rows, got shape {table.shape}")
    likely = bool((table >= 0).all() and (np.abs(table.sum(axis=1) - 1) <= _SLACK).all())
    return "probabilities" if likely else "logits"


def settle(
    contract: Contract, answers: Sequence[Mapping[str, NDArray[Any]]], stated: Collection[str] = ()
) -> tuple[Contract, tuple[Finding, ...]]:
    """What a person left out, filled in from the original's answers (`Reference.outputs`), and a note on each guess.

    What a person stated stays, with a warning (`scores-normalised`) where the answers say otherwise: scores that softmax
    would be taken of twice, or never.

    stated: the keys of the contract file. A model whose task nobody stated is a classifier if its answers may be scores of
    classes that exclude each other; values that all lie in 0..1 without summing to 1 are not, nor are vectors of length 1, and
    then the task is raw.
    """
    if contract.task != "classification" or (contract.scores is not None and not answers):
        return contract, ()
    name = contract.caller_outputs[0].name
    rows = np.stack([np.asarray(answer[name], np.float64).reshape(-1) for answer in answers[:_ENOUGH]])
    if contract.scores is not None:
        return contract, _doubted(contract.scores, name, rows)
    scores = detect_scores(rows)
    if not {"task", "labels"}.isdisjoint(stated):
        do = f'If that is wrong, write scores = "{_OTHER[scores]}" in the contract file'
        note = Finding("guessed-scores", "note", f"the output '{name}' is taken for {scores}, by what it answered", do)
        return replace(contract, scores=scores), (note,)
    if scores == "logits" and _unit_vectors(rows):
        what = f"the task is taken for raw: '{name}' answers vectors of length 1, as embeddings are"
        do = 'Write task = "embedding" in the contract file; or task = "classification", where they are scores of classes'
        return replace(contract, task="raw"), (Finding("guessed-task", "note", what, do),)
    if not rows.any():
        what = f"the task is taken for raw: '{name}' answers zeros only, which tells nothing of scores"
        do = "Check that the items are what the model takes, in its units; the task may be stated in the contract file"
        return replace(contract, task="raw"), (Finding("guessed-task", "note", what, do),)
    if scores == "logits" and (rows >= 0).all() and (rows <= 1).all():
        what = f"the task is taken for raw: '{name}' answers values from 0 to 1 that do not sum to 1, as no classifier's do"
        do = 'Where they are scores of classes, write task = "classification" in the contract file'
        return replace(contract, task="raw"), (Finding("guessed-task", "note", what, do),)
    what = f"the task is taken for classification, and '{name}' for {scores}, by its shape and what it answered"
    do = f'Write task = "classification" and scores = "{scores}" in the contract file, or task = "raw"'
    return replace(contract, scores=scores), (Finding("guessed-task", "note", what, do),)


def _unit_vectors(rows: NDArray[np.float64]) -> bool:
    """Two rows at least: one may have that length by chance."""
    return len(rows) > 1 and bool((np.abs(np.linalg.norm(rows, axis=1) - 1) <= _SLACK).all())


def _doubted(stated: Literal["probabilities", "logits"], name: str, rows: NDArray[np.float64]) -> tuple[Finding, ...]:
    """rows: [N, C], the answers of the output that is called `name`."""
    if stated == "logits" and detect_scores(rows) == "probabilities":
        what = f"the contract file says that '{name}' answers logits, but its values lie in 0..1 and sum to 1"
        why = "they are probabilities already, and softmax of them is nearly flat"
    elif stated == "probabilities" and not ((rows >= -_SLACK) & (rows <= 1 + _SLACK)).all():
        what = f"the contract file says that '{name}' answers probabilities, but its values are {_span(rows)}"
        why = "nothing makes probabilities of them"
    else:
        return ()
    do = f'If they are {_OTHER[stated]}, write scores = "{_OTHER[stated]}" in the contract file'
    return (Finding("scores-normalised", "warning", f"{what}: {why}", do),)


def _span(rows: NDArray[np.float64]) -> str:
    return f"from {rows.min():.3g} to {rows.max():.3g}"
