"""What passed its self-test here before: one small file a (bundle, engine, board).

if not passed_before(bundle, entry, engine.info):
    remember(bundle, entry, engine.info, replay(bundle, entry, engine))

A folder that cannot be written only means that all examples are replayed again.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from edgekit_runtime.board import fingerprint, state_dir
from edgekit_runtime.bundle import ArtifactEntry, Bundle
from edgekit_runtime.bundle.codec import json_text
from edgekit_runtime.engines import EngineInfo
from edgekit_runtime.selftest.replaying import SelfTest
from edgekit_runtime.whole_file import write_cache

__all__ = ["keep", "passed_before", "remember", "verdict_file"]


def passed_before(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, *, folder: Path | None = None) -> bool:
    """Whether every example agreed before, of this very (bundle, engine, board)."""
    return verdict_file(bundle, entry, engine, folder).is_file()


def remember(
    bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, tested: SelfTest, *, folder: Path | None = None
) -> None:
    """Every example agreed."""
    keep(verdict_file(bundle, entry, engine, folder), json_text(tested))


def keep(file: Path, verdict: str) -> None:
    with contextlib.suppress(OSError):
        write_cache(file, [verdict.encode()])


def verdict_file(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, folder: Path | None) -> Path:
    """Where the verdict is kept; folder: the machine's state, None for its usual place."""
    return (folder or state_dir()) / "selftest" / f"{_triple(bundle, entry, engine)}.json"


def _triple(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo) -> str:
    setup = (str(engine.threads), engine.kernels, engine.delegate or "")
    parts = (bundle.digest, entry.blob, engine.name, engine.version, *setup, fingerprint())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
