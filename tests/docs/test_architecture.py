"""docs/architecture.md is the tree: what it names exists, and it names every package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = {
    "edgekit_runtime": ROOT / "runtime",
    "edgekit_profiles": ROOT / "device_profiles",
    "edgekit_converters": ROOT / "converters",
    "edgekit": ROOT,
}


def named() -> set[str]:
    """The packages and modules that the page writes as code."""
    return set(re.findall(r"`((?:edgekit|edgekit_\w+)(?:\.\w+)*)`", PAGE.read_text(encoding="utf-8")))


def test_what_the_page_names_exists():
    for name in sorted(named()):
        place = PACKAGES[name.split(".")[0]].joinpath(*name.split("."))
        assert (place / "__init__.py").is_file() or place.with_suffix(".py").is_file(), name


def test_every_package_is_named():
    found = {
        ".".join(file.parent.relative_to(base).parts)
        for package, base in PACKAGES.items()
        for file in (base / package).rglob("__init__.py")
    }
    assert found - named() == set()


def test_the_page_stays_at_two_screens():
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1000
