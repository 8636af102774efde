"""What the page shows of a build's JSON: rows and sentences, no markup.

    rows = group_variants(story)                      # a repair's attempts
    [row.remedy for row in rows if row.kept]

Rules: attempts with the same remedy, recipe and number of float layers are one row, with the best of them and their
number; the row that was kept is marked; a row without a comparison has the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from edgekit.report import words
from edgekit.report.decision import Decision, sentences_of

_SAME = 1e-12


@dataclass(frozen=True)
class VariantRow:
    """noise_db: the best of the variants, or None
    drop: the least, as the limit counts it; None if nothing was compared, for the reason `why`
    kept: whether the search ended with it
    """

    remedy: str
    recipe: str
    float_layers: int
    float_macs: float
    noise_db: float | None
    drop: float | None
    variants: int
    why: str
    kept: bool


def group_variants(story: Mapping[str, Any]) -> list[VariantRow]:
    """story: `repair` of a candidate in the build's JSON."""
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for attempt in story.get("tried") or ():
        name = (str(attempt["remedy"]), str(attempt["recipe"]), int(attempt["float_layers"]))
        groups.setdefault(name, []).append(attempt)
    rows = []
    for (remedy, recipe, count), attempts in groups.items():
        noises = [float(attempt["noise_db"]) for attempt in attempts if attempt.get("noise_db") is not None]
        drops = [float(attempt["drop"]) for attempt in attempts if attempt.get("drop") is not None]
        failed = next((str(attempt["failed"]) for attempt in attempts if attempt.get("failed")), "")
        start = remedy == "as it is"
        why = "" if drops else failed or ("the start" if start else "not compared: noisier than the best so far")
        row = VariantRow(
            remedy=remedy,
            recipe=recipe,
            float_layers=count,
            float_macs=float(attempts[0].get("float_macs") or 0.0),
            noise_db=noises[0] if start and noises else max(noises, default=None),  # the start is measured again later
            drop=min(drops, default=None),
            variants=1 if start else len(set(noises)) or 1,
            why=why,
            kept=False,
        )
        rows.append(row)
    # Kept is the last row with the recipe, the number of float layers and the drop that the story ends with.
    layers, drop = len((story.get("plan") or {}).get("float_layers") or ()), story.get("drop")
    kept = None
    for index, row in enumerate(rows):
        same = drop is not None and row.drop is not None and abs(row.drop - float(drop)) <= _SAME
        if same and row.recipe == story.get("recipe") and (row.float_layers == layers or not layers):
            kept = index
    return [replace(row, kept=index == kept) for index, row in enumerate(rows)]


Json = Mapping[str, Any]

_WORST_LAYERS = 8
_LARGE = 0.30
"""Share of the float file above which an int8 file's parts are listed."""


@dataclass(frozen=True)
class Damage:
    """Causes of one kind, the worst first."""

    code: str
    causes: list[Json]

    @property
    def worst(self) -> Json:
        return self.causes[0]


class JsonView:
    """An object of the report: its keys are attributes, None if absent."""

    json: Json

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.json.get(name)


