"""The first open of a (bundle, engine, board): golden examples in a process of its own.

ran = first_open(bundle, entry, engine.info)           # SelfTestError where the child failed, crashed or hung

The child reads the file itself; the key of an encrypted bundle comes to it on its standard input. Where no child can be started,
or it was ended by somebody who knows nothing of the bundle, the replay in this process is what there is.

EDGEKIT_SELFTEST=in-process never starts a child (needed under user-mode emulation).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit_runtime.bundle import ArtifactEntry, Bundle
from edgekit_runtime.children import crashed, environment, interrupted, may_start, python_module
from edgekit_runtime.children import run as run_child
from edgekit_runtime.engines import EngineInfo
from edgekit_runtime.errors import BundleError, EdgekitError, EngineError, IntegrityError, ModelFileError, SelfTestError
from edgekit_runtime.selftest.verdicts import keep, passed_before, verdict_file

if TYPE_CHECKING:
    import subprocess

__all__ = ["CHILD_TIMEOUT_S", "REFUSAL", "VERDICT", "first_open"]

CHILD_TIMEOUT_S = 120.0
"""How long loading, or one run, may take in the child."""
VERDICT, REFUSAL = "failed: ", "refused: "
"""How the line begins by which the child says what failed, and what it would not take."""
_REFUSALS: dict[str, type[EdgekitError]] = {
    kind.code: kind for kind in (BundleError, IntegrityError, EngineError, ModelFileError)
}


def first_open(
    bundle: Bundle,
    entry: ArtifactEntry,
    engine: EngineInfo,
    *,
    folder: Path | None = None,
    source: str | None = None,
    run: Callable[..., subprocess.CompletedProcess[str]] = run_child,
) -> bool:
    """Replay in a child once a (bundle, engine, board). Returns True when a child ran now, False when it had before.

    The child walks the model file's structure, then loads it within limits of memory and time (`rlimits`). source: what the
    child opens instead of the bundle's path, a descriptor for one; it must find the very bundle there.
    Raises SelfTestError when the child failed or crashed, and what it refused: ModelFileError, EngineError, BundleError. A folder that cannot be written only means asking again.
    """
    if not may_start():
        return False
    if passed_before(bundle, entry, engine, folder=folder):
        return False
    job = {
        "path": str(source or bundle.path.absolute()),
        "digest": bundle.digest,
        "recipe": entry.recipe,
        "blob": entry.blob,
        "engine": engine.name,
        "setup": {"threads": engine.threads, "kernels": engine.kernels, "delegate": engine.delegate},
        "key": bundle.secret.handed() if bundle.secret is not None else None,
    }
    from subprocess import TimeoutExpired

    try:
        done = run(
            python_module("edgekit_runtime.selftest.child"),
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT_S,
            env=environment(),
        )
    except TimeoutExpired as error:
        raise _failed(bundle, engine, f"did not come back within {CHILD_TIMEOUT_S:.0f} s") from error
    except OSError:  # no child can be started here: the replay in this process is what there is
        return False
    if interrupted(done.returncode):  # whoever ended it knows nothing of the bundle; this process tests itself
        return False
    said = done.stderr.splitlines()
    if refusal := next((line for line in said if line.startswith(REFUSAL)), None):
        raise _told(json.loads(refusal.removeprefix(REFUSAL)))
    if crashed(done.returncode) or any(line.startswith(VERDICT) for line in said):
        raise _failed(bundle, engine, _reason(done))
    if done.returncode != 0:  # it never came to the test: another interpreter, other paths; this process tests itself
        return False
    keep(verdict_file(bundle, entry, engine, folder), done.stdout.splitlines()[-1])
    return True


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    if name := crashed(done.returncode):
        return f"crashed with {name}"
    return next(line for line in done.stderr.splitlines() if line.startswith(VERDICT))


def _told(error: dict[str, Any]) -> EdgekitError:
    """What the child refused, as the error that it was there."""
    kind = _REFUSALS.get(error["code"], SelfTestError)
    made = kind(error["what"], where=error["where"], do=error["do"])
    made.errno = error["errno"]
    return made


def _failed(bundle: Bundle, engine: EngineInfo, why: str) -> SelfTestError:
    return SelfTestError(
        f"the self-test with {engine.name} {engine.version} {why}",
        where=str(bundle.path),
        do="Do not use this bundle here: another engine or version may run it",
    )
