"""The confidence interval of a drop, where both models answered the same items.

paired_interval(lost=9, gained=4, items=1000)        # (-0.0024, 0.0123)
"""

from __future__ import annotations

import math

__all__ = ["Z95", "paired_interval"]

Z95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""


def paired_interval(lost: int, gained: int, items: int, z: float = Z95) -> tuple[float, float]:
    """Interval of (lost - gained) / items, the drop of a paired proportion, within [-1, 1].

    lost: items that only the original got right; gained: that only the artifact did. The adjusted Wald interval of
    Agresti and Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in Medicine 24
    (2005), 729-740: half an item is added to each of the four cells, so N = n + 2 and, with b and c the two counts + 1/2,

        (b - c) / N  +-  z sqrt(b + c - (b - c)^2 / N) / N

    Unlike the plain Wald interval it does not shrink to nothing where the two models never differ: 0 of 20 is +- 8.9
    points. Raises ValueError where the counts do not fit.
    """
    if items < 1 or lost < 0 or gained < 0 or lost + gained > items:
        raise ValueError(f"lost={lost} and gained={gained} do not fit {items} items")
    total = items + 2
    difference = lost - gained
    spread = z * math.sqrt(lost + gained + 1 - difference * difference / total)
    return max(-1.0, (difference - spread) / total), min(1.0, (difference + spread) / total)
