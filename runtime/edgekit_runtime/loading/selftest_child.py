"""The child of a first open: it replays the golden examples, and its result is the verdict.

It walks the model file's structure, then loads it within limits of memory and time (`children.limit_this_process`), and
says after every run that there was one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from numpy.typing import NDArray

from edgekit_runtime.bundle.jobs import Say, bundle_of, serve
from edgekit_runtime.engines.registry import Engine, EngineSetup, load_with, on_gpu
from edgekit_runtime.engines.variants import RecordingEngine
from edgekit_runtime.loading.replay import replay
from edgekit_runtime.modelfile.check import check_artifact
from edgekit_runtime.system.children import limit_this_process


class _ProgressEngine(RecordingEngine):
    """Says after every run that there was one: a slow engine is not a hung one."""

    def __init__(self, engine: Engine, say: Say) -> None:
        super().__init__(engine)
        self._say = say

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        outputs = super().run(inputs)
        self._say({"ran": True})
        return outputs


def work(job: dict[str, Any], say: Say) -> dict[str, Any]:
    from edgekit_runtime.loading.readiness import check_fits

    bundle = bundle_of(job)
    entry = next(one for one in bundle.manifest.artifacts if (one.recipe, one.blob) == (job["recipe"], job["blob"]))
    check_artifact(bundle, entry)
    setup = EngineSetup(**job["setup"])
    limit_this_process(entry.bytes, setup.threads, gpu=on_gpu(job["engine"]))
    with load_with(job["engine"], entry.format, bundle.blob(entry.blob), setup) as engine:
        check_fits(bundle, entry, engine)
        return asdict(replay(bundle, entry, _ProgressEngine(engine, say)))


if __name__ == "__main__":
    sys.exit(serve(work))
