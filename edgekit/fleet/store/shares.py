"""Whether a share of requests is above a bound by more than chance.

    chance(0, 120, 0.004)       # 1.0: nothing went wrong, so nothing speaks against it
    chance(6, 120, 0.004)       # 0.00002

Rules:
- `chance` is never below the exact one, at any count: nothing is added to a count, and no normal curve is assumed.
"""

from __future__ import annotations

from math import exp, lgamma, log


def chance(bad: int, of: int, share: float) -> float:
    """Of `bad` or more of `of` requests, where each is bad with probability `share`.

    The binomial tail, bounded by its first term and a geometric series (Feller, 1968, VI.3).
    """
    if bad <= of * share or not 0 < share < 1:
        return 1.0 if bad <= of * share else 0.0
    first = lgamma(of + 1) - lgamma(bad + 1) - lgamma(of - bad + 1) + bad * log(share) + (of - bad) * log(1 - share)
    return min(1.0, exp(min(0.0, first)) * (bad + 1) * (1 - share) / (bad + 1 - (of + 1) * share))
