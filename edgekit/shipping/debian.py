"""Which of Debian's packages stand in for wheels that do not exist on 32-bit ARM.

Rules: facts are data (`debian.toml`); a release is recognised by the board's Python and glibc; on 32-bit ARM everything
compiled that Debian has comes from Debian, so that a wheel never meets a compiled library of another origin.

    supplied(Target("a-board", "armv7l", "3.11", "2.36"))["numpy"]      # Supplied("python3-numpy", "1.24.2", "bookworm")
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from dataclasses import dataclass
from typing import Any

from edgekit.shipping.target import Target

__all__ = ["Supplied", "supplied"]


@dataclass(frozen=True)
class Supplied:
    """package: what apt calls it. version: upstream's, in that release."""

    package: str
    version: str
    release: str


def supplied(target: Target) -> dict[str, Supplied]:
    """Distribution -> Debian's package for it on this board; empty for machines whose wheels exist. Pure but for the table."""
    if target.arch != "armv7l":
        return {}
    for release in _releases():
        if (release["python"], release["glibc"]) == (target.python, target.glibc):
            packages = release["packages"].items()
            return {name: Supplied(one["package"], one["version"], release["name"]) for name, one in packages}
    return {}


@functools.cache
def _releases() -> tuple[dict[str, Any], ...]:
    text = (importlib.resources.files("edgekit.shipping") / "debian.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["releases"])
