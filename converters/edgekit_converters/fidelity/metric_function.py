"""`--metric module:function`: a user's own metric over a whole set.

    def score(outputs, labels):             # outputs: {name: array [N, ...]}; labels: array [N, ...] or a list
        return float(...)                   # higher is better, unless score.higher_is_better = False

The function is tried on the original's answers before anything is converted. A non-finite answer is passed as zeros.
The drop's interval calls it on up to 100 resamples of the items, fewer if slow, and skips those on which it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Label
from edgekit_converters.fidelity.intervals import resampled_interval
from edgekit_converters.fidelity.result import Score
from edgekit_converters.recipe.conversion_errors import MetricError
from edgekit_converters.recipe.user_function import failed, find_function

Outputs = Mapping[str, NDArray[Any]]

_RESAMPLES = 100
_LEAST_RESAMPLES = 20
_PATIENCE_S = 3.0  # a repair compares dozens of artifacts, and a slow function would use up its time


@dataclass(frozen=True)
class FunctionMetric:
    """A metric that the user's own function computes.

    name: `module:function`.
    clock: seconds.
    joined: makes the outputs that the function was written for; None for the answer's own.
    """

    name: str
    function: Callable[[dict[str, NDArray[Any]], Any], Any]
    higher_is_better: bool = True
    clock: Callable[[], float] = perf_counter
    joined: Callable[[Outputs], Outputs] | None = None

    def keep(self, answer: Outputs | None, label: Label) -> tuple[Outputs | None, Label]:
        return (answer if answer is None or self.joined is None else self.joined(answer)), label

    def rehearse(self, answers: Sequence[Outputs], labels: Sequence[Label]) -> None:
        """Call the function on the original's answers, to find its mistakes before the work.

        Raises MetricError, which describes the first item.
        """
        kept = [answer if self.joined is None else self.joined(answer) for answer in answers]
        outputs = _stacked(kept, kept[0])
        try:
            self._call(outputs, labels)
        except MetricError as error:
            items = ", ".join(f"{name} {value.dtype} {list(value.shape[1:])}" for name, value in outputs.items())
            what = f"{error.what}, on the original's answers (first item: {items}; label {_shown(labels[0])})"
            raise MetricError(what, where=error.where, do=error.do) from error

    def compare(
        self, original: Sequence[tuple[Outputs | None, Label]], artifact: Sequence[tuple[Outputs | None, Label]]
    ) -> Score:
        shapes = next(answer for answer, _ in original if answer is not None)
        first, second = (_stacked([answer for answer, _ in kept], shapes) for kept in (original, artifact))
        labels = [label for _, label in original]
        start = self.clock()
        before, after = self._call(first, labels), self._call(second, labels)
        took = self.clock() - start
        sign = 1 if self.higher_is_better else -1

        def drop(at: NDArray[np.int64]) -> float:
            some = [labels[i] for i in at]
            try:
                return sign * (self._call(_rows(first, at), some) - self._call(_rows(second, at), some))
            except MetricError:
                return math.nan

        resamples = int(min(max(_PATIENCE_S / max(took, 1e-9), _LEAST_RESAMPLES), _RESAMPLES))
        low, high = resampled_interval(drop, len(labels), resamples)
        loss = sign * (before - after)
        interval = (loss, loss) if math.isnan(low) else (low, high)
        return Score(self.name, before, after, loss, interval, self.higher_is_better)

    def _call(self, outputs: dict[str, NDArray[Any]], labels: Sequence[Label]) -> float:
        """Raises MetricError if it raises or returns anything but one finite number."""
        try:
            # One array where the labels are alike in shape, a list where they are not
            shapes = {np.shape(label) for label in labels}
            value = self.function(outputs, (np.asarray(labels) if len(shapes) == 1 else list(labels)))
        except (Exception, SystemExit) as error:  # a function that exits is one that fails, not the end of a build
            do = "Mend the function: it is called with {output name: array [N, ...]} and the labels"
            raise failed(self.name, error, MetricError, do) from error
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise MetricError(f"gave {_shown(value)}", where=self.name, do="Return one finite number")
        return number


def open_metric_function(spec: str, joined: Callable[[Outputs], Outputs] | None = None) -> FunctionMetric:
    """spec: `package.module:function`; the current folder is searched first. Raises MetricError."""
    function = find_function(spec, MetricError, "Name a function (outputs, labels) -> float")
    return FunctionMetric(spec, function, bool(getattr(function, "higher_is_better", True)), joined=joined)


def _stacked(answers: Sequence[Outputs | None], like: Outputs) -> dict[str, NDArray[Any]]:
    return {
        name: np.stack([np.zeros_like(value) if answer is None else answer[name] for answer in answers])
        for name, value in like.items()
    }


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else type(value).__name__


def _rows(outputs: dict[str, NDArray[Any]], at: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    return {name: value[at] for name, value in outputs.items()}
