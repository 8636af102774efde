"""Script for the emulated board: python3 guest.py TASKS.json RESULTS.jsonl

Rules:
- only what the wheelhouse installed there is imported;
- the first line of the results describes the system and its packages; then one JSON line a task, written when it is
  done, so that a crash of the engine loses no earlier line;
- counted instructions are between two calls of fsync with descriptors that do not exist: the counter in the emulator
  sees the number, and the kernel refuses it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit_runtime.policy.options import EngineName

MARK = 10_000
# distribution -> module that an application imports, and a replay late or never
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


def count(model: str, format: str, engine: str, first_mark: int) -> dict[str, Any]:  # noqa: A002
    """One inference with seeded inputs between two marks, after one that fills caches."""
    import numpy as np

    from edgekit_runtime.engines.registry import EngineSetup, load_with

    random = np.random.default_rng(0)
    with load_with(engine, format, Path(model).read_bytes(), EngineSetup(threads=1)) as loaded:
        inputs = []
        for spec in loaded.inputs:
            shape = [max(size, 1) for size in spec.shape]
            values = random.random(shape, dtype=np.float32)
            inputs.append((values if spec.dtype.startswith("float") else values * 100).astype(spec.dtype))
        loaded.run(inputs)
        mark(first_mark)
        loaded.run(inputs)
        mark(first_mark + 1)
        return {"engine": loaded.info.name, "version": loaded.info.version}


def mark(number: int) -> None:
    with contextlib.suppress(OSError):
        os.fsync(MARK + number)


def main(tasks: str, results: str) -> None:
    kinds: dict[str, Callable[..., dict[str, Any]]] = {"replay": replay, "count": count}
    key = json.loads(sys.stdin.read() or "null")
    kinds["replay"] = functools.partial(replay, key=key)
    with Path(results).open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(system()) + "\n")
        for task in json.loads(Path(tasks).read_text(encoding="utf-8")):
            stream.flush()
            stream.write(json.dumps(kinds[task.pop("kind")](**task)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
