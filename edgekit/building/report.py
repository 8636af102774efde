"""What a build found: the object that `--json` prints, and the few lines that a person reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgekit_converters.calibration import Finding
from edgekit_converters.choose import Choice
from edgekit_converters.fidelity import Fidelity
from edgekit_profiles import Estimate, milliseconds

__all__ = ["BuildReport", "BundleReport", "estimate_json", "fidelity_json", "summary"]


@dataclass(frozen=True)
class BundleReport:
    """One board's outcome. path: None where no artifact was acceptable. bytes: of the artifact."""

    profile: str
    path: Path | None
    choice: Choice

    def as_json(self) -> dict[str, Any]:
        chosen = self.choice.chosen
        return {
            "profile": self.profile,
            "path": str(self.path) if self.path else None,
            "recipe": chosen.recipe if chosen else None,
            "bytes": chosen.size_bytes if chosen else None,
            "fidelity": fidelity_json(chosen.fidelity) if chosen else None,
            "estimate": estimate_json(chosen.estimate) if chosen else None,
            "notes": list(self.choice.notes),
            "refused": [{"recipe": r.recipe, "reason": r.reason, "code": r.code} for r in self.choice.refused],
        }


@dataclass(frozen=True)
class BuildReport:
    """candidates: every artifact that was made, with its size and fidelity, whether a board took it or not."""

    model: dict[str, str]
    findings: tuple[Finding, ...]
    candidates: tuple[dict[str, Any], ...]
    bundles: tuple[BundleReport, ...]
    report: Path
    seconds: float

    @property
    def complete(self) -> bool:
        """Every board got a bundle."""
        return all(bundle.path is not None for bundle in self.bundles)

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": [{"code": f.code, "level": f.level, "what": f.what, "do": f.do} for f in self.findings],
            "candidates": list(self.candidates),
            "bundles": [bundle.as_json() for bundle in self.bundles],
            "report": str(self.report),
            "seconds": round(self.seconds, 3),
        }


def fidelity_json(found: Fidelity | None) -> dict[str, Any] | None:
    return _as_json(found) if found is not None else None


def estimate_json(found: Estimate | None) -> dict[str, Any] | None:
    return _as_json(found) if found is not None else None


def _as_json(found: Fidelity | Estimate) -> dict[str, Any]:
    """Tuples as lists, as JSON has them: the manifest holds this very object."""
    return {key: _lists(value) for key, value in asdict(found).items()}


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def summary(report: BuildReport) -> Iterator[str]:
    """A few lines: what the data is like, what each artifact is like, what each board got and why."""
    for finding in report.findings:
        yield f"{finding.level}: {finding.what}. {finding.do}"
    yield ""
    yield from _table([_row(candidate) for candidate in report.candidates])
    for bundle in report.bundles:
        yield ""
        yield from _bundle_lines(bundle)
    yield ""
    yield f"report  {report.report}   {report.seconds:.0f} s"


_HEAD = ("artifact", "size", "top-1", "drop", "95 % interval", "agrees", "cosine")


def _row(candidate: dict[str, Any]) -> tuple[str, ...]:
    found = candidate["fidelity"]
    if found is None:
        return (candidate["recipe"], "-", "-", "-", "-", "-", "-")
    metric = ("-", "-", "-")
    if found["drop"] is not None:
        low, high = found["ci95"]
        metric = (_percent(found["artifact"]), _points(found["drop"]), f"{_points(low)} to {_points(high)}")
    agrees = "-" if found["agreement"] is None else _percent(found["agreement"])
    return (candidate["recipe"], _size(candidate["bytes"]), *metric, agrees, f"{found['cosine']:.4f}")


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in [_HEAD, *rows]) for i in range(len(_HEAD))]
    for row in [_HEAD, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def _bundle_lines(bundle: BundleReport) -> Iterator[str]:
    chosen = bundle.choice.chosen
    if chosen is None:
        yield f"{bundle.profile}: no bundle"
    else:
        yield f"{bundle.profile}: {chosen.recipe} -> {bundle.path}"
        if chosen.estimate is not None:
            e = chosen.estimate
            yield f"  {milliseconds(e.mid_ms)} ms ({milliseconds(e.low_ms)} to {milliseconds(e.high_ms)}), {e.grade}"
    for note in bundle.choice.notes:
        yield f"  note: {note}"
    for refusal in bundle.choice.refused:
        yield f"  not {refusal.recipe} ({refusal.code}): {refusal.reason}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(points: float) -> str:
    return f"{100 * points:+.1f}"


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
