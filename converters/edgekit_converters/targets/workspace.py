"""Make artifacts of one source by recipes: each float model and its statistics only once.

    workspace = Workspace(source, samples)
    artifact = workspace.make(recipe("tflite-int8"))
    layer = workspace.graph("tflite").layers[0].name
    islands = workspace.make(recipe("tflite-int8-mixed"), QuantizationPlan(float_layers=frozenset({layer})))

Rules: a recipe always starts from the float model's bytes, so another plan costs a second and not a conversion; a
store spares the work of earlier runs; every artifact is loaded by the engine that boards run before it is returned.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.statistics import ObserveOptions, Statistics, observe
from edgekit_converters.formats.graph import Graph, open_graph
from edgekit_converters.recipe.artifact import (
    LEAST_INT8,
    STATIC,
    Artifact,
    FloatModel,
    Precision,
    QuantizationPlan,
    Recipe,
    Samples,
    Step,
    feeds,
    from_stored,
    stored_bytes,
    transposed_shape,
)
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.progress import Progress, silent, tick
from edgekit_converters.recipe.store import NO_STORE, StageStore, key, remembered, unfinished_folder
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.isolated import IsolatedSource
from edgekit_converters.sources.load import actual
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.sources.tflite_source import FinishedTflite
from edgekit_runtime.contract.spec import Layout, TensorSpec
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.errors import EngineError
from edgekit_runtime.system.strict_json import to_json

FORMATS = ("tflite", "onnx", "ncnn")


@dataclass(frozen=True)
class QuantizerInput:
    """A float model, its graph, and what calibration saw of it."""

    model: FloatModel
    graph: Graph
    statistics: Statistics


class Workspace:
    """The artifacts of one source. Thread-safe.

    samples: calibration examples, read until ranges have settled if they are `shuffled`.
    samples_digest: of the samples in their order, for the store's keys.
    proof: items to check a conversion with, None for the samples.
    scratch: a folder for the state of an interrupted calibration.
    """

    def __init__(
        self,
        source: SourceModel,
        samples: Samples | None = None,
        progress: Progress = silent,
        *,
        store: StageStore = NO_STORE,
        samples_digest: str = "",
        proof: Samples | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.source = source
        self._samples, self._progress, self._store = samples, progress, store
        self._proof, self._scratch = samples if proof is None else proof, scratch
        self._keys = (source.sha256, samples_digest)
        self._models: dict[tuple[str, int], FloatModel] = {}
        self._grounds: dict[tuple[str, tuple[Step, ...]], QuantizerInput] = {}
        self._locks, self._giving = {name: RLock() for name in FORMATS}, RLock()

    def float_model(self, format: str, batch: int = 1) -> FloatModel:  # noqa: A002
        """Return the float model. batch: for formats with a fixed batch.

        Raises ConversionError if the source cannot be converted, or not with that batch.
        """
        with self._locks[format]:
            if (format, batch) not in self._models:
                name = key("float-model", format, self._keys[0], *([batch] if batch != 1 else []))
                make = partial(self._convert, format, batch)
                self._models[format, batch] = remembered(self._store, name, partial(_float_model, format), make)
            return self._models[format, batch]

    def _convert(self, format: str, batch: int) -> bytes:  # noqa: A002
        source, progress = actual(self.source), self._stages(format)
        self._give_items(source)
        if format == "ncnn":  # pnnx takes ONNX, and has a sandbox of its own
            from edgekit_converters.targets.ncnn_float import float_model as made_by_pnnx

            return stored_bytes(made_by_pnnx(source, self.float_model("onnx"), progress))
        if isinstance(source, IsolatedSource):
            progress("conversion", 0, None)
            return source.float_model(format, batch)
        return convert_float_model(source, format, batch, progress)

    def _give_items(self, source: SourceModel) -> None:
        """Give the source items to check its conversion with, if they fit."""
        with self._giving:  # both formats may be converted at once
            if self._proof is None or source.items:
                return
            some = list(islice(self._proof, float_onnx.PROOFS))
            wanted = [(1, *spec.shape[1:]) for spec in source.inputs]
            if some and all([array.shape for array in item] == wanted for item in some):
                source.items[:] = [np.concatenate(arrays) for arrays in zip(*some, strict=True)]

    def graph(self, format: str) -> Graph:  # noqa: A002
        model = self.float_model(format)
        return open_graph(format, model.data)

    def statistics(self, format: str) -> Statistics:  # noqa: A002
        """Return the float model's statistics. Raises ConversionError without samples."""
        return self.ground(format).statistics

    def feeds(self, format: str, samples: Samples | None = None) -> Iterator[list[NDArray[Any]]]:  # noqa: A002
        """Yield samples as the float model takes them; None for the calibration samples."""
        samples = self._samples if samples is None else samples
        if samples is None or len(samples) == 0:
            raise ConversionError(
                "an int8 recipe needs calibration data, and none was given",
                where=self.source.path.name,
                do="Pass a calibration set: --calibration DIR",
            )
        return feeds(self.float_model(format), self.source.inputs, samples, silent)

    def ground(self, format: str, steps: tuple[Step, ...] = ()) -> QuantizerInput:  # noqa: A002
        """Return the float model after those steps, with its statistics."""
        with self._locks[format]:
            found = self._grounds.get((format, steps))
            if found is None:
                found = self._refined(format, steps) if steps else self._observed(self.float_model(format), ())
                self._grounds[format, steps] = found
            return found

    def check_possible(self, recipe: Recipe) -> None:
        """Raise ConversionError if a recipe that calibrates would change nothing."""
        if recipe.needs_calibration:
            _of_target(recipe.format, "quantize", "check_possible")(self.float_model(recipe.format), recipe)

    def make(self, recipe: Recipe, plan: QuantizationPlan | None = None) -> Artifact:
        """Make an artifact.

        Raises ConversionError if the recipe does not fit this model, or its result does not load.
        """
        if recipe.finished:
            return pack_artifact(actual(self.source), recipe)
        plan = plan or self.learnt_plan(recipe) or (STATIC if recipe.needs_calibration else QuantizationPlan())

        def make() -> bytes:
            self.check_possible(recipe)
            return self._made(recipe, plan, *self._start(recipe, plan))

        name = key("artifact", recipe.name, to_json(plan), *self._keys)
        return remembered(self._store, name, partial(_artifact, recipe), make)

    def learnt_plan(self, recipe: Recipe) -> QuantizationPlan | None:
        """Return the plan that `edgekit compress` trained the model for, or None."""
        from edgekit_converters.formats.keras_record import learnt_plan, read_record

        if recipe.precision != "int8" or recipe.finished or read_record(self.source.path) is None:
            return None
        return learnt_plan(self.source.path, self.graph(recipe.format))

    def make_batch(self, recipe: Recipe, plan: QuantizationPlan, batch: int) -> Artifact:
        """Make the artifact of that plan for `batch` items, with the same weights and ranges.

        For a format whose files have a fixed batch. Raises ConversionError if the source's batch is fixed, or if
        another batch gives another graph.
        """
        if recipe.format != "tflite":
            raise ConversionError("it takes any batch as it is", where=recipe.name, do="Leave --batch out")
        name = key("artifact", recipe.name, to_json(plan), *self._keys, batch)
        make = partial(self._made_batch, recipe, plan, batch)
        return remembered(self._store, name, partial(_artifact, recipe), make)

    def _made_batch(self, recipe: Recipe, plan: QuantizationPlan, batch: int) -> bytes:
        model, (single, statistics) = self.float_model(recipe.format, batch), self._start(recipe, plan)
        if statistics is not None:
            # the refined weights of the same graph with a batch of 1
            plain, refined = self.graph(model.format), open_graph(model.format, single.data)
            graph = open_graph(model.format, model.data)
            if [layer.name for layer in graph.layers] != [layer.name for layer in plain.layers]:
                raise ConversionError("with another batch it becomes another graph", where=self.source.path.name)
            values = {}
            for old, new in zip(plain.layers, graph.layers, strict=True):
                for before, after in ((old.weight, new.weight), (old.bias, new.bias)):
                    if before is not None and after is not None:
                        values[after] = refined.constant(before)
            model = replace(model, data=graph.with_constants(values).data)
        return self._made(recipe, plan, model, statistics, batch)

    def trial(self, recipe: Recipe, plan: QuantizationPlan) -> bytes:
        """Make an artifact's bytes without storing them, for a search that keeps one of many."""
        return _quantized(recipe, plan, *self._start(recipe, plan))

    def _start(self, recipe: Recipe, plan: QuantizationPlan) -> tuple[FloatModel, Statistics | None]:
        """Return what a recipe starts from, with statistics if it calibrates."""
        if not recipe.needs_calibration:
            return self.float_model(recipe.format), None
        ground = self._with_islands(recipe.format, plan)
        return ground.model, ground.statistics

    def _made(
        self, recipe: Recipe, plan: QuantizationPlan, model: FloatModel, seen: Statistics | None, batch: int = 1
    ) -> bytes:
        data = _quantized(recipe, plan, model, seen)
        artifact = describe_artifact(self.source, model, recipe, plan, data, batch)
        return stored_bytes(replace(artifact, samples=0 if seen is None else seen.samples))

    def _with_islands(self, format: str, plan: QuantizationPlan) -> QuantizerInput:  # noqa: A002
        """Return refined weights, with the original ones for layers that stay in float."""
        from edgekit_converters.targets.rounding import restore_layers

        ground = self.ground(format, plan.steps)
        if not plan.float_layers or "round" not in plan.steps:
            return ground
        exact = self.ground(format, tuple(step for step in plan.steps if step == "equalise"))
        data = restore_layers(ground.graph, exact.graph, plan.float_layers).data
        return replace(ground, model=replace(ground.model, data=data))

    def _refined(self, format: str, steps: tuple[Step, ...]) -> QuantizerInput:  # noqa: A002
        from edgekit_converters.targets.rounding import apply

        first = self.ground(format)
        layers = [layer.name for layer in first.graph.layers]

        def read(data: bytes) -> Graph | None:
            found = open_graph(format, data)
            return found if [layer.name for layer in found.layers] == layers else None

        def make() -> bytes:
            return apply(first.graph, steps, first.statistics, lambda: self.feeds(format), self._stages(format)).data

        graph = remembered(self._store, key("refined", format, list(steps), *self._keys), read, make)
        model = replace(first.model, data=graph.data)
        if "equalise" in steps:  # activations have other ranges now
            return self._observed(model, steps)
        return QuantizerInput(model, graph, first.statistics)

    def _observed(self, model: FloatModel, steps: tuple[Step, ...]) -> QuantizerInput:
        graph = open_graph(model.format, model.data)
        name = key("statistics", model.format, list(steps), *self._keys)

        def make() -> bytes:
            arrays, progress = self.feeds(model.format), self._stages(model.format)
            assert self._samples is not None
            checkpoint = None if self._scratch is None else unfinished_folder(self._scratch, name)
            options = ObserveOptions(getattr(self._samples, "shuffled", False), checkpoint, name)
            seen = observe(graph, arrays, len(self._samples), progress, options)
            if seen.settled_at is not None:
                progress(f"ranges have settled after {seen.settled_at} of {len(self._samples)}", 0, None)
            return seen.to_bytes()

        return QuantizerInput(model, graph, remembered(self._store, name, Statistics.from_bytes, make))

    def _stages(self, format: str) -> Progress:  # noqa: A002
        """Prefix stages with the format's name: two formats may be converted at once."""
        name = {"tflite": "TFLite", "onnx": "ONNX"}.get(format, format)

        def report(stage: str, done: int, total: int | None) -> None:
            tick()
            self._progress(f"{name} {stage}", done, total)

        return report


