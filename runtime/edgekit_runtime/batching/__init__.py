"""Batching: many callers share one engine, and none waits for a batch that does not pay.

    costs = Costs({1: 0.001, 32: 0.008})
    batcher = Batcher(run, costs)
    served = batcher.call(item, due=perf_counter() + 0.1)

Callers use `batcher`. `queued_request` ends every request once, `queue` decides who waits and what runs next, `worker`
runs it, `costs` holds the measured times.
"""
