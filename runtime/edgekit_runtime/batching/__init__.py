"""Batching: many callers share one engine, and no one waits for a batch that does not pay.

    costs = learn(run_zeros, sizes=(1, 2, 4, 8, 16, 32))
    batcher = Batcher(run, costs)
    served = batcher.call(item, due=perf_counter() + 0.1)

Callers use `batcher`. `queued_request` ends every request once, `queue` decides who waits and what runs next, `worker`
runs it, `costs` holds the measured times.
"""
