"""Stores of earlier releases, brought up to date where they are.

    migrate(store, 2)           # inside a transaction; the caller then records the new version

Rules:
- steps run in order, one a version, in one transaction: a store that is cut off is as it was;
- a copy of the store as it was is kept beside it, and no release of edgekit deletes it;
- a step changes what it must and no more: roll-ups of version 2 keep their bytes, which `packed` still reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

_LOG = logging.getLogger("edgekit.fleet")


class OlderStore(Protocol):
    where: str

    def define(self, *statements: str) -> None: ...
    def columns(self, table: str) -> set[str]: ...
    def keep_copy(self, version: int) -> str: ...


def migrate(store: OlderStore, version: int) -> None:
    """Raises what the database raises; then nothing has changed."""
    kept = store.keep_copy(version)
    for number in sorted(STEPS):
        if number >= version:
            STEPS[number](store)
    _LOG.warning("the store %s was of version %d and is migrated; a copy of it is %s", store.where, version, kept)


def _dropped(store: OlderStore) -> None:
    """Cameras' dropped frames are counted."""
    for table in ("device", "rollup"):
        store.define(f"ALTER TABLE {table} ADD COLUMN dropped {{int}} DEFAULT 0")


def _evidence(store: OlderStore) -> None:
    """Roll-outs remember what their waves showed."""
    if store.columns("rollout"):
        store.define("ALTER TABLE rollout ADD COLUMN evidence {text}")


STEPS: dict[int, Callable[[Any], None]] = {3: _dropped, 4: _evidence}
"""Version -> what makes it the next one."""
