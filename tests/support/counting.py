"""Counted inferences on the emulated board: further tasks of `edgekit/boards/guest.py`, which runs this file there.

Counted instructions are between two calls of fsync with descriptors that do not exist: the counter in the emulator sees
the number, and the kernel refuses it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

MARK = 10_000


def count(model: str, format: str, engine: str, first_mark: int) -> dict[str, Any]:
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


KINDS = {"count": count}
