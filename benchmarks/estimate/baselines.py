"""What the estimate is compared with: counting multiply-accumulates, and looking up the same network on a like board.

by_mac_count(rows), same_core(rows)         # both see only other boards, as the estimate does
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
from held_out import Predicted
from networks import workload
from published import Row


def by_mac_count(rows: Sequence[Row]) -> Predicted:
    """The median time of a multiply-accumulate on other boards in the same precision, a cycle and thread."""
    cost = np.array([row.ms * row.machine.clock_ghz * row.machine.threads / workload(row.network).macs for row in rows])
    sites, precision = (np.array([getattr(row, name) for row in rows]) for name in ("site", "precision"))
    found = [np.median(cost[(sites != row.site) & (precision == row.precision)]) for row in rows]
    return _without_bands(np.arange(len(rows)), np.log(cost) - np.log(found))


def same_core(rows: Sequence[Row]) -> Predicted:
    """The median of the same network, precision, framework and threads, scaled by clock.

    Of other boards with the core.
    """
    groups = collections.defaultdict(list)
    for index, row in enumerate(rows):
        key = (row.machine.core, row.precision, row.framework, row.machine.threads, row.network)
        groups[key].append(index)
    found: dict[int, float] = {}
    for members in groups.values():
        for i in members:
            cycles = [rows[j].ms * rows[j].machine.clock_ghz for j in members if rows[j].site != rows[i].site]
            if cycles:
                found[i] = float(np.median(cycles)) / rows[i].machine.clock_ghz
    order = np.array(sorted(found))
    return _without_bands(order, np.array([np.log(rows[i].ms / found[i]) for i in order]))


def _without_bands(rows: np.ndarray, log_error: np.ndarray) -> Predicted:
    return Predicted(rows, log_error, np.full((len(rows), 2), np.nan))
