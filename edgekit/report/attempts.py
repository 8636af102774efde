"""The attempts of a repair, as a person reads them: each way of making the artifact once, with what was found of it.

rows = grouped(story)
[row.remedy for row in rows if row.kept]

Rules: a way that was measured for its noise first and compared afterwards is one row; of the same remedy with several methods
for the ranges the best is shown, and how many there were; the one that was kept is marked; where nothing was compared, it
is said why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Row", "grouped"]

_SAME = 1e-12


@dataclass(frozen=True)
class Row:
    """noise_db: the best of the variants, None where there is none. drop: the least, as the limit counts it; None where it was
    not compared, and then `why` says why not. kept: what the search ended with."""

    remedy: str
    recipe: str
    float_layers: int
    float_macs: float
    noise_db: float | None
    drop: float | None
    variants: int
    why: str
    kept: bool


def grouped(story: Mapping[str, Any]) -> list[Row]:
    """story: `repair` of a candidate in the build's JSON."""
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for attempt in story.get("tried") or ():
        name = (str(attempt["remedy"]), str(attempt["recipe"]), int(attempt["float_layers"]))
        groups.setdefault(name, []).append(attempt)
    rows = [_row(name, attempts) for name, attempts in groups.items()]
    kept = _kept(story, rows)
    return [_marked(row, index == kept) for index, row in enumerate(rows)]


def _row(name: tuple[str, str, int], attempts: list[Mapping[str, Any]]) -> Row:
    remedy, recipe, layers = name
    noises = [float(attempt["noise_db"]) for attempt in attempts if attempt.get("noise_db") is not None]
    drops = [float(attempt["drop"]) for attempt in attempts if attempt.get("drop") is not None]
    failed = next((str(attempt["failed"]) for attempt in attempts if attempt.get("failed")), "")
    start = remedy == "as it is"
    why = "" if drops else failed or ("the start" if start else "not compared: noisier than the best so far")
    return Row(
        remedy=remedy,
        recipe=recipe,
        float_layers=layers,
        float_macs=float(attempts[0].get("float_macs") or 0.0),
        noise_db=noises[0] if start and noises else max(noises, default=None),  # measured again after what came later
        drop=min(drops, default=None),
        variants=1 if start else len(set(noises)) or 1,
        why=why,
        kept=False,
    )


def _kept(story: Mapping[str, Any], rows: list[Row]) -> int | None:
    """The last row with the recipe, the number of float layers and the drop that the story ends with."""
    layers = len((story.get("plan") or {}).get("float_layers") or ())
    drop = story.get("drop")
    found = [
        index
        for index, row in enumerate(rows)
        if row.recipe == story.get("recipe")
        and row.drop is not None
        and drop is not None
        and abs(row.drop - float(drop)) <= _SAME
        and (row.float_layers == layers or not layers)
    ]
    return found[-1] if found else None


def _marked(row: Row, kept: bool) -> Row:
    return replace(row, kept=kept)
