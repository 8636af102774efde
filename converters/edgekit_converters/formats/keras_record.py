"""What training learnt, in a member of the `.keras` file: each target's ranges, the steps.

    data = with_record(path.read_bytes(), Record(ranges={"tflite": {"conv": (0.0, 6.0)}}))
    plan = learnt_plan(path, graph)                     # QuantizationPlan(fixed_ranges=...), None for other files

Rules: in the archive the record cannot be lost or paired with another model, and the model's digest covers it; Keras
does not read it. A range is under the name that the target's float graph gives its tensor.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.graph import Graph
from edgekit_converters.recipe.artifact import QuantizationPlan
from edgekit_converters.recipe.conversion_errors import ConversionError, SourceError
from edgekit_runtime.system.strict_json import from_json, load_json, to_json

MEMBER = "edgekit.json"
"""Name of the record in the archive."""
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class JoinedOutput:
    """How to join split outputs into the original's one.
    output: its name.
    parts: the outputs that it is made of, in order.
    axis: along which, of an item's answer."""

    output: str
    parts: tuple[str, ...]
    axis: int

    def __call__(self, answer: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {self.output: np.concatenate([answer[name] for name in self.parts], self.axis)}


@dataclass(frozen=True)
class Record:
    """A `.keras` file's record of the training that made it.
    steps: what was done and measured, JSON.
    ranges: format -> tensor of its float graph -> (low, high).
    key: of all that the result follows from.
    joined: the outputs for a metric function written for the original, None as they are."""

    steps: tuple[dict[str, Any], ...] = ()
    ranges: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    key: str = ""
    joined: JoinedOutput | None = None


def with_record(data: bytes, record: Record) -> bytes:
    """Write the record into a `.keras` file's bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            if info.filename != MEMBER:
                new.writestr(zipfile.ZipInfo(info.filename), old.read(info), zipfile.ZIP_DEFLATED)
        text = json.dumps(to_json(record), sort_keys=True, separators=(",", ":"))
        new.writestr(zipfile.ZipInfo(MEMBER), text, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def read_record(path: Path) -> Record | None:
    """Read a file's record, or None. Raises SourceError for a damaged one."""
    if path.suffix != ".keras" or not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if MEMBER not in archive.namelist():
                return None
            if archive.getinfo(MEMBER).file_size > _MOST_BYTES:
                raise ValueError("it is larger than 16 MiB")
            return from_json(Record, load_json(archive.read(MEMBER)), MEMBER)
    except Exception as error:  # zipfile and zlib raise a dozen unrelated types on a damaged archive
        what = f"its {MEMBER}, which `edgekit compress` writes, cannot be read: {error}"
        raise SourceError(what, where=str(path), do="Run edgekit compress again") from error


def learnt_plan(path: Path, graph: Graph) -> QuantizationPlan | None:
    """Return the plan with the ranges that the model was trained for, or None.
    Its weights stay as they are. Raises ConversionError if the graph, made by another version of the tools, has no
    tensor of such a name."""
    record = read_record(path)
    ranges = record.ranges.get(graph.format) if record is not None else None
    if not ranges:
        return None
    missing = sorted(set(ranges) - set(graph.tensors))
    if missing:
        what = f"the model was trained for a range of '{missing[0]}', and this conversion makes no such tensor"
        do = "Run edgekit compress again with the versions of TensorFlow and Keras that build"
        raise ConversionError(what, where=path.name, do=do)
    fixed = tuple((name, low, high) for name, (low, high) in sorted(ranges.items()))
    return QuantizationPlan(fixed_ranges=fixed)
