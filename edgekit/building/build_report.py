"""What a build found: the object that `--json` prints, and the lines that a person reads."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.report import words
from edgekit.report.decision import FEW_LABELS, decide, evidence_of, sentences_of
from edgekit_converters.choose import Candidate, Choice, Refusal
from edgekit_converters.data.lint import Finding
from edgekit_converters.fidelity.result import Fidelity
from edgekit_profiles import Estimate
from edgekit_runtime.system.errors import install_command, sentences
from edgekit_runtime.system.strict_json import finite_json

if TYPE_CHECKING:
    from edgekit.building.making import RecipeResult
    from edgekit.packaging.assemble import BundleArtifact


@dataclass(frozen=True)
class OtherFile:
    """A file of another tool on one board. refusal: None if the file would be acceptable."""

    candidate: Candidate
    refusal: Refusal | None

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": self.candidate.recipe,
            "estimate": measured_json(self.candidate.estimate),
            "memory_bytes": self.candidate.memory_bytes,
            "refused": None if self.refusal is None else _refusal_json(self.refusal),
        }


@dataclass(frozen=True)
class BundleReport:
    """One board's outcome.

    path: None if no artifact was acceptable.
    candidates: every recipe as this board sees it.
    batches: variants of the chosen artifact, or why they failed.
    degraded: artifact for answers that would be late.
    others: files of other tools, none of which is in the bundle.
    """

    profile: str
    path: Path | None
    choice: Choice
    candidates: tuple[Candidate, ...] = ()
    batches: tuple[RecipeResult, ...] = ()
    degraded: BundleArtifact | None = None
    others: tuple[OtherFile, ...] = ()

    def as_json(self) -> dict[str, Any]:
        chosen = self.choice.chosen
        return {
            "profile": self.profile,
            "path": str(self.path) if self.path else None,
            **_packed_json(chosen),
            "notes": [
                *self.choice.notes,
                *(f"no artifact for a batch: {one.failed}" for one in self.batches if one.failed),
            ],
            "batches": [
                {
                    "batch": one.artifact.inputs[0].shape[0],
                    "bytes": len(one.artifact.data),
                    "fidelity": measured_json(one.fidelity),
                }
                for one in self.batches
                if one.artifact is not None
            ],
            "degraded": None
            if self.degraded is None
            else {"recipe": self.degraded.artifact.recipe.name, "bytes": len(self.degraded.artifact.data)},
            "alternates": [_packed_json(kept) for kept in self.choice.alternates],
            "refused": [{"recipe": refusal.recipe, **_refusal_json(refusal)} for refusal in self.choice.refused],
            "compared": [other.as_json() for other in self.others],
            "candidates": [self._seen(candidate) for candidate in self.candidates],
        }

    def _seen(self, candidate: Candidate) -> dict[str, Any]:
        refusal = next((r for r in self.choice.refused if r.recipe == candidate.recipe), None)
        chosen = self.choice.chosen is not None and self.choice.chosen.recipe == candidate.recipe
        return {
            "recipe": candidate.recipe,
            "role": "primary" if chosen else "alternate" if refusal is None else None,
            "estimate": measured_json(candidate.estimate),
            "memory_bytes": candidate.memory_bytes,
            "refused": None if refusal is None else _refusal_json(refusal),
        }


def _packed_json(one: Candidate | None) -> dict[str, Any]:
    if one is None:
        return dict.fromkeys(("recipe", "bytes", "fidelity", "estimate"))
    measured = {"fidelity": measured_json(one.fidelity), "estimate": measured_json(one.estimate)}
    return {"recipe": one.recipe, "bytes": one.size_bytes, **measured}


def _refusal_json(refusal: Refusal) -> dict[str, str]:
    return {"code": refusal.code, "reason": refusal.reason, "do": refusal.do, "rule": refusal.rule}


@dataclass(frozen=True)
class BuildReport:
    """What a build made.

    candidates: every artifact with its size, fidelity and evidence, packed or not.
    command: the command line.
    random_data: made-up examples were used.
    not_repaired: searches that found no INT8 artifact within the limit.
    cache_failure: why nothing was cached, else "".
    limits: `max_drop` (0..1) and `budget_ms`, None for no limit.
    page: HTML report; None if its tools are not installed, or it could not be written (page_failure says why).
    """

    model: dict[str, str]
    findings: tuple[Finding, ...]
    candidates: tuple[dict[str, Any], ...]
    bundles: tuple[BundleReport, ...]
    report: Path
    seconds: float
    command: tuple[str, ...] = ()
    tools: dict[str, str] = field(default_factory=dict)
    random_data: bool = False
    not_repaired: tuple[dict[str, Any], ...] = ()
    cache_failure: str = ""
    limits: dict[str, float | None] = field(default_factory=dict)
    page: Path | None = None
    page_failure: str = ""

    @property
    def complete(self) -> bool:
        """Every board got a bundle, and INT8 that missed the limit was brought back within it."""
        return all(bundle.path is not None for bundle in self.bundles) and not self.not_repaired

    def __str__(self) -> str:
        return "\n".join(summary(self))

    def _repr_html_(self) -> str:
        """For Jupyter: what was made, and what each board got."""
        from html import escape

        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        head, *rows = _columns(self.candidates)
        table = "".join([line(head, "th"), *(line(row, "td") for row in rows)])
        boards = "\n".join(text for one in self.bundles for text in _bundle_lines(one, self.limits.get("budget_ms")))
        return f"<table>{table}</table><pre>{escape(boards)}</pre>"

    def as_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "model": self.model,
            "data": [{"code": f.code, "level": f.level, "what": f.what, "do": f.do} for f in self.findings],
            "candidates": list(self.candidates),
            "bundles": [bundle.as_json() for bundle in self.bundles],
            "report": str(self.report),
            "page": str(self.page) if self.page else None,
            "seconds": round(self.seconds, 3),
            "command": shlex.join(self.command),
            "tools": self.tools,
            "random_data": self.random_data,
            "limits": self.limits,
        }
        for bundle in record["bundles"]:
            found = decide(evidence_of(record, bundle))
            bundle["decision"] = {"verdict": found.verdict, "items": found.items, "why": found.why}
        return record


def candidate_json(made: RecipeResult, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """One artifact. evidence: as `candidates.evidence` returns it."""
    assert made.artifact is not None
    found = measured_json(made.fidelity)
    return {
        "recipe": made.recipe.name,
        "file": None if made.file is None else str(made.file),
        "sha256": made.sha256,
        "bytes": len(made.artifact.data),
        "fidelity": found,
        "tools": made.artifact.tools,
        "samples": made.artifact.samples,
        "size_breakdown": found["size"] if found else None,
        "repair": made.repair,
        **evidence,
    }


def measured_json(found: Fidelity | Estimate | None) -> dict[str, Any] | None:
    """As the manifest holds it, too."""
    if found is None:
        return None
    record: dict[str, Any] = finite_json(asdict(found))
    if record.get("busy") is False:
        del record["busy"]
    if isinstance(found, Fidelity):
        del record["top_scores"]  # the manifest has it beside this report
        record |= {"loss": found.loss, "loss_ci95": finite_json(found.loss_ci95), "warnings": list(found.warnings)}
        record["only_rounded"] = found.only_rounded
        for output, drift in zip(record["outputs"], found.outputs, strict=True):
            output |= {"loss": drift.loss, "measure": drift.measure}
    return record


def summary(report: BuildReport, *, warned: bool = False) -> Iterator[str]:
    """Lines on the data, each artifact, and what each board got and why.

    warned: the build has printed the warnings about the data already.
    """
    for finding in report.findings:
        if not (warned and finding.level == "warning"):
            yield finding_line(finding)
    yield ""
    if report.candidates:
        yield from _table(report.candidates)
    uncounted = {name for c in report.candidates if c["fidelity"] for name in c["fidelity"]["uncounted"]}
    if uncounted:
        yield f"{_STAR} of the work that can be counted; not counted: {', '.join(sorted(uncounted))}"
    for candidate in report.candidates:
        story = candidate["repair"]
        if story is not None and story["met"] and candidate["recipe"] == story["recipe"]:
            yield f"{story['of']} was repaired: {story['why']}"
    for candidate in report.candidates:
        yield from _over_time(candidate)
    for candidate in report.candidates:
        for warning in (candidate["fidelity"] or {}).get("warnings", ()):
            yield words.brief(f"warning: {candidate['recipe']}: {warning}")
    # Recipes whose tools are not installed here, with the command that adds them: once for all boards
    every = [one for bundle in report.bundles for one in bundle.choice.refused if one.code == "missing-extra"]
    for (_, reason, do), recipes in _alike(every).items():
        yield f"note: no {', '.join(recipes)}: {sentences(reason, do)}"
    for bundle in report.bundles:
        yield ""
        yield from _bundle_lines(bundle, report.limits.get("budget_ms"))
    for story in {story["of"]: story for story in report.not_repaired}.values():  # each once
        yield ""
        yield f"{story['of']} was not repaired: {words.brief(story['why'])}"
    yield ""
    yield from (sentence for _, sentence in sentences_of(report.as_json()))
    if report.cache_failure:
        yield ""
        yield f"warning: nothing was cached for the next build: {report.cache_failure}"
    yield ""
    yield f"report  {report.page or report.report}   {report.seconds:.0f} s"
    if report.page_failure:
        yield f"warning: no page was written: {report.page_failure}"
    elif report.page is None:
        yield f"        as a page too, once its tools are there: {install_command('convert')}"


def finding_line(finding: Finding) -> str:
    return f"{finding.level}: {sentences(words.brief(finding.what), finding.do)}"


def before_repairs(made: Sequence[RecipeResult], missing: Sequence[RecipeResult], repair_s: float) -> Iterator[str]:
    """The artifacts before the search for repairs, which may take minutes."""
    plain = [candidate_json(one, {}) for one in made if one.artifact is not None]
    yield from _table(plain)
    names = ", ".join(one.recipe.name for one in missing)
    yield f"{names} lost more than the limit: searching for a repair, for up to {repair_s:.0f} s of processor time"


def _over_time(candidate: Mapping[str, Any]) -> Iterator[str]:
    """How a stateful model's noise changes over the steps."""
    found = candidate["fidelity"]
    spans = [span for span in (found or {}).get("over_time", ()) if span["sqnr_db"] is not None]
    if not spans:
        return
    first, last = spans[0], spans[-1]
    noise = f"{first['sqnr_db']:.0f} dB at steps {first['first']} to {first['last']}"
    if len(spans) > 1:
        low = min(spans, key=lambda span: float(span["sqnr_db"]))
        noise += f", {last['sqnr_db']:.0f} dB at {last['first']} to {last['last']}, least {low['sqnr_db']:.0f} dB"
    worst = max(span["worst"] for span in spans)
    yield (
        f"{candidate['recipe']} with its own state over {found['items']} frames of {found['sequences']} sequences: "
        f"signal over noise {noise}; worst value off by {worst:.3g}"
    )


