"""How two profiles differ: figure by figure, each with the source that it has there.

for found in difference(load("raspberry-pi-4"), load("raspberry-pi-5")):
    found.key, found.first, found.second       # "core.clock_ghz", 1.5, 2.4
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from edgekit_profiles.profile import Profile
from edgekit_profiles.wheels import installable

__all__ = ["Difference", "difference", "source_of"]

# What names a profile rather than describes it, and what is prose.
_NAMES = {"name", "board", "image", "title", "notes", "sources", "marks", "anchors", "modes", "accelerators"}


@dataclass(frozen=True)
class Difference:
    """key: dotted. first, second: the values, None where the profile says nothing. sources: of the two, "" for none."""

    key: str
    first: Any
    second: Any
    first_source: str = ""
    second_source: str = ""


def difference(first: Profile, second: Profile) -> tuple[Difference, ...]:
    """What differs, in the order of the profile's keys; what is the same is left out. Engines that install come last."""
    found = []
    left, right = dict(_figures(first)), dict(_figures(second))
    for key in dict.fromkeys((*left, *right)):
        one, other = left.get(key), right.get(key)
        if one != other:
            found.append(Difference(key, one, other, _source(first, key), _source(second, key)))
    return tuple(found)


def source_of(profile: Profile, key: str) -> str:
    """Where a figure comes from, by its own key or by its table's; empty where it needs none."""
    return profile.sources.get(key) or profile.sources.get(key.split(".")[0], "")


def _source(profile: Profile, key: str) -> str:
    if key.startswith("anchors "):
        return next((anchor.source for anchor in profile.anchors if _anchor_key(anchor) == key), "")
    return source_of(profile, key)


def _figures(profile: Profile) -> Iterator[tuple[str, Any]]:
    for key, value in asdict(profile).items():
        if key in _NAMES:
            continue
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", item) for name, item in value.items() if not _empty(item))
        elif not _empty(value):
            yield key, value
    for mode in profile.modes:
        yield f"modes.{mode.name}", f"{mode.cores} cores at {mode.clock_ghz:g} GHz"
    for accelerator in profile.accelerators:
        yield f"accelerators.{accelerator.kind}", accelerator.name
    for anchor in profile.anchors:
        yield _anchor_key(anchor), ", ".join(f"{precision} {ms:g} ms" for precision, ms in anchor.ms.items())
    for support in installable(profile):
        yield f"engines.{support.engine}", support.version


def _anchor_key(anchor: Any) -> str:
    clock = f"{anchor.clock_ghz:g} GHz"
    return f"anchors {anchor.model} {anchor.framework} {anchor.threads} thread{'s' * (anchor.threads != 1)} {clock} {anchor.grade}"


def _empty(value: Any) -> bool:
    return value is None or value in ("", (), [], {})
