"""Replay in another environment: an emulated board, or one with another engine.

    python3 guest.py TASKS.json RESULTS.jsonl [KINDS.py]      # on the emulated board
    python3 guest.py                                          # one job of `edgekit_runtime.bundle.jobs`

Rules:
- only what is installed there is imported: `edgekit_runtime`, NumPy and an engine;
- the first line of the results describes the system and its packages; then one JSON line a task, written when it is
  done, so that a crash of the engine loses no earlier line.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import platform
import runpy
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit_runtime.policy.options import EngineName

# distribution -> module that an application imports, and a replay imports late or never
LATE = {"click": "click", "xxhash": "xxhash", "pillow": "PIL.Image",
        "cryptography": "cryptography.hazmat.primitives.asymmetric.ed25519"}  # fmt: skip


def system() -> dict[str, Any]:
    """Python, machine, libc and packages; broken: package -> why it cannot be imported."""
    packages: dict[str, dict[str, str]] = {}
    for found in importlib.metadata.distributions():
        own = str(found.locate_file("")).startswith(sys.prefix)
        name = found.metadata["Name"].lower().replace("_", "-")
        packages.setdefault(name, {"name": name, "version": found.version, "source": "wheel" if own else "debian"})
    broken = {}
    for name, module in LATE.items():
        if name in packages:
            try:
                importlib.import_module(module)
            except (ImportError, OSError, AttributeError) as error:
                broken[name] = f"{type(error).__name__}: {error}"
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "packages": sorted(packages.values(), key=lambda one: one["name"]),
        "broken": broken,
    }


def replay(bundle: str, recipe: str, engine: EngineName, key: list[str] | None = None) -> dict[str, Any]:
    """Compare every golden output with this board's, then open the bundle."""
    from edgekit_runtime import ModelLimits, open_bundle
    from edgekit_runtime.bundle.reader import read_bundle
    from edgekit_runtime.bundle.secrets import Secret
    from edgekit_runtime.engines.registry import EngineSetup, load_with
    from edgekit_runtime.loading.replay import compare_goldens
    from edgekit_runtime.modelfile.check import check_artifact
    from edgekit_runtime.system.errors import EdgekitError

    found: dict[str, Any] = {"outputs": [], "failure": "", "opened": False}
    try:
        secret = Secret.from_pipe(key)
        opened = read_bundle(bundle, secret=secret)
        entry = opened.artifact(recipe)
        check_artifact(opened, entry)
        with load_with(engine, entry.format, opened.blob(entry.blob), EngineSetup(threads=1)) as loaded:
            found["engine"], found["version"] = loaded.info.name, loaded.info.version
            found["outputs"] = [asdict(one) for one in compare_goldens(opened, entry, loaded)]
        if entry.role == "primary":
            single = ModelLimits(batching=False)
            with open_bundle(bundle, secret=secret, engine=engine, threads=1, allow_unsigned=True, limits=single):
                found["opened"] = True
    except EdgekitError as error:
        found["failure"] = str(error)
    return found


def main(tasks: str, results: str, more: str = "") -> None:
    """more: a Python file with further KINDS of tasks by name."""
    kinds: dict[str, Callable[..., dict[str, Any]]] = {"replay": replay}
    if more:
        kinds |= runpy.run_path(more)["KINDS"]
    key = json.loads(sys.stdin.read() or "null")
    kinds["replay"] = functools.partial(replay, key=key)
    with Path(results).open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(system()) + "\n")
        for task in json.loads(Path(tasks).read_text(encoding="utf-8")):
            stream.flush()
            stream.write(json.dumps(kinds[task.pop("kind")](**task)) + "\n")


def work(job: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """job: `model` and `format` of a file to load and not to run, or `bundle_job` with:

    recipe: of the artifact
    exact: whether values are compared if this engine made the golden answers
    """
    from edgekit_runtime.bundle.jobs import bundle_of
    from edgekit_runtime.engines.registry import EngineSetup, delegate_for, load_with
    from edgekit_runtime.loading.replay import replay
    from edgekit_runtime.modelfile.check import check_artifact, check_model
    from edgekit_runtime.system.errors import SelfTestError

    if "model" in job:
        data = Path(job["model"]).read_bytes()
        check_model(job["format"], data)
        load_with(job["engine"], job["format"], data, EngineSetup(delegate=delegate_for(job["format"], data))).close()
        return {}
    bundle = bundle_of(job)
    entry = bundle.artifact(job["recipe"])
    check_artifact(bundle, entry)
    data = bundle.blob(entry.blob)
    setup = EngineSetup(kernels=job["kernels"], delegate=delegate_for(entry.format, data))
    with load_with(job["engine"], entry.format, data, setup) as loaded:
        say({"loaded": True})
        try:
            return asdict(replay(bundle, entry, loaded, exact=job["exact"]))
        except SelfTestError as error:
            say({"steps": error.steps, "cosine": error.cosine})
            raise


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        from edgekit_runtime.bundle.jobs import serve

        sys.exit(serve(work))
