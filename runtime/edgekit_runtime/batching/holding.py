"""Whether to run what waits at once, or to hold it for more: a rule over measured values, without a clock, a lock or a thread.

    target, wait_s = hold(costs, returns, lanes, now)        # (8, 0.0004): until 8 are queued, for 0.4 ms at most
    target, wait_s = hold(costs, returns, lanes, now)        # (0, 0.0): run now

Rules:
- a batch is held for callers that are seen to come back, or that arrive at a steady rate, and only if waiting for them ends
  sooner than running without them (`Costs.pays_to_wait`);
- a lone caller waits for nobody, by `submit` as by `call`: it alone is neither a crowd that comes back nor a rate;
- never beyond what the soonest deadline leaves after the run that it is in.
"""

from __future__ import annotations

import math

from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.batching.lanes import Lanes
from edgekit_runtime.batching.returns import Returns

__all__ = ["hold", "would_hold"]


def hold(costs: Costs, returns: Returns, lanes: Lanes, now: float, *, late: bool = False) -> tuple[int, float]:
    """(how many to have queued, seconds to wait for them at most); (0, 0.0): run now.

    late: those that come back as soon as usual were waited for already; whether the rest are worth it.
    """
    count = len(lanes)
    if not 0 < count < costs.limit:
        return 0, 0.0
    expected, wait_s = returns.expected(now, late=late)
    expected = min(expected, costs.limit - count)
    if not costs.pays_to_wait(count, expected, wait_s):
        expected = costs.room(count)
        at_rate = None if late else returns.next_s(now, expected)
        if at_rate is None or not costs.pays_to_wait(count, expected, at_rate):
            return 0, 0.0
        wait_s = at_rate
    runs_s = costs.total(count + expected)
    slack = min((r.due for r in lanes if r.due != math.inf), default=math.inf) - now - runs_s
    return (count + expected, min(wait_s, slack)) if slack > 0 else (0, 0.0)


def would_hold(costs: Costs, returns: Returns, now: float) -> bool:
    """Whether a request that came now, the only one, would be held for callers that come back."""
    expected, wait_s = returns.expected(now)
    expected = min(expected, costs.limit) - 1  # it is one of them itself
    return costs.pays_to_wait(1, expected, wait_s)
