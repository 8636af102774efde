"""The process of a shadow: opens the bundle of its first frame, then answers inputs.

Arguments: as `isolated_child`. First the job of `bundle_job` with `engine` and `threads`, then the layout of the inputs
with their names; answers carry the milliseconds of the engine, the outputs' layout, and the memory in use.

Rule: it takes the lowest priority before it reads anything, so that whatever else runs on the board goes first. The
share of the time that it waited meanwhile is taken off its engine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from edgekit_runtime.bundle.jobs import bundle_of
from edgekit_runtime.engines.arena import Arena, frame, read_layout
from edgekit_runtime.engines.isolated_child import serve
from edgekit_runtime.install.prove_child import open_model
from edgekit_runtime.serving.model import Model
from edgekit_runtime.system.board import resident_mb
from edgekit_runtime.system.children import allowed_bytes, leave_no_core, limit_memory, machine_bytes
from edgekit_runtime.system.memory import scarce
from edgekit_runtime.system.strict_json import load_json

MEMORY_BYTES = 128 << 20
"""Memory that a shadow may take, beside some times the size of its file."""


def main(arguments: list[str]) -> int:
    give_way()
    model: Model | None = None

    def answer_of(request: tuple[bytes, bytes], arena: Arena) -> bytes:
        nonlocal model
        job = load_json(request[1])
        with scarce(job.get("path", "the shadow")):
            if model is not None:
                return _answer(model, job, arena)
            leave_no_core()
            limit_memory(allowed_bytes(Path(job["path"]).stat().st_size, machine_bytes(), MEMORY_BYTES))
            model = open_model(bundle_of(job), None, job["engine"], batching=False, threads=job["threads"])
            return frame(b"o")

    return serve(arguments, answer_of)


def give_way() -> None:
    """Run only on what all others leave idle."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _answer(model: Model, job: dict[str, Any], arena: Arena) -> bytes:
    arena.forget()
    views = arena.views(read_layout(job["inputs"]))
    inputs = {
        name: bytes(view) if encoded else view.copy() for (name, encoded), view in zip(job["names"], views, strict=True)
    }
    del views
    before = _waited_ns()
    answer = model.predict(inputs)
    waited_ms = max((ns - before.get(task, 0) for task, ns in _waited_ns().items()), default=0) / 1e6
    waited = min(1.0, waited_ms / max(1e-6, answer.timings["total"]))
    layout = arena.write(list(answer.outputs.values()))
    said = {
        "ms": answer.timings["engine"] * (1.0 - waited),
        "outputs": [list(answer.outputs), layout],
        "mb": resident_mb(),
    }
    return frame(b"o", json.dumps(said).encode())


def _waited_ns() -> dict[str, int]:
    """Thread -> how long others ran when it could; empty where the kernel does not say."""
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in Path("/proc/self/task").iterdir():
            found[task.name] = int((task / "schedstat").read_text().split()[1])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
