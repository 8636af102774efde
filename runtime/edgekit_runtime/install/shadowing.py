"""A bundle that answers in silence: ROOT/shadow.ekb, and ROOT/shadow.json with its share.

    place_shadow(root, part, ShadowNote(sha256, 0.05))
    read_shadow(root.path)              # ShadowNote, or None
    end_shadow(root.path)

Rules:
- shadow.json is written last and removed first, so what it names is whole;
- nothing here touches what is active, and a collection leaves both files alone.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from edgekit_runtime.install.durable import move_between, read_text, remove, storage_errors, write_file
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.stage_and_collect import sha256_of
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.strict_json import json_text, read_json

_NOTE, SHADOW = "shadow.json", "shadow.ekb"


@dataclass(frozen=True)
class ShadowNote:
    """sha256: of the file. share: of the requests.
    unsigned: its owner accepted it without a signature."""

    sha256: str
    share: float
    unsigned: bool = False
    format: int = 1


def place_shadow(root: Root, part: Path, note: ShadowNote) -> None:
    """Raises StorageError, InstallError (planted)."""
    end_shadow(root.path)
    path = root.path / SHADOW
    with storage_errors(path):
        move_between(part, path)
    write_file(root.path / _NOTE, json_text(note))


def read_shadow(root: Path) -> ShadowNote | None:
    """None without one, and for one that is unreadable, which is logged."""
    try:
        text = read_text(root / _NOTE)
        return None if text is None else read_json(ShadowNote, text, _NOTE, format=1)
    except (ValueError, EdgekitError) as error:
        logging.getLogger("edgekit_runtime").warning("the shadow is left out: %s", error)
        return None


def end_shadow(root: Path, keep: str = "") -> None:
    """keep: SHA-256 of a file that stays, to be installed."""
    note = read_shadow(root) if keep else None
    for name in (_NOTE, SHADOW) if note is None or note.sha256 != keep else (_NOTE,):
        if os.path.lexists(root / name):
            remove(root / name)


def shadow_file(root: Path, sha256: str) -> str:
    """Path of the shadow's file if it is that one, whole; else empty."""
    path = root / SHADOW
    try:
        return str(path) if sha256_of(path) == sha256 else ""
    except (OSError, EdgekitError):
        return ""
