"""The times that a build took on its workstation, out of the report that it left beside its bundles.

times = times_beside(bundle)            # {SHA-256 of a model file: HostTimes}, empty where there is no such report

Rules: a bundle itself holds no time of a workstation, so that a build can be repeated; the report has them. It belongs to the
bundle where it is of the same source model, and a time to an artifact by the SHA-256 of its file. Whatever else lies there, or
was damaged, is no report: an estimate without the times is wider, not wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit_profiles import HostTimes

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Bundle

__all__ = ["times_beside"]

_MOST_BYTES = 64 << 20


def times_beside(bundle: Bundle) -> dict[str, HostTimes]:
    """Of every artifact of the report that was timed."""
    manifest = bundle.manifest
    try:
        with bundle.path.with_name(f"{manifest.name}-build.json").open("rb") as file:
            report = json.loads(file.read(_MOST_BYTES))
        if report["model"]["sha256"] != manifest.model_id:
            return {}
        files = {made["recipe"]: made["sha256"] for made in report["candidates"]}
        found = {}
        for board in report["bundles"]:
            for seen in board["candidates"]:
                times = _times(seen.get("estimate") or {})
                if times is not None and seen["recipe"] in files:
                    found[files[seen["recipe"]]] = times
        return found
    except (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {}


def _times(estimate: Mapping[str, Any]) -> HostTimes | None:
    told = estimate.get("host")
    if not isinstance(told, dict):
        return None
    times = HostTimes(**told)
    return times if times.ms > 0 and times.reference_ms > 0 else None
