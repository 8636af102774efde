"""The build journey: one trained model in, for each board a checked bundle or the reasons why there is none."""

from __future__ import annotations

from edgekit.build.journey import build
from edgekit.build.report import BuildReport, BundleReport, summary
from edgekit.build.request import BuildRequest

__all__ = ["BuildReport", "BuildRequest", "BundleReport", "build", "summary"]
