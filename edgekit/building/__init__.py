"""The build journey.
One trained model in, for each board a checked bundle or the reasons why there is none.
"""

from __future__ import annotations

from edgekit.building.journey import build
from edgekit.building.report import BuildReport, BundleReport, summary
from edgekit.building.request import BuildRequest

__all__ = ["BuildReport", "BuildRequest", "BundleReport", "build", "summary"]