_STAR = "*"
_HEAD = ("artifact", "size", "in int8", "{metric}", "drop", "95 % interval", "agrees", "scores", "of spread", "cosine")


def _row(candidate: dict[str, Any]) -> tuple[str, ...]:
    found = candidate["fidelity"]
    name = candidate["recipe"] if candidate["file"] is None else f"{candidate['recipe']} (another tool)"
    if found is None:
        return (name, words.size(candidate["bytes"]), *["-"] * (len(_HEAD) - 2))
    metric = ("-", "-", "-")
    if found["drop"] is not None:
        low, high = found["ci95"]
        drop, below, above = (
            words.change(found["metric"], each, found["original"]) for each in (found["drop"], low, high)
        )
        # For an error also its relative growth, which limits are compared with
        if any(score["metric"] == found["metric"] and not score["higher_is_better"] for score in found["scores"]):
            drop += words.growth(found["drop"], found["original"])
        metric = (words.score(found["artifact"], found["metric"]), drop, f"{below} to {above}")
    shares = [o["agreement"]["value"] for o in found["outputs"] if o["kind"] == "classes" and o["agreement"]]
    agreement = found["agreement"] if found["agreement"] is not None else min(shares, default=None)
    agrees = "-" if agreement is None else words.percent(agreement)
    # A detector's rows may change places, so only its boxes are compared.
    raw = [] if found.get("decisions") is not None else found["outputs"]
    errors = [o["spread_error"] for o in raw if o["spread_error"] is not None]
    spread = words.percent(max(errors)) if errors else "-"
    directed = not found["outputs"] or any(o["kind"] in ("classes", "vector") for o in raw)
    cosine = f"{found['cosine']:.4f}" if directed else "-"  # meaningless for single numbers
    macs = f"{100 * found['quantized_macs']:.0f} %{_STAR if found['uncounted'] else ''}"
    boxes = (found.get("decisions") or {}).get("scores")  # of the boxes that agree
    confidence = "-" if boxes is None else f"{boxes[0]:.2f} to {boxes[1]:.2f}"
    return (name, words.size(candidate["bytes"]), macs, *metric, agrees, confidence, spread, cosine)


