"""What `edgekit compress` found: as text, and as JSON and a page beside the model.

    report, failed = write_report(report, request, key)        # out/net-compress.json, out/net-compress.html
    known_rows(request, key)                                   # rows of the same command's earlier run, with its times

Rules:
- only these files hold times of this machine, so that one seed makes the same model file on any day;
- the limits are kept if one artifact, of a format that the board runs, keeps both, because a build packs one;
- the high end of the estimate counts for the budget, as in a build.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.compressing.compress_request import CompressRequest
from edgekit.packaging.output_errors import OutputError
from edgekit.packaging.writer import write_whole
from edgekit.report.words import aligned
from edgekit_converters.choose import ChoiceLimits
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_profiles import installable, milliseconds
from edgekit_runtime.system.errors import BundleError, MissingExtraError
from edgekit_runtime.system.strict_json import from_json, load_json

RECIPES = ("tflite-int8", "onnx-int8-qdq")
"""Results are measured as plain INT8 of each format."""
FLOATS = ("tflite-f32", "onnx-f32")
"""The original is measured in float."""
ORIGINAL, PLAIN, REPAIRED = "original", "plain INT8", "repaired"
"""What `MeasuredArtifact.step` calls artifacts of the given model."""


@dataclass(frozen=True)
class MeasuredArtifact:
    """One artifact and its measurements.

    step: "original", "plain INT8", "repaired", "teacher", or the step that made its model.
    score, original: metric of the artifact and of the original on the evaluation set.
    drop: as `Fidelity.loss`.
    interval: 95 % interval of the drop, None without a metric.
    error: the metric counts errors; drop and interval are relative to the original's.
    int8: share of the products in 8 bits, 0..1.
    macs: multiply-accumulates.
    low_ms, ms, high_ms: the board's estimate.
    here_ms: median on this machine, None if not timed.
    busy: the board is this machine and was busy: `ms` is what it takes alone, `high_ms` what it took.
    here_busy: this machine was busy at `here_ms`, which is what it takes alone.
    packed_bytes: size after xz.
    failed: why there is no artifact, else "".
    """

    step: str
    recipe: str
    metric: str | None = None
    original: float | None = None
    score: float | None = None
    drop: float | None = None
    interval: tuple[float, float] | None = None
    int8: float = 0.0
    bytes: int = 0
    macs: int = 0
    ms: float | None = None
    high_ms: float | None = None
    failed: str = ""
    low_ms: float | None = None
    here_ms: float | None = None
    packed_bytes: int = 0
    error: bool = False
    busy: bool = False
    here_busy: bool = False


@dataclass(frozen=True)
class Gain:
    """How much less a step's artifact loses than the one before it.

    of: the step before.
    points: of the metric, as `drop`, over the items that both answered.
    error: the metric counts errors; points are relative to the error before.
    """

    of: str
    recipe: str
    metric: str
    points: float
    ci95: tuple[float, float]
    error: bool = False

    @property
    def noise(self) -> bool:
        """Whether the interval contains zero."""
        return self.ci95[0] <= 0 <= self.ci95[1]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"noise": self.noise, "words": str(self)}

    def __str__(self) -> str:
        low, high = self.ci95
        if self.error:
            text = f"{-100 * self.points:+.1f} % error, {-100 * high:+.1f} to {-100 * low:+.1f}, against {self.of}"
        else:
            text = f"{100 * self.points:+.1f} points, {100 * low:+.1f} to {100 * high:+.1f}, against {self.of}"
        return f"within the noise: {text}" if self.noise else text


@dataclass(frozen=True)
class Limits:
    """The limits of a run. recipes: those that the board runs; all without a board."""

    accuracy: ChoiceLimits
    recipes: tuple[str, ...]

    @classmethod
    def of(cls, request: CompressRequest) -> Limits:
        """Raises CompressError for a board that runs neither format."""
        profile = request.load_profile()
        support = () if profile is None else installable(profile)
        runs = {one.format for one in support if one.ok}
        recipes = tuple(name for name in RECIPES if profile is None or find_recipe(name).format in runs)
        if not recipes:
            what = f"no engine for {' or '.join(RECIPES)} installs on {request.profile}"
            raise CompressError(what, do="Choose another --profile: `edgekit profiles list` shows them")
        return cls(ChoiceLimits(max_drop=request.max_drop, budget_ms=request.budget_ms), recipes)

    def packable(self, rows: Sequence[MeasuredArtifact]) -> list[MeasuredArtifact]:
        """The rows that a build could pack."""
        return [row for row in rows if row.recipe in self.recipes and row.drop is not None]

    def is_on_time(self, row: MeasuredArtifact) -> bool:
        """A busy machine's times refuse nothing, but for what is too slow alone."""
        budget, time = self.accuracy.budget_ms, row.ms if row.busy else row.high_ms
        return budget is None or (time is not None and time <= budget)

    def is_accurate(self, row: MeasuredArtifact) -> bool:
        return row.drop is not None and self.accuracy.allow(row.drop)

    def are_kept(self, rows: Sequence[MeasuredArtifact]) -> bool:
        return any(self.is_on_time(row) and self.is_accurate(row) for row in self.packable(rows))

    def is_broken(self, rows: Sequence[MeasuredArtifact]) -> bool:
        """Whether any artifact of a format that the board runs failed or loses too much."""
        return any(row.recipe in self.recipes and not self.is_accurate(row) for row in rows)

    def best(self, rows: Sequence[MeasuredArtifact]) -> MeasuredArtifact | None:
        """The packable row that loses least, of those on time if there are any."""
        made = self.packable(rows)
        timely = [row for row in made if self.is_on_time(row)] or made
        return min(timely, key=lambda row: math.inf if row.drop is None else row.drop, default=None)

    def drop(self, rows: Sequence[MeasuredArtifact]) -> float:
        """The best row's drop, infinity without one."""
        best = self.best(rows)
        return math.inf if best is None or best.drop is None else best.drop

    def packed(self, rows: Sequence[MeasuredArtifact]) -> float:
        """Fewest bytes of a packable row after xz, infinity without one."""
        return min((float(row.packed_bytes) for row in self.packable(rows)), default=math.inf)

    def is_faster(self, before: Sequence[MeasuredArtifact], after: Sequence[MeasuredArtifact]) -> bool:
        """By the least high end of an estimate; without estimates, or busy, by multiply-accumulates."""
        both = [self.packable(rows) for rows in (before, after)]
        times = [[row.high_ms for row in rows if row.high_ms is not None] for rows in both]
        if all(times) and not any(row.busy for rows in both for row in rows):
            return min(times[1]) < min(times[0])
        return min(row.macs for row in both[1]) < min((row.macs for row in both[0]), default=math.inf)


