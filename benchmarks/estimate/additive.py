"""Fits a time that is a sum of terms, each a product of unknown factors, to measured times; robust, with weak priors.

    log t = log(sum over k of exp(base_k + sum over j of x_j * coefficient_kj))

Gauss-Newton on the logarithm of the time with Levenberg's damping; residuals beyond `scale` count less (soft L1), and
every unknown is held to its prior as a Gaussian would. Deterministic, and a tenth of a second for 1,500 rows and 150
unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Factors = Sequence[tuple[Hashable, float]]
Term = tuple[float, Factors]
"""(logarithm of what is known, the unknowns it is multiplied with: (name, power))"""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Trial:
    x: Array
    cost: float


class Additive:
    """rows: the terms of each time. times: what was measured. prior: unknown -> (expected value, deviation), in
    logarithms.
    """

    def __init__(
        self, rows: Sequence[Sequence[Term]], times: Array, prior: Callable[[Hashable], tuple[float, float]]
    ) -> None:
        self.names = sorted({name for row in rows for _, factors in row for name, _ in factors}, key=str)
        place = {name: index for index, name in enumerate(self.names)}
        widest = max(len(row) for row in rows)
        deepest = max(len(factors) for row in rows for _, factors in row)
        self._base = np.full((len(rows), widest), -np.inf)
        self._at = np.zeros((len(rows), widest, deepest), int)
        self._power = np.zeros((len(rows), widest, deepest))
        for n, row in enumerate(rows):
            for k, (base, factors) in enumerate(row):
                self._base[n, k] = base
                for j, (name, power) in enumerate(factors):
                    self._at[n, k, j], self._power[n, k, j] = place[name], power
        self._log = np.log(times)
        expected = [prior(name) for name in self.names]
        self._mean, self._deviation = (np.array(column) for column in zip(*expected, strict=True))

    def log_times(self, x: Array, chosen: Array) -> Array:
        return np.asarray(np.log(self._terms(x, chosen).sum(1)))

    def fit(self, chosen: Array, weight: Array, start: Array | None = None, scale: float = 0.15) -> Array:
        """chosen: indices of the rows to fit. weight: of each of them. start: where to begin; the priors otherwise."""
        factor = weight / scale
        x = self._mean if start is None else start
        here, damping = _Trial(x, self._cost(x, chosen, factor)), 1e-3
        for _ in range(40):
            gradient, curvature = self._slope(here.x, chosen, factor)
            step: _Trial | None = None
            while step is None and damping < 1e6:
                moved = here.x - np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
                trial = _Trial(moved, self._cost(moved, chosen, factor))
                step, damping = (trial, damping / 5) if trial.cost < here.cost else (None, damping * 4)
            if step is None:
                return here.x
            gained, here, damping = here.cost - step.cost, step, max(damping, 1e-6)
            if gained < 1e-6 * max(here.cost, 1.0):
                break
        return here.x

    def _terms(self, x: Array, chosen: Array) -> Array:
        return np.asarray(np.exp(self._base[chosen] + (x[self._at[chosen]] * self._power[chosen]).sum(2)))

    def _cost(self, x: Array, chosen: Array, factor: Array) -> float:
        off = (self.log_times(x, chosen) - self._log[chosen]) * factor
        return float((2 * (np.sqrt(1 + off * off) - 1)).sum() + (((x - self._mean) / self._deviation) ** 2).sum())

    def _slope(self, x: Array, chosen: Array, factor: Array) -> tuple[Array, Array]:
        terms = self._terms(x, chosen)
        share = terms / terms.sum(1, keepdims=True)
        jacobian = np.zeros((len(chosen), len(self.names)))
        row = np.broadcast_to(np.arange(len(chosen))[:, None, None], self._at[chosen].shape)
        np.add.at(jacobian, (row, self._at[chosen]), self._power[chosen] * share[:, :, None])
        jacobian *= factor[:, None]
        off = (np.log(terms.sum(1)) - self._log[chosen]) * factor
        softened = 1 / np.sqrt(1 + off * off)
        precision = 1 / self._deviation**2
        gradient = jacobian.T @ (softened * off) + (x - self._mean) * precision
        return gradient, (jacobian * softened[:, None]).T @ jacobian + np.diag(precision)
