"""The request and the report of `edgekit compress`.

Rules:
- a request that cannot be carried out is refused before anything slow is loaded;
- the limits are kept if one artifact, of a format that the board runs, keeps both, because a build packs one;
- the high end of the estimate counts for the budget, as in a build.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgekit.building.build_journey import check_cache
from edgekit.packaging.writer import check_tools
from edgekit_converters.choose import ChoiceLimits
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.sources.source_model import LoadOptions
from edgekit_profiles import Profile, installable, milliseconds, open_catalogue

STEPS = ("split", "distill", "prune", "sparse", "qat")
"""Names of the steps, in the order in which they are carried out."""
RECIPES = ("tflite-int8", "onnx-int8-qdq")
"""Results are measured as plain INT8 of each format."""
FLOATS = ("tflite-f32", "onnx-f32")
"""The original is measured in float."""
ORIGINAL, PLAIN, REPAIRED = "original", "plain INT8", "repaired"
"""What `MeasuredArtifact.step` calls artifacts of the given model."""


@dataclass(frozen=True)
class CompressRequest:
    """What to compress, with which data, and the limits.

    train, evaluation: labelled sets as `edgekit build` reads them.
    steps: empty if the limits decide.
    profile: the board to estimate for, "" for none.
    max_drop: points of the metric; None for no limit.
    budget_ms: for the board's estimate; None for no limit.
    epochs: passes over the training set for each step, at most.
    rate: first learning rate.
    contract, options, cache, metric: as in `BuildRequest`.
    teacher: None for the model itself.
    width: share of the channels that a derived student has, None for the model as the student.
    start: weights of the derived student.
    input_size: (height, width) of the student's picture, None for the model's.
    features: "LAYER" or "STUDENT=TEACHER", layers whose maps the student learns too.
    temperature, alpha: as in `Teaching`.
    repair_s: processor seconds to show what a build would repair, 0 for none.
    beside: result folders of other seeds, which the page shows too.
    sparsity: share of each kernel's weights that the step sparse makes zero.
    """

    model: Path
    train: str
    evaluation: str
    output: Path
    steps: tuple[str, ...] = ()
    profile: str = ""
    max_drop: float | None = None
    budget_ms: float | None = None
    epochs: float = 10
    batch: int = 64
    rate: float = 1e-3
    seed: int = 0
    contract: Path | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    profile_paths: tuple[Path, ...] = ()
    jobs: int = 1
    cache: Path | None = None
    teacher: Path | None = None
    width: float | None = None
    start: Literal["sliced", "new"] = "sliced"
    input_size: tuple[int, int] | None = None
    features: str | None = None
    temperature: float = 2.0
    alpha: float = 0.7
    repair_s: float = 0.0
    beside: tuple[Path, ...] = ()
    sparsity: float | None = None
    metric: str | None = None

    @property
    def distills(self) -> bool:
        return self.teacher is not None or self.narrows

    @property
    def narrows(self) -> bool:
        """Whether the student is derived from the model."""
        return self.width is not None or self.input_size is not None

    def load_profile(self) -> Profile | None:
        return open_catalogue(self.profile_paths).load(self.profile) if self.profile else None


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
        return f"inside the noise: {text}" if self.noise else text


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
        budget = self.accuracy.budget_ms
        return budget is None or (row.high_ms is not None and row.high_ms <= budget)

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

    def cost(self, rows: Sequence[MeasuredArtifact]) -> float:
        """The least high end of an estimate; without estimates, of multiply-accumulates."""
        times = [row.high_ms for row in self.packable(rows) if row.high_ms is not None]
        return min(times) if times else min((float(row.macs) for row in self.packable(rows)), default=math.inf)


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
        widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]


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
    here = "" if row.here_ms is None else milliseconds(row.here_ms)
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
        parts.append(f"estimated {milliseconds(row.ms)}, up to {milliseconds(row.high_ms)} ms")
    return f"{row.step}, {row.recipe}: {', '.join(filter(None, parts))}"


def check(request: CompressRequest) -> None:
    """Raises EdgekitError for a request that cannot be carried out; imports nothing slow."""
    check_tools("convert")
    where = str(request.model)
    unknown = [step for step in request.steps if step not in STEPS]
    if unknown:
        raise CompressError(f"there is no step '{unknown[0]}'", do=f"Steps: {', '.join(STEPS)}")
    if request.model.suffix in (".h5", ".tflite"):
        raise CompressError(
            f"a file that ends in {request.model.suffix} cannot be trained",
            where=where,
            do="Give the model that it was made from: Keras 3 (save an .h5 file again with it), PyTorch or ONNX",
        )
    if request.model.suffix == ".keras" and request.options.trust_model:
        raise CompressError(
            "--trust-model trains no code of a .keras file",
            where=where,
            do="Leave it out, and replace layers that hold code, such as a Lambda, by built-in ones",
        )
    if not request.steps and request.max_drop is None and request.budget_ms is None:
        raise CompressError("neither steps nor a limit say what to do", do="Give --max-drop 1%, or --steps qat")
    numbers = {"epochs": request.epochs, "batch": request.batch, "rate": request.rate}
    for name, value in (numbers | {"temperature": request.temperature}).items():
        if not math.isfinite(value) or value <= 0:
            raise CompressError(f"--{name} is {value}", do=f"Give --{name} a number above 0")
    _check_steps(request)
    request.load_profile()
    check_cache(request.cache)
    result = request.output / request.model.name
    if result.exists() and request.model.exists() and result.samefile(request.model):
        raise CompressError("the result would replace the model", where=where, do="Choose another folder with -o")


def _check_steps(request: CompressRequest) -> None:
    if request.width is not None and not 0 < request.width < 1:
        raise CompressError(f"--width is {request.width:g}", do="Give the share of channels that stay: --width 0.5")
    if not (math.isfinite(request.repair_s) and request.repair_s >= 0):
        raise CompressError(f"--repair-budget is {request.repair_s:g}", do="Give seconds, or 0 for no repair")
    if request.sparsity is not None and not 0 < request.sparsity < 1:
        raise CompressError(
            f"--sparsity is {request.sparsity:g}", do="Give the share of weights that become zero: --sparsity 0.5"
        )
    if ("sparse" in request.steps) != (request.sparsity is not None):
        raise CompressError(
            "the step sparse and --sparsity need each other", do="Give both: --steps sparse --sparsity 0.5"
        )
    if not 0 < request.alpha <= 1:
        raise CompressError(
            f"--alpha is {request.alpha:g}", do="Give the teacher's share of the loss, above 0 and at most 1"
        )
    if "distill" in request.steps and not request.distills:
        raise CompressError(
            "the step distill needs a teacher or a student",
            do="Give --teacher MODEL, whose student is the model; or --width 0.5 or --input, to derive a student of it",
        )
    if request.steps and request.distills and "distill" not in request.steps:
        raise CompressError("--teacher, --width and --input are of the step distill", do="Add it: --steps distill")
    if request.features is not None and not request.distills:
        raise CompressError(
            "--features is of the step distill", do="Add a student: --steps distill --width 0.5, or --teacher"
        )
    if request.input_size is not None and min(request.input_size) < 1:
        raise CompressError(f"--input is {min(request.input_size)}", do="Give the side of a picture: --input 160")
    if request.distills and not request.steps and request.budget_ms is None:
        raise CompressError("nothing calls for the step distill", do="Give --steps distill, or --budget-ms")
    if "prune" in request.steps and request.budget_ms is None:
        raise CompressError("the step prune needs a time to reach", do="Give --budget-ms, and --profile")
    if request.budget_ms is not None and not request.profile:
        raise CompressError("a budget needs a board to estimate milliseconds for", do="Give --profile too")
    if request.budget_ms is not None and not (math.isfinite(request.budget_ms) and request.budget_ms > 0):
        raise CompressError(f"--budget-ms is {request.budget_ms:g}", do="Give --budget-ms a number above 0")
