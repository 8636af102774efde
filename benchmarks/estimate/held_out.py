"""Every row predicted by constants that were fitted without its board, and every band without its board's errors.

    found = held_out(rows)
    found["estimated"].error()                        # per cent, one figure a row
    found["estimated"].inside().mean()                # how many lie in a band that was made without their board

Three ways of estimating, each through the product's own functions: `estimated`, the roofline alone; `carried`, the
roofline's ratio to the board's MobileNetV1; `blended`, together with the ratio measured on a workstation.

Rules:
- what is left out is a kind of board, with all its variants and frameworks;
- a row's band is made of errors on other boards, which in turn were predicted by fits that saw neither that board nor
  the row's (five folds of boards, inside every fold of one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from additive import Array
from fit import Fit
from networks import workload
from published import ANCHOR, Row, host_times, terms

from edgekit_profiles.anchors import anchored_ms, blend

WAYS = ("estimated", "carried", "blended")
ANCHORING = {"host_weight": 0.75, "carried_at_least": 0.5}
CONFIDENCE = 0.92
"""Of the band among the errors it is made of. Rows of one board are alike, so that 0.90 would hold fewer than 90 %."""
FOLDS = 5
APART = ("rk3588",)
"""Of the processors with rows of three boards or more, the one of which fewer than 80 % lie in their range."""
_FEWEST = 10
"""Rows of a board whose median says something of it."""
TARGETS = ("xnnpack", "tflite")
"""The kernels that edgekit's own engines run; host times are of one of them, and mean nothing for others."""


@dataclass(frozen=True)
class Predicted:
    """rows: places of the rows that can be estimated this way. log_error: logarithm of published over predicted, of
    each.
    bands: [low, high] of each, as a factor."""

    rows: Array
    log_error: Array
    bands: Array

    def error(self) -> Array:
        """Per cent of the published latency, absolute."""
        return np.asarray(np.abs(np.exp(-self.log_error) - 1) * 100)

    def inside(self) -> Array:
        factor = np.exp(self.log_error)
        return np.asarray((self.bands[:, 0] <= factor) & (factor <= self.bands[:, 1]))


def tested(rows: Sequence[Row]) -> dict[str, Any]:
    """Sizes of the networks in the table, and how far beyond them their errors are taken to hold."""
    macs = [workload(row.network).macs for row in rows]
    return {"macs": [min(macs), max(macs)], "beyond": 3}


def held_out(rows: Sequence[Row], told: Callable[[str], None] = lambda line: None) -> dict[str, Predicted]:
    """By way. Takes about a minute."""
    fit = Fit(rows)
    start = fit.solve(fit.all)
    sites = np.array([row.site for row in rows])
    names = sorted(set(sites))
    error = {way: np.full(len(rows), np.nan) for way in WAYS}
    bands = {way: np.full((len(rows), 2), np.nan) for way in WAYS}
    for done, site in enumerate(names, start=1):
        test, train = np.where(sites == site)[0], np.where(sites != site)[0]
        for way, found in errors(fit, fit.solve(train, start), test).items():
            error[way][test] = found
        others = _inner(fit, start, train, sites)
        own = np.array([rows[i].framework in TARGETS for i in train])
        for way in WAYS:
            bands[way][test] = band(others[way], own)
        told(f"{done} of {len(names)} boards")
    known = {way: np.where(~np.isnan(error[way]))[0] for way in WAYS}
    return {way: Predicted(known[way], error[way][known[way]], bands[way][known[way]]) for way in WAYS}


def errors(fit: Fit, x: Array, chosen: Array) -> dict[str, Array]:
    """Way -> logarithm of published over predicted for each of the chosen rows, NaN where it cannot be estimated so."""
    fitted = fit.constants(x) | {"anchoring": ANCHORING}
    anchors = {row.cell: row for row in fit.rows if row.network == ANCHOR}
    told = [ways_of(fit.rows[i], anchors, fitted) for i in chosen]
    published = np.log([fit.rows[i].ms for i in chosen])
    return {way: published - np.log([one.get(way, math.nan) for one in told]) for way in WAYS}


def ways_of(row: Row, anchors: Mapping[Any, Row], fitted: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds by every way that this row can be estimated."""
    own = terms(row, fitted)
    found = {"estimated": sum(own.values())}
    anchor = anchors.get(row.cell)
    if anchor is None or anchor is row or row.network == ANCHOR:
        return found
    found["carried"] = anchored_ms(own, terms(anchor, fitted), anchor.ms, fitted)
    host = host_times().get(row.precision, {})
    if row.framework in TARGETS and row.network in host:
        found["blended"] = blend(found["carried"], anchor.ms * host[row.network] / host[ANCHOR], fitted)
    return found


def apart(fit: Fit) -> dict[str, dict[str, Any]]:
    """Processors whose boards are further apart than the band allows, each predicted without any row of its own.

    estimated: the band that holds its rows. boards: the least and the largest median of published over predicted of a
    board.
    """
    found: dict[str, dict[str, Any]] = {}
    start = fit.solve(fit.all)
    for name in APART:
        own = np.array([row.soc.lower().startswith(name) for row in fit.rows])
        off = errors(fit, fit.solve(np.where(~own)[0], start), np.where(own)[0])["estimated"]
        sites = np.array([row.site for row in fit.rows])[own]
        medians = [
            float(np.exp(np.median(off[sites == site]))) for site in set(sites) if (sites == site).sum() >= _FEWEST
        ]
        found[name] = {
            "times": int(own.sum()), "estimated": list(conformal(off)), "boards": [min(medians), max(medians)],
        }  # fmt: skip
    return found


def never_fitted(rows: Sequence[Row], fitted: Mapping[str, Any]) -> dict[str, Predicted]:
    """By way. rows: of a file that no fit reads, predicted by the constants and within the bands that edgekit comes
    with.
    """
    anchors = {row.cell: row for row in rows if row.network == ANCHOR}
    told = [ways_of(row, anchors, fitted) for row in rows]
    found = {}
    for way in WAYS:
        known = [i for i, one in enumerate(told) if way in one]
        off = np.log([rows[i].ms / told[i][way] for i in known])
        found[way] = Predicted(np.array(known), off, np.tile(fitted["bands"][way], (len(known), 1)))
    return found


def band(log_errors: Array, own: Array) -> tuple[float, float]:
    """The range, as a factor, that holds the errors of all rows and those of the rows with our engines' own kernels.

    log_errors: NaN where a row cannot be estimated so. own: which rows are of `TARGETS`.
    """
    known = ~np.isnan(log_errors)
    both = [conformal(log_errors[known]), conformal(log_errors[known & own])]
    return min(low for low, _ in both), max(high for _, high in both)


def conformal(log_errors: Array) -> tuple[float, float]:
    """Split-conformal: what holds the next error with this confidence, were it like these."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(log_errors, [tail, 1 - tail], method="weibull")
    return math.exp(low), math.exp(high)


def _inner(fit: Fit, start: Array, train: Array, sites: Array) -> dict[str, Array]:
    """Errors on the boards of `train`, each fold of them predicted from the others."""
    names = sorted(set(sites[train]))
    fold = np.array([names.index(site) % FOLDS for site in sites[train]])
    found = {way: np.full(len(train), np.nan) for way in WAYS}
    for number in range(FOLDS):
        x = fit.solve(train[fold != number], start)
        for way, one in errors(fit, x, train[fold == number]).items():
            found[way][fold == number] = one
    return found
