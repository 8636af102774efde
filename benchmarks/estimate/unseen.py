"""The case of a user's own network: neither its board nor the network itself was seen by the fit.

both_unseen(fit, held_out(rows)).error()
"""

from __future__ import annotations

import numpy as np
from fit import Fit
from held_out import Predicted, errors

PARTS = 4


def both_unseen(fit: Fit, bands: dict[str, Predicted]) -> Predicted:
    """In the bands that the row's board has anyway. Boards one at a time; networks in four parts, families together (a
    MobileNetV1 at another size is no news).
    """
    start = fit.solve(fit.all)
    family = np.array([row.network.rsplit("_", 1)[0].split("_0")[0].split("_1")[0] for row in fit.rows])
    names = sorted(set(family))
    part = np.array([names.index(one) % PARTS for one in family])
    sites = np.array([row.site for row in fit.rows])
    found = np.full(len(fit.rows), np.nan)
    for site in sorted(set(sites)):
        for number in range(PARTS):
            test = np.where((sites == site) & (part == number))[0]
            if len(test):
                train = np.where((sites != site) & (part != number))[0]
                found[test] = errors(fit, fit.solve(train, start), test)["estimated"]
    return Predicted(fit.all, found, bands["estimated"].bands)
