"""What a converter made -> an Artifact: loaded by the engine that boards run, its tensors called as the contract does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgekit_converters.errors import ConversionError
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.targets.artifact import Artifact, Recipe
from edgekit_converters.targets.float_model import FloatModel
from edgekit_converters.targets.plan import Plan
from edgekit_converters.targets.samples import turned_shape
from edgekit_runtime.engines import load_engine
from edgekit_runtime.errors import EngineError
from edgekit_runtime.tensors import Layout, TensorSpec

__all__ = ["described"]


def described(
    source: SourceModel, model: FloatModel, recipe: Recipe, plan: Plan, data: bytes, batch: int = 1
) -> Artifact:
    """batch: the one that the file was made with, where it cannot be free. Raises ConversionError where the result does not load, or contradicts the source."""
    where = f"{source.path.name}, {recipe.name}"
    try:
        with load_engine(recipe.format, data) as engine:
            tensors = engine.inputs, engine.outputs
    except EngineError as error:
        raise ConversionError(f"the converter's result does not load: {error.what}", where=where) from error
    inputs = _named(tensors[0], model.inputs, source.inputs, f"{where}, inputs")
    outputs = _named(tensors[1], model.outputs, source.outputs, f"{where}, outputs")
    layouts = {spec.name: _layout(spec, model) for spec in source.inputs}
    none: frozenset[str] = frozenset()
    sides = (("input", inputs, source.inputs, model.turned), ("output", outputs, source.outputs, none))
    for kind, named, specs, turned in sides:
        shapes = {spec.name: turned_shape(spec) if spec.name in turned else spec.shape for spec in specs}
        for tensor in named:
            if not _fits(tensor.shape, shapes[tensor.name], batch):
                raise ConversionError(
                    f"{kind} '{tensor.name}' became {list(tensor.shape)}; the original has {list(shapes[tensor.name])}",
                    where=where,
                )
    inputs = tuple(replace(spec, layout=layouts[spec.name]) for spec in inputs)
    macs, weights = _quantized_fraction(recipe, data)
    return Artifact(recipe, data, inputs, outputs, macs, weights, dict(model.tools), plan=plan)


def _named(
    tensors: Sequence[TensorSpec], names: Sequence[str], specs: Sequence[TensorSpec], where: str
) -> tuple[TensorSpec, ...]:
    if len(tensors) != len(names) or sorted(names) != sorted(spec.name for spec in specs):
        raise ConversionError(
            f"the artifact has {[tensor.tensor for tensor in tensors]}, the model {[spec.name for spec in specs]}",
            where=where,
        )
    return tuple(replace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True))


def _layout(spec: TensorSpec, model: FloatModel) -> Layout | None:
    if spec.name not in model.turned:
        return spec.layout
    return "NCHW" if spec.layout == "NHWC" else "NHWC"


def _fits(got: Sequence[int], want: Sequence[int], batch: int) -> bool:
    """Same rank and sizes; the batch axis may be fixed where the source leaves it free."""
    return len(got) == len(want) and tuple(got[1:]) == tuple(want[1:]) and got[0] in (batch, -1)


def _quantized_fraction(recipe: Recipe, data: bytes) -> tuple[float, float]:
    from edgekit_converters.workload import quantized_fraction

    macs, weights = quantized_fraction(recipe.format, data)
    return float(macs), float(weights)
