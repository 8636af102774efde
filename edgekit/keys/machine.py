"""What a machine does with a root.json that somebody brought: take it over, or say why not.

taken = take_over([Path("root-4.json"), Path("root-5.json")], Path("/etc/edgekit/trust/root.json"))

Rules: the first root is taken on the word of who runs the command, who may pin it by its fingerprint; every later one only
when the one in force says so. Versions follow one another and none is left out; several files are taken in their order. The
file in force is replaced whole or not at all; one that is damaged is not replaced, because nobody would have said so. The last
one must not have expired: it would refuse all that is new.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.keys.errors import KeysError
from edgekit.packaging.whole import write_whole
from edgekit_runtime.trust import Moment, TrustStore, follow, judge, parse_root, read_trusted
from edgekit_runtime.trust.finding import load_in_force
from edgekit_runtime.trust.root import read_root

__all__ = ["Taken", "take_over"]


@dataclass(frozen=True)
class Taken:
    """store: what is in force now. before: the version that was, None for the first."""

    store: TrustStore
    before: int | None
    path: Path


def take_over(files: Sequence[Path], to: Path, *, expect: str | None = None, now: Moment | None = None) -> Taken:
    """expect: the fingerprint that the first root must have. Raises TrustError, TrustError (root-rollback, root-expired), KeysError,
    OutputError; what is in force stays as it is then."""
    candidates = sorted(
        ((parse_root(data, str(path)), data) for path, data in [(path, read_root(path)) for path in files]),
        key=lambda one: one[0].version or 0,
    )
    current = load_in_force(to, _relied_on) if os.path.exists(to) else None  # noqa: PTH110 - False, too, where it may not be looked at
    before = current.version if current is not None else None
    store, data = current, b""
    for candidate, content in candidates:
        if store is None:
            _pinned(candidate, expect)
            store, data = candidate, content
        elif (candidate.version or 0) >= (store.version or 0) or len(candidates) == 1:
            followed = follow(store, content, candidate.where)
            store, data = followed, content if followed is not store else data
    if store is None:
        raise ValueError("no file was named")
    store.check_date(now or judge(issued_s=store.issued_s))
    if data:
        write_whole(to, data, "the root")
    return Taken(replace(store, where=str(to)), before, to)


def _relied_on(path: Path) -> TrustStore:
    return parse_root(read_trusted(path), str(path))


def _pinned(store: TrustStore, expect: str | None) -> None:
    if expect is not None and store.fingerprint != expect.lower():
        raise KeysError(
            f"its fingerprint is {store.fingerprint}, and {expect} was expected",
            where=store.where,
            do="Take it from who made it, or ask them for the fingerprint that `edgekit keys list` shows",
        )
