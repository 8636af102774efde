"""Measure plans for `repair`, and find the plan that it starts from.

    bench = WorkspaceBench(workspace, "tflite")
    found = repair(bench, check, RepairStart(...), RepairTarget(max_drop=0.05, ...))

Rules:
- noise is measured on samples spread over the calibration set, by the engine that boards run; a detector's is that of
  its boxes, if the contract says where they are;
- noise is cached by the content that it follows from; a search stores no artifact but those that were checked;
- the first plan depends on calibration samples alone, on no label and no evaluation item;
- `STATIC` gives way to MSE ranges with less noise, but to percentiles or entropy only if they halve it;
- a plan that cannot be made is skipped; if none can be made, `STATIC` is returned, and fails where it is reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import spread
from edgekit_converters.data.output_kinds import OFFSET, apart
from edgekit_converters.fidelity.detection import decision_noise
from edgekit_converters.fidelity.explain import examine, explain
from edgekit_converters.fidelity.repair import BETTER, RepairBench
from edgekit_converters.fidelity.sensitivity import Unit, island_units
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.artifact import STATIC, QuantizationPlan, RangeMethod, Recipe
from edgekit_converters.recipe.artifact import recipe as named
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.progress import tick
from edgekit_converters.recipe.store import NO_STORE, StageStore, cached_json, key
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.contract.detect import candidates
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.errors import EngineError
from edgekit_runtime.system.strict_json import to_json

SAMPLES = 32
ALONE = 8
"""Samples for one layer alone: there are many layers, and only their order counts."""
BLAMED = 4
"""Samples for the explanation of the damage, which runs the network layer by layer."""

_BESIDE = 0.1

Outputs = Sequence[NDArray[Any]]


class WorkspaceBench:
    """identity: the samples and model that cached numbers follow from.
    contract: a detector's.
    """

    def __init__(
        self,
        workspace: Workspace,
        format: str,  # noqa: A002
        *,
        store: StageStore = NO_STORE,
        identity: Sequence[str] = (),
        contract: Contract | None = None,
    ) -> None:
        self._contract = contract if contract is not None and contract.detection is not None else None
        self._workspace, self._format = workspace, format
        self._store, self._identity = store, tuple(identity)
        self._seen: dict[str, float] = {}
        self._causes: dict[str, list[frozenset[str]]] = {}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        graph = self._workspace.graph(self._format)
        names = {layer.weight for layer in graph.layers if layer.weight is not None}
        return island_units(graph.layers, {name: graph.constant(name).size for name in names})

    def noise(self, recipe: str, plan: QuantizationPlan) -> float:
        return self._measure_or_load(recipe, plan, SAMPLES)

    def noise_alone(self, recipe: str, plan: QuantizationPlan, unit: Unit) -> float:
        others = frozenset().union(*(other.layers for other in self.units)) - unit.layers
        alone = QuantizationPlan(plan.ranges, plan.fixed_ranges, others, plan.steps)
        return self._measure_or_load(recipe, alone, ALONE)

    def blamed(self, recipe: str, plan: QuantizationPlan) -> list[frozenset[str]]:
        name = key("blamed", recipe, to_json(plan), BLAMED, *self._identity)
        if name not in self._causes:
            found = cached_json(self._store, name, list[list[str]], lambda: self._explained(recipe, plan))
            self._causes[name] = [frozenset(layers) for layers in found]
        return self._causes[name]

    def _explained(self, recipe: str, plan: QuantizationPlan) -> list[list[str]]:
        def ticking(stage: str, done: int, total: int | None) -> None:
            tick()

        steps = tuple(step for step in plan.steps if step == "equalise")  # which moves what the float layers answer
        ground = self._workspace.ground(self._format, steps)
        quantized = open_graph(self._format, self._workspace.trial(named(recipe), plan))
        feeds, ranges = self._inputs[:BLAMED], ground.statistics.ranges("minmax")
        case = examine(ground.graph, quantized, feeds, len(feeds), ticking, ranges)
        return [[*cause.float_layers] for cause in explain(case) if cause.float_layers]

    def _measure_or_load(self, recipe: str, plan: QuantizationPlan, samples: int) -> float:
        what = "noise" if self._contract is None else "noise of boxes"
        name = key(what, recipe, to_json(plan), samples, *self._identity)
        if name not in self._seen:
            measure = partial(self._measured, recipe, plan, samples)
            self._seen[name] = cached_json(self._store, name, float, measure, (0.0).__le__)
        return self._seen[name]

    def _measured(self, recipe: str, plan: QuantizationPlan, samples: int) -> float:
        data = self._workspace.trial(named(recipe), plan)
        inputs, originals = (values[:samples] for values in self._samples)
        answers = self._run(data, inputs)
        if self._contract is None:
            return output_noise(originals, answers)
        if not all(np.isfinite(values).all() for answer in answers for values in answer):
            return float("inf")
        names = self._workspace.float_model(self._format).outputs
        sides = [[dict(zip(names, outputs, strict=True)) for outputs in each] for each in (originals, answers)]
        of_boxes = decision_noise(self._contract, *sides)  # None where it finds too little in these samples
        return output_noise(originals, answers) if of_boxes is None else of_boxes

    @cached_property
    def _inputs(self) -> list[Sequence[NDArray[Any]]]:
        """SAMPLES calibration samples, drawn at random from all of them."""
        count = self._workspace.statistics(self._format).samples
        chosen = spread(count, SAMPLES)
        feeds = islice(self._workspace.feeds(self._format), count)
        found = [arrays for index, arrays in enumerate(feeds) if index in chosen]
        return [found[place] for place in np.random.default_rng(0).permutation(len(found))]

    @cached_property
    def _samples(self) -> tuple[Sequence[Sequence[NDArray[Any]]], Sequence[Outputs]]:
        """Inputs and what the float model answers; a detector's with the surest boxes first."""
        originals = self._run(self._workspace.float_model(self._format).data, self._inputs)
        order = list(range(len(originals)))
        if self._contract is not None:
            names, contract = self._workspace.float_model(self._format).outputs, self._contract
            found = [candidates(dict(zip(names, outputs, strict=True)), contract).scores for outputs in originals]
            order.sort(key=lambda place: -float(found[place].sum()))
        return [self._inputs[place] for place in order], [originals[place] for place in order]

    def _run(self, data: bytes, inputs: Sequence[Sequence[NDArray[Any]]]) -> list[Outputs]:
        graph = open_graph(self._format, data)
        with graph.watch(graph.outputs) as watched:
            found = list[Outputs]()
            for arrays in inputs:
                tick()
                answer = watched.run(arrays)
                found.append([answer[name] for name in graph.outputs])
            return found