@dataclass(frozen=True)
class CandidateView(JsonView):
    """One artifact.

    reference_bytes: size of the largest float32 artifact
    taken_by: profiles whose bundle has it
    """

    json: Json
    reference_bytes: int | None
    taken_by: tuple[str, ...]

    @property
    def fidelity(self) -> Json:
        return self.json.get("fidelity") or {}

    @property
    def ratio(self) -> float | None:
        return self.bytes / self.reference_bytes if self.bytes and self.reference_bytes else None

    @property
    def quality(self) -> float | None:
        """0..1, as the trade-off plots it: the metric, or 1 less the loss."""
        found = self.fidelity
        if found.get("metric") is not None:
            return found.get("artifact")
        if found.get("loss") is not None:
            return max(0.0, 1.0 - float(found["loss"]))
        return found.get("agreement") if found.get("agreement") is not None else found.get("cosine")

    @property
    def counts_errors(self) -> bool:
        """Whether less of its metric is better."""
        own = [score for score in self.fidelity.get("scores") or () if score["metric"] == self.fidelity.get("metric")]
        return self.fidelity.get("metric") == "mae" or any(not score.get("higher_is_better", True) for score in own)

    @property
    def ops(self) -> dict[str, str]:
        """Layer -> what the format calls its operator."""
        return {str(row["layer"]): str(row.get("op") or "") for row in self.layers or ()}

    @property
    def damage(self) -> list[Damage]:
        kinds: dict[str, list[Json]] = {}
        for cause in self.causes or ():
            kinds.setdefault(str(cause["code"]), []).append(cause)
        return [Damage(code, causes) for code, causes in kinds.items()]

    @property
    def harmless(self) -> bool:
        """Whether what drifted changes next to no answer."""
        drop, agreement = self.fidelity.get("drop"), self.fidelity.get("agreement")
        return (drop is None or drop <= 0.005) and (agreement is None or agreement >= 0.99)

    @property
    def scores(self) -> list[Json]:
        """Metrics besides the one that decides."""
        return [score for score in self.fidelity.get("scores") or () if score["metric"] != self.fidelity.get("metric")]

    @property
    def repair(self) -> Json | None:
        """The story of the search that ended with this artifact."""
        story: Json | None = self.json.get("repair")
        return story if story is not None and story["recipe"] == self.recipe else None

    @property
    def attempts(self) -> list[VariantRow]:
        return group_variants(self.repair or {})

    @property
    def rest(self) -> str:
        """Where the bytes of an unusually large int8 file are; empty for others."""
        parts = self.size_breakdown
        if not parts or self.ratio is None or self.ratio <= _LARGE or "int8" not in self.recipe:
            return ""
        named = {"int8_weights": "weights in 8 bits", "other_weights": "other weights", "graph": "operators and names"}
        return ", ".join(f"{words.size(parts[key])} {name}" for key, name in named.items())

    @property
    def repaired(self) -> list[str]:
        return list((self.plan or {}).get("float_layers") or self.fidelity.get("repaired") or ())

    @property
    def departures(self) -> str:
        """How it departs from its recipe, in words, or empty."""
        plan = self.plan or {}
        parts = []
        if plan.get("ranges", "minmax") != "minmax":
            parts.append(f"ranges by {plan['ranges']}")
        if plan.get("steps"):
            names = {"equalise": "channels equalised", "round": "weights rounded by error"}
            parts += [names.get(step, step) for step in plan["steps"]]
        if self.repaired:
            parts.append(f"{len(self.repaired)} layer{'s' if len(self.repaired) > 1 else ''} in float")
        return ", ".join(parts)


@dataclass(frozen=True)
class BoardView(JsonView):
    """One profile's outcome."""

    json: Json

    @property
    def chosen(self) -> str | None:
        return self.json.get("recipe")

    @property
    def estimates(self) -> dict[str, Json]:
        """Recipe -> estimate on this board."""
        seen = (*(self.candidates or ()), *(self.compared or ()))
        found = {str(entry["recipe"]): entry["estimate"] for entry in seen}
        if self.chosen and self.estimate:
            found.setdefault(self.chosen, self.estimate)
        return {recipe: estimate for recipe, estimate in found.items() if estimate}

    @property
    def alternates(self) -> list[str]:
        return [str(entry["recipe"]) for entry in self.json.get("alternates") or ()]

    @property
    def verdict(self) -> str:
        """What this board gets, in a sentence."""
        if self.chosen is None:
            return f"{self.profile} gets no bundle: every candidate was refused."
        return f"{self.profile} gets {self.chosen}{_of(self.fidelity or {})}."


def _of(fidelity: Json) -> str:
    if fidelity.get("drop") is not None:
        name = words.metric(fidelity.get("metric"))
        if fidelity["drop"] <= 0:
            return (
                f", which loses nothing measurable: {name} {_value(fidelity, 'artifact')} against "
                f"{_value(fidelity, 'original')}"
            )
        return (
            f", whose {name} is {_value(fidelity, 'artifact')} where the original's is {_value(fidelity, 'original')}"
        )
    if fidelity.get("decisions") is not None:
        boxes = fidelity["decisions"]
        return (
            f", which keeps {boxes['kept']} of the original's {boxes['original']} boxes and adds "
            f"{boxes['artifact'] - boxes['kept']} on {fidelity['items']} items{words.box_scores(boxes)}"
        )
    if fidelity.get("agreement") is not None:
        return (
            f", which answers as the original does on {words.percent(fidelity['agreement'])} of {fidelity['items']} "
            "items"
        )
    if fidelity.get("cosine") is not None:
        return (
            f", whose answers have a cosine of {fidelity['cosine']:.4f} with the original's on {fidelity['items']} "
            "items"
        )
    return ""


def _value(fidelity: Json, key: str) -> str:
    return words.score(fidelity[key], fidelity.get("metric"))


@dataclass(frozen=True)
class RefusalRow:
    """One reason. figures: its wording for each recipe and board, if that differs."""

    code: str
    reason: str
    do: str
    recipes: list[str]
    boards: list[str]
    figures: list[str]


