"""The stages of an answer, and how many answers' timings become one array a stage.

A stage is what a person can act on: `prepare` is everything done to the input, `infer` the engine. `Answer.timings` is finer,
and STAGE_OF says which of its parts belong together. An answer counts in the stages that it went through, and in no other.

    answers, stages = latencies([("device", 4.2, True, {"decode": 0.4, "adapt": 0.1, "engine": 3.6}, None)])
    answers["device"], stages["prepare"], stages["infer"]       # [array([4.2])], [array([0.5])], [array([3.6])]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["STAGES", "STAGE_OF", "Recorded", "latencies"]

Recorded = tuple[str, float, "bool | None", "dict[str, float] | None", "tuple[int, int] | None"]
"""source, total milliseconds, whether the budget was met, timings, (clipped values, values)."""

Arrays = dict[str, list[NDArray[np.float64]]]

STAGES: Final = ("prepare", "queue", "infer", "finish", "network", "host")
"""In the order of a request. network: the way to a host and back; host: what the host itself took."""

STAGE_OF: Final[Mapping[str, str]] = {
    "identify": "prepare",
    "lookup": "prepare",
    "decode": "prepare",
    "similar": "prepare",
    "adapt": "prepare",
    "queue": "queue",
    "joined": "queue",  # waited for an identical request
    "engine": "infer",
    "finish": "finish",
    "network": "network",
    "host_failed": "network",
    "host": "host",
}


def latencies(recorded: Iterable[Recorded]) -> tuple[Arrays, Arrays]:
    """(source -> totals, stage -> times), milliseconds, as arrays that are to be put after one another."""
    totals: dict[str, list[float]] = {}
    alike: dict[int, list[dict[str, float]]] = {}
    for source, total, _, timings, _ in recorded:
        try:
            totals[source].append(total)
        except KeyError:
            totals[source] = [total]
        if timings:
            try:
                alike[len(timings)].append(timings)
            except KeyError:
                alike[len(timings)] = [timings]
    stages: Arrays = {}
    for rows in alike.values():
        _split(rows, stages)
    return {source: [np.array(values, np.float64)] for source, values in totals.items()}, stages


def _split(rows: list[dict[str, float]], stages: Arrays) -> None:
    """Rows with as many parts each: one that has every part of the first one has no others, so one getter reads them all."""
    parts = tuple(rows[0])
    getter: Callable[[dict[str, float]], Any] = itemgetter(*parts)
    others: list[dict[str, float]] = []
    try:
        values = [getter(row) for row in rows]
    except KeyError:
        others = [row for row in rows if row.keys() != rows[0].keys()]
        values = [getter(row) for row in rows if row.keys() == rows[0].keys()]
    flat = values if len(parts) == 1 else chain.from_iterable(values)
    table = np.fromiter(flat, np.float64, len(values) * len(parts)).reshape(len(values), len(parts))
    for stage in STAGES:
        columns = [i for i, part in enumerate(parts) if STAGE_OF.get(part) == stage]
        if columns:
            stages.setdefault(stage, []).append(table[:, columns].sum(1) if len(columns) > 1 else table[:, columns[0]])
    if others:
        _split(others, stages)
