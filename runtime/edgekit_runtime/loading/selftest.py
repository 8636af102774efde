"""The first open of a (bundle, engine, board): golden examples in a process of its own.

    ran = first_open(bundle, entry, engine.info)           # SelfTestError if the child failed, crashed or hung
    last_verdict(bundle, entry, engine.info)               # of this or an earlier opening

Rules:
- the child reads the file itself; the key of an encrypted bundle comes to it on its standard input;
- if no child can be started, or it was ended from outside, only this process replays. EDGEKIT_SELFTEST=in-process never
  starts a child (needed under user-mode emulation);
- a verdict is one small file; if the folder cannot be written, all examples are replayed again;
- beside it stand the batch sizes that paid then, so that a later opening measures none.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from pathlib import Path
from typing import Any

from edgekit_runtime.bundle.jobs import Run, Say, ask, bundle_job, bundle_of, serve
from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.engines.gpu_engine_cache import BUILD_S
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, load_with, on_gpu
from edgekit_runtime.engines.variants import RecordingEngine
from edgekit_runtime.loading.replay import SelfTest, replay
from edgekit_runtime.modelfile.check import check_artifact
from edgekit_runtime.system.board import fingerprint, state_dir
from edgekit_runtime.system.children import limit_this_process, may_start, python_module
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import BundleError, EngineError, MemoryExceeded, ModelFileError, SelfTestError
from edgekit_runtime.system.records import asdict, field, record
from edgekit_runtime.system.sealed import name_of, read_sealed, write_sealed
from edgekit_runtime.system.strict_json import json_text, read_json

_MOST_BYTES = 1 << 20
CHILD_TIMEOUT_S = 120.0
"""Seconds that loading, or one run, may take in the child."""


def first_open(
    bundle: Bundle,
    entry: ArtifactEntry,
    engine: EngineInfo,
    *,
    folder: Path | None = None,
    source: str | None = None,
    run: Run = run_child,
) -> bool:
    """Replay in a child once per (bundle, engine, board). Returns whether a child ran now.

    source: what the child opens in place of the bundle's path, such as a descriptor; it must be the same bundle.
    Raises SelfTestError if the child failed or crashed; its BundleError, EngineError, MemoryExceeded, ModelFileError.
    """
    if not may_start():
        return False
    if last_verdict(bundle, entry, engine, folder=folder) is not None:
        return False
    job = {
        **bundle_job(bundle, source),
        "recipe": entry.recipe,
        "blob": entry.blob,
        "engine": engine.name,
        "setup": asdict(EngineSetup(engine.threads, engine.kernels, engine.delegate, keep=bundle.secret is None)),
    }
    silence_s = CHILD_TIMEOUT_S + (BUILD_S if on_gpu(engine.name, engine.kernels) else 0.0)
    try:
        came = ask(python_module("edgekit_runtime.loading.selftest"), job, silence_s=silence_s, run=run, brief=True)
    except OSError:  # no child can be started here: the replay in this process is what there is
        return False
    if came.silent:
        raise test_failure(bundle, engine.name, engine.version, f"did not respond within {silence_s:.0f} s")
    if came.interrupted:  # ended from outside: no fault of the bundle; this process tests itself
        return False
    if isinstance(came.error, (BundleError, EngineError, MemoryExceeded, ModelFileError)):
        came.error.where = came.error.where.replace(job["path"], str(bundle.path))
        raise came.error
    if came.error is not None:
        raise test_failure(bundle, engine.name, engine.version, f"failed: {came.error}")
    if came.crashed:
        raise test_failure(bundle, engine.name, engine.version, f"crashed with {came.crashed}")
    if came.result is None:  # it never came to the test: another interpreter, other paths; this process tests itself
        return False
    keep(verdict_file(bundle, entry, engine, folder), json.dumps(came.result))
    return True


def test_failure(bundle: Bundle, engine: str, version: str, why: str) -> SelfTestError:
    do = "Do not use this bundle here; another engine or version may run it"
    return SelfTestError(f"the self-test with {engine} {version} {why}", where=str(bundle.path), do=do)


@record(frozen=True)
class KeptTest(SelfTest):
    """A test that passed, and what warming up found then.

    seconds: batch size that pays -> seconds of a run; empty before any was measured.
    tried: batch sizes that were offered.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    tried: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def last_verdict(
    bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, *, folder: Path | None = None
) -> KeptTest | None:
    """The result for this (bundle, engine, board) if every example agreed before, else None."""
    stored = read_sealed(verdict_file(bundle, entry, engine, folder), _MOST_BYTES)
    with contextlib.suppress(ValueError):
        return None if stored is None else read_json(KeptTest, stored, "the verdict")
    return None


def remember(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, passed: KeptTest) -> None:
    keep(verdict_file(bundle, entry, engine, None), json_text(passed))


def keep(file: Path, verdict: str) -> None:
    with contextlib.suppress(OSError):
        write_sealed(file, verdict.encode())


def verdict_file(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, folder: Path | None) -> Path:
    """folder: None for the machine's state folder."""
    setup = (str(engine.threads), engine.kernels, engine.delegate or "")
    parts = (bundle.digest, entry.blob, engine.name, engine.version, *setup, fingerprint())
    return (folder or state_dir()) / "selftest" / f"{name_of(*parts)}.json"


def check_fits(bundle: Bundle, entry: ArtifactEntry, engine: Engine) -> None:
    """Raises BundleError if the manifest and the file differ in their tensors."""
    where, do = str(bundle.path), "Build the bundle again"
    if (len(entry.inputs), len(entry.outputs)) != (len(engine.inputs), len(engine.outputs)):
        raise BundleError("manifest and artifact have different inputs or outputs", where=where, do=do)
    for wanted, found in zip((*entry.inputs, *entry.outputs), (*engine.inputs, *engine.outputs), strict=True):
        if wanted.dtype != found.dtype or len(wanted.shape) != len(found.shape):
            says, has = (f"{one.dtype} {list(one.shape)}" for one in (wanted, found))
            what = f"the manifest says {says} for '{wanted.tensor}', the artifact has {has}"
            raise BundleError(what, where=where, do=do)


def work(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """The child: replay the golden examples and report every run, so as not to seem hung."""
    bundle = bundle_of(job)
    entry = next(one for one in bundle.manifest.artifacts if (one.recipe, one.blob) == (job["recipe"], job["blob"]))
    check_artifact(bundle, entry)
    setup = EngineSetup(**job["setup"])
    limit_this_process(entry.bytes, setup.threads, gpu=on_gpu(job["engine"], setup.kernels))
    with load_with(job["engine"], entry.format, bundle.blob(entry.blob), setup) as engine:
        check_fits(bundle, entry, engine)
        recording = RecordingEngine(engine, lambda: say({"ran": True}))
        found = asdict(replay(bundle, entry, recording))
        return found | ({"seconds": {1: recording.last_s}} if recording.runs > 1 else {})


if __name__ == "__main__":
    ended = serve(work)
    atexit._run_exitfuncs()
    os._exit(ended)  # freeing all modules would take an eighth of the child