@dataclass(frozen=True)
class CompressReport:
    """What a run did, and whether the limits are kept.

    model: the written file, None if no step was kept.
    steps: a record for each step, with `kept`, `gain` and, if it was not kept, `why`.
    verdict: in words.
    kept: whether the model, or plain INT8 without one, keeps the limits.
    """

    model: Path | None
    rows: tuple[MeasuredArtifact, ...]
    steps: tuple[dict[str, Any], ...]
    verdict: str
    kept: bool
    page: Path | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "model": None if self.model is None else str(self.model),
            "page": None if self.page is None else str(self.page),
            "kept": self.kept,
            "verdict": self.verdict,
            "rows": [asdict(row) for row in self.rows],
            "steps": list(self.steps),
        }

    def table(self) -> list[str]:
        """Lines of aligned columns, for a person."""
        why = {step["step"]: note_of(step) for step in self.steps}
        head = ("step", "artifact", "score", "drop", "MACs", "ms, estimated", "ms, here", "kB", "kB, xz", "")
        lines = [head, *(_cells(row, why.get(row.step, "")) for row in self.rows)]
        return list(aligned(lines, right=False))


def busy_error(model: str) -> CompressError:
    """Times of a busy machine decide nothing that cannot be taken back."""
    what = "this machine, which is the board, is busy, so its times do not say which channels may stay"
    return CompressError(what, where=model, do="Try again when it is idle, or give the --profile of another board")


def note_of(step: dict[str, Any]) -> str:
    """Whether a step was kept and what it gained, in words."""
    text = "kept" if step["kept"] else f"not kept: {step['why']}"
    return f"{text}; {step['gain']['words']}" if step.get("gain") else text


