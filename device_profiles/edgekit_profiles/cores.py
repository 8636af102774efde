"""Types of cores and their features: the facts of `cores.toml`.

identify(0x41, 0xd08)          # CoreType("cortex-a72", "cortex-a72")
features_of("aarch64")["dotprod"]    # "asimddp", as Linux prints it
"""

from __future__ import annotations

import functools
import importlib.resources
from dataclasses import dataclass
from typing import Any

from edgekit_profiles.schema import parse_toml

__all__ = ["CoreType", "features_of", "identify", "known_types"]


@dataclass(frozen=True)
class CoreType:
    """type: as profiles spell it. generic: the profile that stands for boards with such cores, empty where none does."""

    type: str
    generic: str


def identify(implementer: int, part: int) -> CoreType | None:
    """From the two numbers of the MIDR register; None for a core that is not in the table."""
    for row in _facts()["cores"]:
        if row["implementer"] == implementer and part in row["parts"]:
            return CoreType(row["type"], row.get("generic", ""))
    return None


def known_types() -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["type"] for row in _facts()["cores"]))


def features_of(arch: str) -> dict[str, str]:
    """Features beyond the base of that architecture: edgekit's word -> the kernel's. Empty for an unknown one."""
    found: dict[str, str] = _facts()["features"].get(arch, {})
    return found


@functools.cache
def _facts() -> dict[str, Any]:
    text = (importlib.resources.files("edgekit_profiles") / "cores.toml").read_text(encoding="utf-8")
    return parse_toml(text)
