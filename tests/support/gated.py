"""An engine that a test can stop, and a batcher in front of it."""

from __future__ import annotations

import threading

from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import Costs

LONG = 30


class Gate:
    """An engine that doubles, records its batches, and stops at a gate so that a test can queue behind it."""

    def __init__(self, *, closed=False):
        self.batches = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.passes = threading.Semaphore(0)
        if not closed:
            self.open.set()
        self.inside = 0
        self.overlapped = False

    def pass_one(self):
        """Let the run that waits at the gate pass, and stop the next."""
        self.passes.release()

    def __call__(self, items):
        self.inside += 1
        self.overlapped |= self.inside > 1
        self.entered.release()
        while not self.open.is_set():
            if self.passes.acquire(timeout=0.002):
                break
        self.batches.append(list(items))
        self.inside -= 1
        if any(item == "bad" for item in items):
            raise RuntimeError("the engine failed")
        return [item * 2 for item in items]


def assumed(limit, single_s=1e-3):
    """What batches cost that gain: each item beyond the first a fiftieth of it."""
    sizes = {1, limit, *(2**power for power in range(limit.bit_length()) if 2**power < limit)}
    return Costs({n: single_s * (1 + 0.02 * n) for n in sizes if n > 1} | {1: single_s})


def blocked(max_batch=8, costs=None, **options):
    """A batcher whose engine is busy with one request, and stays so until gate.open is set."""
    gate = Gate(closed=True)
    batcher = Batcher(gate, costs or assumed(max_batch), **options)
    first = batcher.submit(1)
    assert gate.entered.acquire(timeout=LONG)
    return gate, batcher, first


def results(futures):
    return [future.result(LONG).result for future in futures]