class ReportView(JsonView):
    """report: the object of `edgekit build --json`."""

    def __init__(self, report: Json) -> None:
        self.json = report

    @property
    def name(self) -> str:
        return str(self.model["path"]).replace("\\", "/").rsplit("/", 1)[-1]

    @cached_property
    def boards(self) -> list[BoardView]:
        return [BoardView(bundle) for bundle in self.json["bundles"]]

    @cached_property
    def candidates(self) -> list[CandidateView]:
        sizes = [entry["bytes"] for entry in self.json["candidates"] if entry["recipe"].endswith("-f32")]
        taken: dict[str, list[str]] = {}
        for board in self.boards:
            taken.setdefault(board.chosen or "", []).append(board.profile)
        largest = max(sizes, default=None)
        return [CandidateView(c, largest, tuple(taken.get(c["recipe"], ()))) for c in self.json["candidates"]]

    @property
    def layers_from(self) -> str:
        """Which items layers were compared on."""
        found = next((c.layers_from for c in self.candidates if c.layers_from), None)
        return "items" if found is None else f"{found['items']} items of the {found['set']} set"

    @property
    def items(self) -> int | None:
        return next((c.fidelity["items"] for c in self.candidates if "items" in c.fidelity), None)

    @property
    def metric(self) -> str | None:
        return next((c.fidelity["metric"] for c in self.candidates if c.fidelity.get("metric")), None)

    @property
    def latencies(self) -> list[tuple[str, str]]:
        """(a word, what it means), of the words that describe the boards' latencies."""
        estimates = [found for board in self.boards for found in board.estimates.values()]
        grades = {str(found.get("grade")) for found in estimates}
        words_ = [(grade, meaning) for grade, meaning in words.GRADES.items() if grade in grades]
        reasons = {str(found["dominated_by"]) for found in estimates if found.get("dominated_by")}
        return [
            *words_,
            *([("dominated by", "names the work that takes the most of that time")] if reasons else []),
            *((reason, words.DOMINANT[reason]) for reason in sorted(reasons & words.DOMINANT.keys())),
        ]

    @property
    def in_points(self) -> bool:
        return words.is_share(self.metric)

    @cached_property
    def common_notes(self) -> list[str]:
        """Notes that all boards with a bundle share, if there are several."""
        first, *others = [board.notes or [] for board in self.boards if board.chosen] or [[]]
        return [note for note in first if others and all(note in notes for notes in others)]

    @property
    def in_boxes(self) -> bool:
        """Whether a detector's boxes were compared."""
        return any(c.fidelity.get("decisions") is not None for c in self.candidates)

    @property
    def original(self) -> float | None:
        return next((c.fidelity["original"] for c in self.candidates if c.fidelity.get("metric")), None)

    @cached_property
    def histograms(self) -> list[Json]:
        """Values of layers in float and in the artifact, in the same bins, with the recipe."""
        found: list[Json] = [{**h, "recipe": c.recipe} for c in self.candidates for h in c.histograms or ()]
        return found[:_WORST_LAYERS]

    @property
    def limits(self) -> str:
        """The limits in words, or empty."""
        found = self.json.get("limits") or {}
        parts = []
        if found.get("max_drop") is not None:
            parts.append(f"a drop of at most {words.share(found['max_drop'])}")
        if found.get("budget_ms") is not None:
            parts.append(f"at most {found['budget_ms']:g} ms an answer")
        return ", ".join(parts)

    @property
    def tools(self) -> dict[str, str]:
        found: dict[str, str] = dict(self.json.get("tools") or {})
        for candidate in self.json["candidates"]:
            found.update(candidate.get("tools") or {})
        return dict(sorted(found.items()))

    @property
    def decisions(self) -> list[tuple[Decision, str]]:
        """Whether to ship it, with the sentence that says so."""
        return list(sentences_of(self.json))

    @property
    def refusals(self) -> list[RefusalRow]:
        """One row a reason, with its recipes and boards."""
        rows: dict[tuple[str, str, str], RefusalRow] = {}
        for board in self.boards:
            for refusal in board.refused or ():
                reason = str(refusal["reason"])
                key = (str(refusal["code"]), str(refusal.get("rule") or reason), str(refusal.get("do") or ""))
                row = rows.setdefault(key, RefusalRow(*key, recipes=[], boards=[], figures=[]))
                for found, value in ((row.recipes, str(refusal["recipe"])), (row.boards, board.profile)):
                    if value not in found:
                        found.append(value)
                if refusal.get("rule"):
                    row.figures.append(f"{board.profile}, {refusal['recipe']}: {reason}")
        return list(rows.values())
