"""The report of the build that wrote a bundle, where it still lies beside it.

    times_beside(bundle)                # SHA-256 of a model file -> its times on the build's workstation
    estimates_beside(bundle)            # SHA-256 of a model file -> its estimate, as the summary and the page have it

Rules: a bundle itself holds no time of a workstation, so that a build can be repeated; the report beside it has them.
It belongs to the bundle where it is of the same source model, and a figure to an artifact by the SHA-256 of its file.
Whatever else lies there, or was damaged, is no report: an estimate without the times is wider, not wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgekit_profiles import HostTimes
from edgekit_runtime.strict_json import load_json

if TYPE_CHECKING:
    from edgekit_runtime.bundle.reader import Bundle

_MOST_BYTES = 64 << 20
_DAMAGED = (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

Json = Mapping[str, Any]


def times_beside(bundle: Bundle) -> dict[str, HostTimes]:
    """Of every artifact of the report that was timed."""
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
    """Of every artifact of the report, on the board that the bundle is for."""
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