def output_noise(originals: Sequence[Outputs], answers: Sequence[Outputs]) -> float:
    """Noise power over signal power, the mean over samples and outputs; infinite if not finite.

    Rules:
    - each sample counts alike; one whose signal is small beside the others' counts as if it had a tenth of theirs;
    - of three axes or more, a map or a list, the ratio is the mean over channels, or over groups of channels with
      similar ranges if these are far apart;
    - a part that is the same for every sample is not a signal if it is most of an output: `_spread`.
    """
    ratios = []
    for before, after in zip(zip(*originals, strict=True), zip(*answers, strict=True), strict=True):
        noise = np.array([_power(y.astype(np.float64) - x, x.shape) for x, y in zip(before, after, strict=True)])
        signal = _spread(before)
        if signal is None:
            signal = np.array([_power(values, values.shape) for values in before])  # [samples, channels]
            groups = []
            if signal.shape[1] > 1:
                channels = 1 + int(np.argmin(before[0].shape[1:]))
                others = tuple(axis for axis in range(before[0].ndim) if axis != channels)
                groups = apart(np.max([np.abs(values).max(axis=others) for values in before], axis=0))
            if len(groups) > 1:
                signal, noise = (np.stack([part[:, at].sum(axis=1) for at in groups], 1) for part in (signal, noise))
            signal = (signal + _BESIDE * signal.mean(axis=0)) / (1.0 + _BESIDE)
        else:
            noise = noise.sum(axis=1, keepdims=True)
        silent = signal <= 0
        ratios.append(float(np.mean(np.where(silent, noise, noise / np.where(silent, 1.0, signal)))))
    mean = float(np.mean(ratios))
    return mean if np.isfinite(mean) else float("inf")


def _spread(answers: Outputs) -> NDArray[np.float64] | None:
    """Mean power of what differs between samples, [1, 1]; None without a large common offset."""
    if len(answers) < 2 or len({values.shape for values in answers}) > 1:
        return None
    rows = np.stack([values.astype(np.float64).reshape(-1) for values in answers])
    power, varies = float(np.square(rows).sum(axis=1).mean()), float(rows.var(axis=0).sum())
    if varies <= 1e-6 * power or (rows.shape[1] > 1 and varies > (1 - OFFSET) * power):
        return None
    return np.array([[varies]])


def _power(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Sums of squares over all but the shortest axis, [channels]; [1] for fewer than three axes."""
    squares = np.square(values, dtype=np.float64)
    if len(shape) < 3:
        return np.full(1, squares.sum())
    channels = 1 + int(np.argmin(shape[1:]))
    return np.asarray(squares.sum(axis=tuple(axis for axis in range(len(shape)) if axis != channels)))


_MARGINS: tuple[tuple[RangeMethod, float], ...] = (("mse", 1.0), ("percentile", 0.5), ("entropy", 0.5))
"""A method is taken if its noise is below this share of the best so far."""


def first_plan(bench: RepairBench, recipe: Recipe) -> QuantizationPlan:
    """The plan of least noise, by `_MARGINS`: each range method, then the best without steps.

    Recipes without calibration get an empty plan.
    """
    if not recipe.needs_calibration:
        return QuantizationPlan()
    best, least = STATIC, _noise(bench, recipe, STATIC)
    for method, margin in _MARGINS:
        plan = replace(STATIC, ranges=method)
        noise = _noise(bench, recipe, plan)
        if noise < least * margin:
            best, least = plan, noise
    as_they_are = replace(best, steps=())
    return as_they_are if _noise(bench, recipe, as_they_are) < least * BETTER else best


def _noise(bench: RepairBench, recipe: Recipe, plan: QuantizationPlan) -> float:
    try:
        noise = bench.noise(recipe.name, plan)
    except (ConversionError, EngineError):
        return math.inf
    return math.inf if math.isnan(noise) else noise
