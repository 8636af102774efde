"""A build's page, the pages' skeleton, and a build's figures beside its bundle.

    html(report)                        # report: what `edgekit build --json` prints
    times_beside(bundle)                # SHA-256 of a model file -> its times on the build's workstation
    estimates_beside(bundle)            # SHA-256 of a model file -> its estimate

Rules:
- names of layers and labels come from untrusted files: invisible and direction-changing characters are escaped;
- the report beside a bundle belongs to it if both are of the same source model, a figure to an artifact by the SHA-256
  of its file; a missing or damaged report is ignored, which makes estimates wider, not wrong.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgekit.report import words
from edgekit.report.figures import error_by_layer, histogram, tradeoff
from edgekit.report.view import ReportView
from edgekit_profiles import HostTimes
from edgekit_runtime.system.errors import MissingExtraError, visible
from edgekit_runtime.system.strict_json import load_json

if TYPE_CHECKING:
    from edgekit_runtime.bundle.reader import Bundle


def html(report: Mapping[str, Any]) -> str:
    """report: the object of `edgekit build --json`. Raises MissingExtraError."""
    view = ReportView(report)
    return render(
        "build.html",
        report=view,
        tradeoffs=[(board, tradeoff(board, view)) for board in view.boards],
        errors=error_by_layer(view.candidates),
        histograms=[(item, histogram(item)) for item in view.histograms],
    )


def render(template: str, **values: Any) -> str:
    """Fill a template of the skeleton. Raises MissingExtraError without jinja2."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "writing the HTML report") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(words.FILTERS)
    charts = importlib.resources.files("edgekit.charts").joinpath("static", "chart.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(**values, style=_template("build.css") + charts)


def _visible(value: Any) -> Any:
    """Escape a str; Markup, of which the page itself is made, is left alone."""
    return "\n".join(visible(line) for line in value.split("\n")) if type(value) is str else value


def _template(name: str) -> str:
    return importlib.resources.files("edgekit.report").joinpath("templates", name).read_text(encoding="utf-8")


_MOST_BYTES = 64 << 20
_DAMAGED = (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
Json = Mapping[str, Any]


def times_beside(bundle: Bundle) -> dict[str, HostTimes]:
    """SHA-256 -> times, of every artifact of the report that was timed."""
    try:
        found = {}
        for sha256, _, estimate in _estimates(bundle):
            host = estimate.get("host")
            if isinstance(host, dict):
                times = HostTimes(**host)
                if times.ms > 0 and times.reference_ms > 0:
                    found[sha256] = times
        return found
    except _DAMAGED:
        return {}


def estimates_beside(bundle: Bundle) -> dict[str, Json]:
    """SHA-256 -> estimate on the bundle's board, of every artifact of the report."""
    try:
        board = bundle.manifest.target.profile
        found = {sha256: estimate for sha256, profile, estimate in _estimates(bundle) if profile == board}
        return {
            sha256: estimate
            for sha256, estimate in found.items()
            if 0 <= estimate["low_ms"] <= estimate["mid_ms"] <= estimate["high_ms"] and str(estimate["grade"])
        }
    except _DAMAGED:
        return {}


def _estimates(bundle: Bundle) -> Iterator[tuple[str, str | None, Json]]:
    """(SHA-256 of the file, profile, estimate)."""
    manifest = bundle.manifest
    with bundle.path.with_name(f"{manifest.name}-build.json").open("rb") as file:
        report = load_json(file.read(_MOST_BYTES))
    if report["model"]["sha256"] != manifest.model_id:
        return
    files = {made["recipe"]: made["sha256"] for made in report["candidates"]}
    for board in report["bundles"]:
        for seen in board["candidates"]:
            if seen["recipe"] in files and seen.get("estimate"):
                yield files[seen["recipe"]], board.get("profile"), seen["estimate"]
