"""How well float32's rate follows from float16's, on cores where both are published: it is kept from the fit, and
compared.

inferred_rates(fit)              # {"cortex-a75": 1.03, ...}: inferred over fitted
"""

from __future__ import annotations

import numpy as np
from fit import Fit


def inferred_rates(fit: Fit) -> dict[str, float]:
    """Core -> the float32 rate found without any float32 row of the core, over the one found with them."""
    everything = fit.solve(fit.all)
    known = fit.constants(everything)["cores"]
    both = [core for core, table in known.items() if {"float32", "float16"} <= table.keys() and not table["inferred"]]
    found = {}
    for core in both:
        hidden = [row.machine.core == core and row.precision == "float32" for row in fit.rows]
        without = fit.constants(fit.solve(fit.all[~np.array(hidden)], everything))
        found[core] = float(without["cores"][core]["float32"] / known[core]["float32"])
    return found