def _cells(row: MeasuredArtifact, note: str) -> tuple[str, ...]:
    if row.failed:
        return (row.step, row.recipe, *[""] * 7, row.failed)
    score = "" if row.score is None else f"{row.score:.4f}"
    drop = "" if row.drop is None else f"{round(100 * row.drop, 2) + 0.0:.2f}"
    time = "" if row.ms is None or row.high_ms is None else f"{milliseconds(row.ms)}, to {milliseconds(row.high_ms)}"
    here = "" if row.here_ms is None else milliseconds(row.here_ms) + " (busy)" * row.here_busy
    macs = f"{row.macs / 1e6:.3g} M" if row.macs else ""
    sizes = (f"{size / 1000:.0f}" if size else "" for size in (row.bytes, row.packed_bytes))
    return (row.step, row.recipe, score, drop, macs, time, here, *sizes, note)


def loss_words(drop: float, *, error: bool) -> str:
    """As in `loses 1.20 points` or `has 3.00 % more error`. drop: as in `MeasuredArtifact`."""
    if error:
        return f"has {100 * abs(drop):.2f} % {'less' if drop < 0 else 'more'} error"
    return f"{'loses' if round(100 * drop, 2) >= 0 else 'gains'} {abs(100 * drop):.2f} points"


def line_of(row: MeasuredArtifact) -> str:
    """A row as a line for the console."""
    if row.failed:
        return f"{row.step}, {row.recipe}: {row.failed}"
    score = "" if row.score is None or row.original is None else f"{row.metric} {row.score:.4f} of {row.original:.4f}"
    drop = "" if row.drop is None else loss_words(row.drop, error=row.error)
    parts = [score, drop]
    if row.bytes:
        parts += [f"{100 * row.int8:.0f} % of the products in 8 bits", f"{row.macs / 1e6:.3g} M products"]
        parts.append(f"{row.bytes / 1000:.0f} kB")
    if row.ms is not None and row.high_ms is not None:
        low, high = milliseconds(row.ms), milliseconds(row.high_ms)
        busy = f"about {low} ms alone, up to {high} ms on this machine, which is busy"
        parts.append(busy if row.busy else f"estimated {low}, up to {high} ms")
    return f"{row.step}, {row.recipe}: {', '.join(filter(None, parts))}"


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, BundleError)


def rows_of(stored: Any) -> tuple[MeasuredArtifact, ...]:
    """The rows of a record. Raises BundleError."""
    return from_json(tuple[MeasuredArtifact, ...], stored, "rows", nulls=True)


def report_file(folder: Path, model: Path) -> Path:
    return folder / f"{model.stem}-compress.json"


def known_rows(request: CompressRequest, key: str) -> tuple[MeasuredArtifact, ...]:
    """Rows of an earlier run with this key; empty if its file is missing, unreadable or older."""
    with contextlib.suppress(*_UNREADABLE):
        stored = load_json(report_file(request.output, request.model).read_bytes())
        return rows_of(stored["rows"]) if stored["key"] == key else ()
    return ()


def read_beside(request: CompressRequest) -> list[dict[str, Any]]:
    """The records in `request.beside`. Raises CompressError if one does not exist or fit."""
    found = []
    for folder in request.beside:
        file = report_file(folder, request.model)
        try:
            stored = load_json(file.read_bytes())
            rows_of(stored["rows"])
            other, seed = stored["profile"], stored["seed"]
            if type(seed) is not int:
                raise TypeError
        except _UNREADABLE as error:
            raise CompressError(
                f"no readable result of edgekit compress: {type(error).__name__}",
                where=str(file),
                do="Name in beside folders that edgekit compress wrote for a model of this name",
            ) from error
        if other != request.profile:
            raise CompressError(
                f"it is for {other or 'no board'}, and this run for {request.profile or 'none'}",
                where=str(file),
                do="Compare results of one board",
            )
        found.append(stored)
    return found


def write_report(report: CompressReport, request: CompressRequest, key: str) -> tuple[CompressReport, str]:
    """(the report, why it has no page). Raises OutputError if the JSON cannot be written."""
    from edgekit.report.compress_page import page

    file = report_file(request.output, request.model)
    with_page = replace(report, page=file.with_suffix(".html"))
    record = with_page.as_json() | {
        "key": key, "name": request.model.stem, "profile": request.profile, "seed": request.seed,
        "limits": {"max_drop": request.max_drop, "budget_ms": request.budget_ms},
    }  # fmt: skip
    write_whole(file, (json.dumps(record, indent=1) + "\n").encode(), "the report")
    try:
        write_whole(file.with_suffix(".html"), page([record, *read_beside(request)]).encode(), "the page")
    except (MissingExtraError, OutputError) as error:
        return report, str(error)
    return with_page, ""
