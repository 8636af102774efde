"""Cores of phones that one board each was published of: their rates, with every other constant as the fit left it.

    cores = later_cores(fit, fit.solve(fit.all))
    cores.tables()["cortex-x4"]                   # in the shape of roofline.toml
    cores.unseen(), cores.new_network()           # how far off, before a row of the core and network by network

Rule: what the fit knows of kernels, kinds of operation and threads does not move, so no other board's estimate does.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from additive import Array
from fit import Fit, prior
from held_out import Predicted, conformal, errors
from published import LATER, read

_SETTLED = 1e-4
"""Deviation of what the fit already knows."""


@dataclass(frozen=True)
class LaterCores:
    """known: name -> value of the settled constants. fit: of the rows of these cores alone."""

    known: dict[Hashable, float]
    fit: Fit

    def tables(self) -> dict[str, Any]:
        """boards: how many the published times are of."""
        found = self.known | dict(zip(self.fit.names, self.fit.solve(self.fit.all), strict=True))
        return {core: self.fit.core(core, found) | {"boards": 1} for core in sorted(self._cores())}

    def unseen(self) -> dict[str, Predicted]:
        """Core -> its rows by the constants of the others, which is what a board of a core without rows would get."""
        nothing = np.array([], int)
        return {core: self._predicted(self._of(core), nothing) for core in sorted(self._cores())}

    def new_network(self) -> dict[str, Predicted]:
        """Core -> each network by the rows of the others, on the one board that there is."""
        found = {}
        for core in sorted(self._cores()):
            own, off = self._of(core), []
            for network in sorted({self.fit.rows[i].network for i in own}):
                test = np.array([i for i in own if self.fit.rows[i].network == network])
                off.append(self._predicted(test, np.setdiff1d(own, test)).log_error)
            found[core] = Predicted(own, np.concatenate(off), np.full((len(own), 2), np.nan))
        return found

    def _predicted(self, test: Array, train: Array) -> Predicted:
        off = np.log([self.fit.rows[i].ms for i in test]) - np.log(self.fit.ms(self.fit.solve(train), test))
        return Predicted(test, off, np.full((len(test), 2), np.nan))

    def _of(self, core: str) -> Array:
        return np.array([i for i, row in enumerate(self.fit.rows) if row.machine.core == core])

    def _cores(self) -> set[str]:
        return {row.machine.core for row in self.fit.rows}


def later_cores(fit: Fit, x: Array) -> LaterCores:
    known = dict(zip(fit.names, x, strict=True))
    return LaterCores(
        known, Fit(read(cores=LATER), lambda name: (known[name], _SETTLED) if name in known else prior(name))
    )


def one_board(fit: Fit) -> tuple[float, float]:
    """What holds the rows of a core's other boards where the fit saw one of its boards alone, as a factor."""
    start, off = fit.solve(fit.all), []
    cores, sites = (
        np.array([get(row) for row in fit.rows]) for get in (lambda row: row.machine.core, lambda row: row.site)
    )
    for core in sorted(set(cores)):
        for site in sorted(set(sites[cores == core])):
            test = np.where((cores == core) & (sites != site))[0]
            if len(test):
                train = np.where((cores != core) | (sites == site))[0]
                off.append(errors(fit, fit.solve(train, start), test)["estimated"])
    return conformal(np.concatenate(off))
