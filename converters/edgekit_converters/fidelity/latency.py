"""How long one inference takes on this very machine: the engine alone, the tensor ready.

p50_ms, p95_ms = measure_ms(artifact, contract, example, threads=4)
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from edgekit_converters.calibration.dataset import Example
from edgekit_converters.fidelity.batches import Intake
from edgekit_converters.targets.artifact import Artifact
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines import load_engine

__all__ = ["measure_ms", "time_runs"]

_WARM_UP = 3
_LEAST_RUNS, _ENOUGH_RUNS, _ENOUGH_S, _BOUND_S = 3, 20, 0.25, 1.0


def measure_ms(
    artifact: Artifact,
    contract: Contract,
    example: Example,
    threads: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """(p50_ms, p95_ms) of the engine's run, copying in and out included, after warming up.

    A file with a fixed batch is timed for the whole batch. Raises EngineError where the engine refuses the artifact.
    """
    tensors = Intake(contract, artifact.inputs, 1).adapt(example)
    with load_engine(artifact.recipe.format, artifact.data, threads=threads) as engine:
        runs = time_runs(lambda: engine.run(tensors), clock)
    return float(np.percentile(runs, 50)) * 1e3, float(np.percentile(runs, 95)) * 1e3


def time_runs(run: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    """Seconds of each run: at least 20 and a quarter of a second of them, but no more than a second beyond 3 runs."""
    for _ in range(_WARM_UP):
        run()
    seconds: list[float] = []
    start = clock()
    while True:
        before = clock()
        run()
        after = clock()
        seconds.append(after - before)
        spent = after - start
        enough = len(seconds) >= _ENOUGH_RUNS and spent >= _ENOUGH_S
        if enough or (spent >= _BOUND_S and len(seconds) >= _LEAST_RUNS):
            return seconds
