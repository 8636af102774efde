"""How an artifact's answers compare with the original's, by the task of the case.

    score("classification", folder, outputs) -> {"items": 500, "agree": 478, "agreement": 0.956, "ci95": [...], ...}

- classification: agreement is the share of items with the same best class; the metric is accuracy where there are
  labels;
- detection: agreement is the share of scenes with the same boxes over 0.5 sure; the metric is mAP at IoU 0.5;
- description: agreement is the share of items whose vector (the largest output) has the same nearest neighbour among
  the original's vectors of the other people; no metric. `cosine` is, throughout, the mean over items of the cosine of
  the first (the largest) output, `cosine_worst` its least. The interval of a share is Wilson's (1927) at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from detection import boxes, mean_average_precision, says_the_same
from numpy.typing import NDArray

_Array = NDArray[Any]


def reference(folder: Path) -> list[_Array]:
    """The original's outputs, the largest first."""
    return [np.load(path) for path in sorted(folder.glob("reference_*.npy"))]


def score(task: str, folder: Path, outputs: Sequence[_Array]) -> dict[str, Any]:
    wanted = reference(folder)
    with np.load(folder / "truth.npz") as stored:
        truth = dict(stored)
    flat = [[array.reshape(len(array), -1) for array in arrays] for arrays in (wanted, outputs)]
    if [array.shape for array in flat[0]] != [array.shape for array in flat[1]]:
        raise ValueError(f"outputs {[a.shape for a in flat[1]]}; the original has {[a.shape for a in flat[0]]}")
    values = {"classification": _classification, "detection": _detection, "description": _description}[task](
        wanted, outputs, truth
    )
    cosines = _cosines(flat[0][0], flat[1][0])
    return values | {"cosine": float(cosines.mean()), "cosine_worst": float(cosines.min())}


def wilson(hits: int, items: int, z: float = 1.959963984540054) -> tuple[float, float]:
    share, square = hits / items, z * z / items
    middle = (share + square / 2) / (1 + square)
    spread = z / (1 + square) * math.sqrt(share * (1 - share) / items + square / items / 4)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def _agreement(same: _Array) -> dict[str, Any]:
    hits, items = int(same.sum()), len(same)
    return {"items": items, "agree": hits, "agreement": hits / items, "ci95": list(wilson(hits, items))}


def _classification(wanted: Sequence[_Array], outputs: Sequence[_Array], truth: dict[str, _Array]) -> dict[str, Any]:
    best, original = (np.nan_to_num(arrays[0]).reshape(len(arrays[0]), -1).argmax(1) for arrays in (outputs, wanted))
    values = _agreement(best == original)
    if "sure" in truth:
        values["sure"] = _agreement((best == original)[truth["sure"]])
    if "labels" in truth:
        known = truth["labels"] >= 0
        right = [float((classes == truth["labels"])[known].mean()) for classes in (original, best)]
        values |= {"metric": "accuracy", "metric_items": int(known.sum()), "original": right[0], "artifact": right[1]}
    return values


def _detection(wanted: Sequence[_Array], outputs: Sequence[_Array], truth: dict[str, _Array]) -> dict[str, Any]:
    truths = [truth["boxes"][truth["boxes"][:, 0] == i, 1:] for i in range(len(wanted[0]))]
    original, found = ([boxes(raw) for raw in np.nan_to_num(arrays[0])] for arrays in (wanted, outputs))
    same = np.array([says_the_same(one, other) for one, other in zip(found, original, strict=True)])
    maps = [mean_average_precision(rows, truths) for rows in (original, found)]
    return _agreement(same) | {"metric": "mAP50", "metric_items": len(truths), "original": maps[0], "artifact": maps[1]}


def _description(wanted: Sequence[_Array], outputs: Sequence[_Array], truth: dict[str, _Array]) -> dict[str, Any]:
    gallery, query, who = _unit(wanted[0]), _unit(outputs[0]), truth["who"]
    others = who[:, None] != who[None]
    nearest, original = (np.where(others, rows @ gallery.T, -2).argmax(1) for rows in (query, gallery))
    return _agreement(nearest == original)


def _unit(array: _Array) -> _Array:
    rows = np.nan_to_num(array.reshape(len(array), -1)).astype(np.float64)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30))


def _cosines(one: _Array, other: _Array) -> _Array:
    one, other = np.nan_to_num(one).astype(np.float64), np.nan_to_num(other).astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(1) / np.maximum(lengths, 1e-30))
