"""The stages of an answer, and how the timings of many answers become one table.

A stage is what a person can act on: `prepare` is everything done to the input, `infer` the engine. `Answer.timings` is finer,
and STAGE_OF says which of its parts belong together. An answer counts in the stages that it went through, and in no other.

    list(tables([("device", 4.2, True, {"decode": 0.4, "adapt": 0.1, "engine": 3.6}, None)]))
    # [("device", ("prepare", "infer"), array([[4.2, 0.5, 3.6]]))]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["STAGES", "STAGE_OF", "Recorded", "Table", "tables"]

Recorded = tuple[str, float, "bool | None", "dict[str, float] | None", "tuple[int, int] | None"]
"""source, total milliseconds, whether the budget was met, timings, (clipped values, values)."""

Table = tuple[str, tuple[str, ...], NDArray[np.float64]]
"""source, stages, and milliseconds [answers, 1 + stages]: the total, then the stages."""

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


def tables(recorded: Sequence[Recorded]) -> Iterator[Table]:
    """One table for all answers of one source whose timings have the same parts."""
    sources, totals, _, timings, _ = zip(*recorded, strict=True)
    if sources.count(sources[0]) == len(sources):  # nearly always: no need to sort anything
        parts = tuple(timings[0] or ())
        read = _read(parts, timings)
        if read is not None:
            yield _table(sources[0], totals, parts, read)
            return
    alike: dict[tuple[str, tuple[str, ...]], tuple[list[float], list[dict[str, float]]]] = {}
    for source, total, given in zip(sources, totals, timings, strict=True):
        some, rows = alike.setdefault((source, tuple(given or ())), ([], []))
        some.append(total)
        rows.append(given or {})
    for (source, names), (some, rows) in alike.items():
        read = _read(names, rows)
        assert read is not None
        yield _table(source, some, names, read)


def _read(parts: tuple[str, ...], rows: Sequence[dict[str, float] | None]) -> list[Any] | None:
    """The values of these parts, row by row; None where a row has others."""
    if not parts:
        return None if any(rows) else [()] * len(rows)
    getter: Callable[[Any], Any] = itemgetter(*parts)
    n = len(parts)
    try:
        values = [getter(row) for row in rows if len(row) == n]  # type: ignore[arg-type]
    except (KeyError, TypeError):  # TypeError: a row of None
        return None
    return values if len(values) == len(rows) else None  # as many parts, and each of these: no others


def _table(source: str, totals: Sequence[float], parts: tuple[str, ...], rows: list[Any]) -> Table:
    flat = rows if len(parts) == 1 else chain.from_iterable(rows)
    values = np.fromiter(flat, np.float64, len(rows) * len(parts)).reshape(len(rows), len(parts))
    columns, names = [np.array(totals, np.float64)], []
    for stage in STAGES:
        mine = [i for i, part in enumerate(parts) if STAGE_OF.get(part) == stage]
        if mine:
            names.append(stage)
            columns.append(values[:, mine].sum(1) if len(mine) > 1 else values[:, mine[0]])
    return source, tuple(names), np.column_stack(columns)
