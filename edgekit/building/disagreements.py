"""Items that an artifact answers otherwise than the original: what was answered, and a picture of the item.

    watcher = Watcher(reference, contract)
    compare(reference, artifact, evaluation, progress, watcher)
    shown(watcher.differing, dataset, contract)       # [{"item", "image", "original", "artifact", "truth"}]

Rules: a classifier's items are those whose best class differs, the ones that the original was surest of first; pictures are
small, and come from the evaluation set's own pixels.
"""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration import Dataset
from edgekit_converters.errors import CalibrationError
from edgekit_converters.fidelity import Reference
from edgekit_runtime.contract import Contract
from edgekit_runtime.contract.finish import top
from edgekit_runtime.contract.kinds import pictures

__all__ = ["MOST", "Watcher", "shown"]

MOST = 24
_THUMBNAIL = 96  # pixels a side, at most


class Watcher:
    """Called with each item's index and the artifact's answer; `differing` is what a report keeps of them."""

    def __init__(self, reference: Reference, contract: Contract) -> None:
        self._reference, self._contract = reference, contract
        self._found: list[dict[str, Any]] = []

    def __call__(self, index: int, answer: Mapping[str, NDArray[Any]]) -> None:
        if self._reference.best is None:
            return
        name = self._contract.outputs[0].name
        original, artifact = self._reference.outputs[index][name].reshape(-1), answer[name].reshape(-1)
        if original.size != artifact.size or int(np.argmax(artifact)) == self._reference.best[index]:
            return
        labels = self._reference.labels
        truth = labels[index] if labels is not None else None
        self._found.append(
            {
                "index": index,
                "original": self._best(original),
                "artifact": self._best(artifact),
                "truth": None if truth is None or isinstance(truth, np.ndarray) else self._name(int(truth)),
            }
        )

    @property
    def differing(self) -> list[dict[str, Any]]:
        """At most `MOST`."""
        return sorted(self._found, key=lambda item: (-item["original"]["score"], item["index"]))[:MOST]

    def _best(self, values: NDArray[Any]) -> dict[str, Any]:
        """As `Answer.top` gives it to an application, so that logits are shown as the probabilities that they stand for."""
        best = top({self._contract.outputs[0].name: values}, self._contract, 1)[0]
        return {
            "index": best.index,
            "label": best.label if self._contract.labels else None,
            "score": best.score if np.isfinite(best.score) else 0.0,
        }

    def _name(self, index: int) -> str:
        labels = self._contract.labels
        return labels[index] if labels and 0 <= index < len(labels) else str(index)


def shown(differing: Sequence[Mapping[str, Any]], dataset: Dataset, contract: Contract) -> list[dict[str, Any]]:
    """As the report has them: `item` says where it came from, `image` is a data URI of a small PNG, or None."""
    by_index = {int(entry["index"]): entry for entry in differing}
    told = []
    with contextlib.suppress(CalibrationError):  # a set that has changed since: the report does without
        for index, example in zip(sorted(by_index), dataset.pick(sorted(by_index)), strict=True):
            entry = by_index[index]
            pixels = next(iter(example.inputs.values()))
            told.append(
                {
                    "item": example.origin,
                    "image": _thumbnail(pixels) if pictures(contract.inputs[:1]) else None,
                    "original": entry["original"],
                    "artifact": entry["artifact"],
                    "truth": entry.get("truth"),
                }
            )
    order = {int(entry["index"]): place for place, entry in enumerate(differing)}
    places = [order[index] for index in sorted(by_index)]
    return [entry for _, entry in sorted(zip(places, told, strict=False), key=lambda pair: pair[0])]


def _thumbnail(pixels: NDArray[Any]) -> str | None:
    """None where Pillow is not installed, or these are no pixels of a picture."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4):
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    data = io.BytesIO()
    picture.save(data, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