def _float_model(format: str, stored: bytes) -> FloatModel | None:  # noqa: A002
    found = from_stored(FloatModel, stored)
    return found if found.format == format else None


def _artifact(recipe: Recipe, stored: bytes) -> Artifact | None:
    found = from_stored(Artifact, stored)
    return replace(found, recipe=recipe) if found.recipe == recipe else None


def convert_float_model(source: SourceModel, format: str, batch: int, progress: Progress) -> bytes:  # noqa: A002
    """Convert in this process; return `stored_bytes`. Raises ConversionError."""
    make = _of_target(format, "float", "float_model")
    return stored_bytes(make(source, progress) if batch == 1 else make(source, progress, batch))


def _quantized(recipe: Recipe, plan: QuantizationPlan, model: FloatModel, statistics: Statistics | None) -> bytes:
    return cast(bytes, _of_target(recipe.format, "quantize", "make")(model, recipe, plan, statistics))


def _of_target(format: str, module: str, function: str) -> Callable[..., Any]:  # noqa: A002
    """Import a function of `{format}_{module}`."""
    found = importlib.import_module(f"edgekit_converters.targets.{format}_{module}")
    return cast(Callable[..., Any], getattr(found, function))


def pack_artifact(source: SourceModel, recipe: Recipe) -> Artifact:
    """Pack a finished file; its recipe gets the precision of the file.

    Raises ConversionError for other sources.
    """
    from edgekit_converters.formats.workload import quantized_fraction

    if not isinstance(source, FinishedTflite):
        raise ConversionError(
            "only a .tflite file can be packed as it is", where=f"{source.path.name}, {recipe.name}", do="Leave it out"
        )
    data = source.finished()
    if recipe.per_tensor:
        from edgekit_converters.targets.tflite_quantize import per_tensor_dense

        data = per_tensor_dense(data)
    macs, weights = quantized_fraction(recipe.format, data)
    precision: Precision = "int8" if macs >= LEAST_INT8 else "dynamic" if weights > 0 else "float32"
    inputs, outputs = source.tensors
    return Artifact(replace(recipe, precision=precision), data, inputs, outputs, float(macs), float(weights), {})


