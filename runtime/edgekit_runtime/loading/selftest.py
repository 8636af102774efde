"""The first open of a (bundle, engine, board).
Golden examples in a process of its own, and what passed here before.

    ran = first_open(bundle, entry, engine.info)           # SelfTestError where the child failed, crashed or hung
    if not passed_before(bundle, entry, engine.info):
        remember(bundle, entry, engine.info, replay(bundle, entry, engine))

Rules:
- the child reads the file itself; the key of an encrypted bundle comes to it on its standard input;
- where no child can be started, or it was ended by somebody who knows nothing of the bundle, the replay in this process
  is what there is. EDGEKIT_SELFTEST=in-process never starts a child (needed under user-mode emulation);
- a verdict is one small file. A folder that cannot be written only means that all examples are replayed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from edgekit_runtime.bundle.jobs import Run, ask, bundle_job
from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.engines.built import BUILD_S
from edgekit_runtime.engines.registry import EngineInfo, on_gpu
from edgekit_runtime.loading.replay import SelfTest
from edgekit_runtime.system.board import fingerprint, state_dir
from edgekit_runtime.system.children import may_start, python_module
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import BundleError, EngineError, ModelFileError, SelfTestError
from edgekit_runtime.system.sealed import read_sealed, write_sealed
from edgekit_runtime.system.strict_json import json_text, read_json

_MOST_BYTES = 1 << 20
CHILD_TIMEOUT_S = 120.0
"""How long loading, or one run, may take in the child."""


def first_open(
    bundle: Bundle,
    entry: ArtifactEntry,
    engine: EngineInfo,
    *,
    folder: Path | None = None,
    source: str | None = None,
    run: Run = run_child,
) -> bool:
    """Replay in a child once a (bundle, engine, board).
    Returns True when a child ran now, False when it had before.

    The child walks the model file's structure, then loads it within limits of memory and time
    (`children.limit_this_process`). source: what the child opens instead of the bundle's path, a descriptor for one; it
    must find the very bundle there. Raises SelfTestError when the child failed or crashed, and what it refused:
    ModelFileError, EngineError, BundleError. A folder that cannot be written only means asking again.
    """
    if not may_start():
        return False
    if passed_before(bundle, entry, engine, folder=folder):
        return False
    job = {
        **bundle_job(bundle, source),
        "recipe": entry.recipe,
        "blob": entry.blob,
        "engine": engine.name,
        "setup": {
            "threads": engine.threads,
            "kernels": engine.kernels,
            "delegate": engine.delegate,
            "keep": bundle.secret is None,
        },
    }
    silence_s = CHILD_TIMEOUT_S + (BUILD_S if on_gpu(engine.name) else 0.0)
    try:
        command = python_module("edgekit_runtime.loading.selftest_child")
        came = ask(command, job, silence_s=silence_s, run=run)
    except OSError:  # no child can be started here: the replay in this process is what there is
        return False
    if came.silent:
        raise _failed(bundle, engine, f"did not come back within {silence_s:.0f} s")
    if came.interrupted:  # ended from outside: no fault of the bundle; this process tests itself
        return False
    if isinstance(came.error, (BundleError, EngineError, ModelFileError)):
        raise came.error
    if came.error is not None:
        raise _failed(bundle, engine, f"failed: {came.error}")
    if came.crashed:
        raise _failed(bundle, engine, f"crashed with {came.crashed}")
    if came.result is None:  # it never came to the test: another interpreter, other paths; this process tests itself
        return False
    keep(verdict_file(bundle, entry, engine, folder), json.dumps(came.result))
    return True


def _failed(bundle: Bundle, engine: EngineInfo, why: str) -> SelfTestError:
    return SelfTestError(
        f"the self-test with {engine.name} {engine.version} {why}",
        where=str(bundle.path),
        do="Do not use this bundle here: another engine or version may run it",
    )


def passed_before(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, *, folder: Path | None = None) -> bool:
    """Whether every example agreed before, of this very (bundle, engine, board)."""
    return read_sealed(verdict_file(bundle, entry, engine, folder), _MOST_BYTES) is not None


def last_verdict(
    bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, *, folder: Path | None = None
) -> SelfTest | None:
    """What the test found of this very (bundle, engine, board); None without a sound verdict."""
    stored = read_sealed(verdict_file(bundle, entry, engine, folder), _MOST_BYTES)
    with contextlib.suppress(ValueError):
        return None if stored is None else read_json(SelfTest, stored, "the verdict")
    return None


def remember(
    bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, tested: SelfTest, *, folder: Path | None = None
) -> None:
    """Every example agreed."""
    keep(verdict_file(bundle, entry, engine, folder), json_text(tested))


def keep(file: Path, verdict: str) -> None:
    with contextlib.suppress(OSError):
        write_sealed(file, verdict.encode())


def verdict_file(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, folder: Path | None) -> Path:
    """Where the verdict is kept; folder: the machine's state, None for its usual place."""
    setup = (str(engine.threads), engine.kernels, engine.delegate or "")
    parts = (bundle.digest, entry.blob, engine.name, engine.version, *setup, fingerprint())
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return (folder or state_dir()) / "selftest" / f"{name}.json"
