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

from edgekit_runtime.errors import BundleError

__all__ = ["ENCRYPTED", "FEATURES", "RUNTIME_VERSION", "check_reader", "release"]

RUNTIME_VERSION = "0.1.0"
"""Of this reader: what `min_runtime` is compared with."""

ENCRYPTED = "encrypted-blobs"
"""What an encrypted bundle requires of its reader."""

FEATURES = frozenset({ENCRYPTED})
"""What a manifest may require of this reader."""

_RELEASE = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")


def release(version: str) -> tuple[int, int, int] | None:
    """(major, minor, patch), or None for what is no such version."""
    found = _RELEASE.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def check_reader(min_runtime: str, requires: Collection[str], where: str, *, version: str = RUNTIME_VERSION) -> None:
    """Raises BundleError where a reader of `version` must not open a bundle that asks for these."""
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
        )
    unknown = sorted(set(requires) - FEATURES)
    if unknown:
        raise BundleError(
            f"the bundle needs what this reader does not know: {', '.join(unknown):.200}",
            where=where,
            do="Upgrade edgekit-deploy on this machine",
        )