def describe_artifact(
    source: SourceModel, model: FloatModel, recipe: Recipe, plan: QuantizationPlan, data: bytes, batch: int = 1
) -> Artifact:
    """Load a converter's result with the engine that boards run, and name its tensors.

    batch: of the file, if it cannot be free.

    Raises ConversionError if the result does not load, or contradicts the source.
    """
    from edgekit_converters.formats.workload import quantized_fraction

    where = f"{source.path.name}, {recipe.name}"
    try:
        with load_engine(recipe.format, data) as engine:
            tensors = engine.inputs, engine.outputs
    except EngineError as error:
        raise ConversionError(f"the converter's result does not load: {error.what}", where=where) from error
    inputs = _named(tensors[0], model.inputs, source.inputs, f"{where}, inputs")
    outputs = _named(tensors[1], model.outputs, source.outputs, f"{where}, outputs")
    other: dict[Layout | None, Layout] = {"NHWC": "NCHW", "NCHW": "NHWC"}
    layouts = {spec.name: spec.layout for spec in source.inputs}
    layouts |= {name: other[layouts[name]] for name in model.transposed}
    for kind, named, specs in (("input", inputs, source.inputs), ("output", outputs, source.outputs)):
        transposed = model.transposed if kind == "input" else frozenset()
        shapes = {spec.name: transposed_shape(spec) if spec.name in transposed else spec.shape for spec in specs}
        for tensor in named:
            got, want = tensor.shape, shapes[tensor.name]
            # the batch axis may be fixed where the source leaves it free
            if len(got) != len(want) or tuple(got[1:]) != tuple(want[1:]) or got[0] not in (batch, -1):
                raise ConversionError(
                    f"{kind} '{tensor.name}' became {list(got)}; the original has {list(want)}", where=where
                )
    inputs = tuple(replace(spec, layout=layouts[spec.name]) for spec in inputs)
    macs, weights = quantized_fraction(recipe.format, data)
    return Artifact(recipe, data, inputs, outputs, float(macs), float(weights), dict(model.tools), plan=plan)


def _named(
    tensors: Sequence[TensorSpec], names: Sequence[str], specs: Sequence[TensorSpec], where: str
) -> tuple[TensorSpec, ...]:
    if len(tensors) != len(names) or sorted(names) != sorted(spec.name for spec in specs):
        raise ConversionError(
            f"the artifact has {[tensor.tensor for tensor in tensors]}, the model {[spec.name for spec in specs]}",
            where=where,
        )
    return tuple(replace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True))
