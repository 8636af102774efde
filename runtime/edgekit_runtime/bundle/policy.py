"""Which reader opens which bundle.

    check_reader("0.2.0", ("encrypted-blobs",), where)      # BundleError where this reader is too old, or lacks a feature

Rules:
- `format` is another number only where an older reader could not find its way through the file;
- `min_runtime` refuses readers that are too old to give the right answers, `requires` those that lack one feature;
- any other key that a reader does not know changes no answer, and is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeGuard

from edgekit_runtime.bundle.limits import MAX_NAME_TEXT, MAX_OPS
from edgekit_runtime.errors import BundleError

__all__ = [
    "ENCRYPTED",
    "FEATURES",
    "FIRST_RELEASE",
    "FORMAT_VERSION",
    "RUNTIME_VERSION",
    "check_reader",
    "check_words",
    "release",
]

RUNTIME_VERSION = "0.1.0"
"""Of this reader: what `min_runtime` is compared with."""

ENCRYPTED = "encrypted-blobs"
"""What an encrypted bundle requires of its reader."""

FORMAT_VERSION = 1
"""The `format` that this reader reads, and the writer writes."""

FIRST_RELEASE = "0.1.0"
"""Where a manifest names no `min_runtime`."""

FEATURES = frozenset({ENCRYPTED})
"""What a manifest may require of this reader."""

_RELEASE = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")


def release(version: str) -> tuple[int, int, int] | None:
    """(major, minor, patch), or None for what is no such version."""
    found = _RELEASE.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def check_reader(min_runtime: str, requires: Collection[str], where: str, *, version: str = RUNTIME_VERSION) -> None:
    """Raises BundleError (bundle-newer) where a reader of `version` must not open a bundle that asks for these."""
    needed, own = release(min_runtime), release(version)
    if needed is None:
        raise BundleError(f"min_runtime {min_runtime!r:.40} is no version", where=where, do="Build the bundle again")
    if own is None:
        raise ValueError(f"{version!r} is no version")
    if own < needed:
        raise BundleError(
            f"the bundle needs edgekit {min_runtime} or newer, and this is {version}",
            where=where,
            do="Upgrade edgekit-deploy on this machine",
            code="bundle-newer",
        )
    unknown = sorted(set(requires) - FEATURES)
    if unknown:
        raise BundleError(
            f"the bundle needs what this reader does not know: {', '.join(unknown):.200}",
            where=where,
            do="Upgrade edgekit-deploy on this machine",
            code="bundle-newer",
        )


def check_words(value: object, where: str) -> None:
    """`check_reader` of a manifest whose fields were not looked at yet: a newer bundle is called newer, whatever else is new
    in it. Where these three are no words of the format, the types of the fields say so. Raises BundleError."""
    if not isinstance(value, dict):
        raise BundleError("the manifest is no object", where=where, do="Build the bundle again")
    version, needed, features = value.get("format"), value.get("min_runtime", FIRST_RELEASE), value.get("requires", [])
    if type(version) is not int or version < FORMAT_VERSION:
        raise BundleError(f"format {version!r:.40} is none", where=where, do="Build the bundle again")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"bundle format {version!r} is not {FORMAT_VERSION}, the one this runtime reads",
            where=where,
            do="Upgrade edgekit-deploy, or build the bundle again",
            code="bundle-newer",
        )
    if isinstance(needed, str):
        check_reader(needed, features if _words(features) else (), where)


def _words(value: object) -> TypeGuard[list[str]]:
    if not isinstance(value, list) or not all(isinstance(one, str) and 0 < len(one) <= MAX_NAME_TEXT for one in value):
        return False
    return len(set(value)) == len(value) <= MAX_OPS
