"""Batching: many callers share one engine, and nobody waits for what does not pay.

    costs = learn(run_zeros, sizes=(1, 2, 4, 8, 16, 32))
    batcher = Batcher(run, costs)
    served = batcher.call(item, due=perf_counter() + 0.1)

`costs` says what a batch takes and what follows from it, `lanes` who is next, `returns` who is expected, `holding` whether to
wait for them, `queue` who is let in and what runs next, `gate` keeps the engine to one thread at a time, `runs` is what runs
inside it, `worker` the thread that runs what queued, `request` ends every request once, `batcher` is what callers use.
"""

from __future__ import annotations

from edgekit_runtime.batching.batcher import Batcher, BatchStats
from edgekit_runtime.batching.costs import Costs, Mode, best_of, hand_off_s, learn
from edgekit_runtime.batching.request import Served

__all__ = [
    "BatchStats",
    "Batcher",
    "Costs",
    "Mode",
    "Served",
    "best_of",
    "hand_off_s",
    "learn",
]