def _metric_of(candidates: Sequence[Mapping[str, Any]]) -> str:
    found = (candidate["fidelity"]["metric"] for candidate in candidates if candidate["fidelity"])
    name = next((metric for metric in found if metric), "top1")
    return words.SHORT.get(name, name)


def _columns(candidates: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The head and the rows, without empty columns. Of few labels, agreement comes first."""
    rows = [_row(candidate) for candidate in candidates]
    head = tuple(title.format(metric=_metric_of(candidates)) for title in _HEAD)
    items = max((one["fidelity"]["items"] for one in candidates if one["fidelity"]), default=0)
    order = sorted(range(len(head)), key=lambda i: (i > 2, items < FEW_LABELS and _HEAD[i] != "agrees", i))
    filled = [i for i in order if not rows or any(row[i] != "-" for row in rows)]
    return [tuple(row[i] for i in filled) for row in (head, *rows)]


def _table(candidates: Sequence[dict[str, Any]]) -> Iterator[str]:
    return words.aligned(_columns(candidates), right=True)


def _bundle_lines(bundle: BundleReport, budget_ms: float | None) -> Iterator[str]:
    chosen = bundle.choice.chosen
    if chosen is None:
        yield f"{bundle.profile}: no bundle"
    else:
        yield f"{bundle.profile}: {chosen.recipe} -> {bundle.path}"
        if chosen.estimate is not None:
            known = "" if chosen.estimate.grade == "measured" else ", not measured on the board"
            how = "not held against" if chosen.estimate.busy else "its upper end keeps"
            within = "" if budget_ms is None else f"; {how} the budget of {budget_ms:g} ms"
            yield f"  {words.span(vars(chosen.estimate))}, {chosen.estimate.grade}{known}{within}"
    for kept in bundle.choice.alternates:
        timed = kept.estimate is not None and kept.estimate.grade == "measured"
        why = "as fast by the times measured here" if timed else "to be tried on the board"
        yield f"  beside it, {why}: {kept.recipe}"
    for other in bundle.others:
        there = other.candidate.estimate
        time = "no estimate" if there is None else f"{words.span(vars(there))}, {there.grade}"
        yield f"  for comparison, not in the bundle: {other.candidate.recipe}, {time}"
        if other.refusal is not None:
            yield f"    would be refused ({other.refusal.code}): {words.brief(other.refusal.reason)}"
    for one in bundle.batches:
        if one.artifact is not None:
            yield f"  for {one.artifact.inputs[0].shape[0]} items at once: another {words.size(len(one.artifact.data))}"
        else:
            yield f"  note: no artifact for a batch: {one.failed}"
    if bundle.degraded is not None:
        small = bundle.degraded.artifact
        yield f"  instead of a late answer: {small.recipe.name}, another {words.size(len(small.data))}"
    for note in bundle.choice.notes:
        yield f"  note: {words.brief(note)}"
    for (code, reason, do), recipes in _alike(bundle.choice.refused).items():
        if code != "missing-extra":  # said once for all boards
            yield f"  not {', '.join(recipes)} ({code}): {sentences(words.brief(reason), do)}"


def _alike(refusals: Iterable[Refusal]) -> dict[tuple[str, str, str], list[str]]:
    """(code, reason, do) -> its recipes, each once."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for refusal in refusals:
        recipes = found.setdefault((refusal.code, refusal.reason, refusal.do), [])
        if refusal.recipe not in recipes:
            recipes.append(refusal.recipe)
    return found
