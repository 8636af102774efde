"""The demo: the main job on a real network and real photos, out of ordinary packages."""

from __future__ import annotations

from edgekit.demo.assets import Step, make_assets, steps
from edgekit.demo.digest import digest

__all__ = ["Step", "digest", "make_assets", "steps"]
