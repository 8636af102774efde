"""Float ONNX graphs made uniform: names, batch axis, versions, order; folded and proved.

    model = slim(tie_down(model))
    set_batch(model, inputs, outputs)

Rules:
- opset 17 unless the source's is newer (then at most 21), IR at most 10: what the ONNX Runtimes of boards take;
- the result runs against the original on real items, or random ones, and a difference is an error;
- the same graph is always written the same way: nodes in depth-first order from the outputs; a name loses the
  exporter's counter (`Less__16`) and is numbered in that order; a weight is called after its first reader.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import onnx_file
from edgekit_converters.recipe.conversion_errors import ConversionError, first_line
from edgekit_converters.recipe.foreign_code import quiet
from edgekit_converters.sources.source_model import SourceModel, varying_size
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.system.errors import EngineError

OPSET, MAX_OPSET, MAX_IR = 17, 21, 10
NCHW_KEY = "edgekit.nchw"
"""Metadata key: the inputs (comma separated) that are NCHW in this file though the source's are NHWC."""

_TOLERANCE, _TINY = 1e-3, 1e-6
PROOFS = 4


def nchw_inputs(model: Any) -> frozenset[str]:
    """Return the inputs that the export transposed from NHWC to NCHW."""
    for entry in model.metadata_props:
        if entry.key == NCHW_KEY:
            return frozenset(entry.value.split(","))
    return frozenset()


def unused_inputs(graph: Any) -> list[str]:
    """Return inputs that no output depends on; optimizers drop them."""
    ends = [value.name for value in graph.output]
    needed = {name for node in onnx_file.makers_behind(graph, ends) for name in onnx_file.reads(node)}
    return [value.name for value in onnx_file.given(graph) if value.name not in needed.union(ends)]


def set_batch(model: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Give inputs and outputs the source's order and shapes, in place."""
    for values, specs in ((model.graph.input, inputs), (model.graph.output, outputs)):
        by_name = {value.name: value for value in values}
        ordered = [by_name[spec.name] for spec in specs]
        for value, spec in zip(ordered, specs, strict=True):
            onnx_file.set_sizes(value, spec.shape)
        onnx_file.replace_values(values, ordered)
    del model.graph.value_info[:]  # they name the batch axis otherwise; onnxruntime infers them again


def tie_down(model: Any) -> Any:
    """Convert to an opset and IR version that boards support. Raises ConversionError."""
    from onnx import version_converter

    opset = onnx_file.opset_of(model)
    target = OPSET if opset < OPSET else min(opset, MAX_OPSET)
    if opset != target:
        try:
            with quiet():
                model = version_converter.convert_version(model, target)
        except Exception as error:  # the C++ side raises RuntimeError, ConvertError and others
            what = f"the model is at opset {opset} and cannot be taken to {target}: {first_line(error)}"
            raise ConversionError(what, do=f"Export it again at opset {OPSET}") from error
    model.ir_version = min(max(model.ir_version, 8), MAX_IR)
    onnx_file.replace_values(model.graph.input, onnx_file.given(model.graph))
    return model


def slim(model: Any) -> Any:
    """Fold constants and remove dead nodes with onnxslim; the model itself if that fails."""
    import onnxslim

    try:
        with quiet():
            slimmed = onnxslim.slim(onnx_file.copy_model(model))
    except Exception:  # noqa: BLE001 - an optimization: the graph is right without it
        return model
    return slimmed if slimmed is not None and _ends(slimmed) == _ends(model) else model


def _ends(model: Any) -> tuple[set[str], set[str]]:
    return {value.name for value in model.graph.input}, {value.name for value in model.graph.output}


def disagreement(
    data: bytes, inputs: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], names: Sequence[str]
) -> str:
    """Run the graph; say which output moved, "" if all agree with `expected` (see `agreement`).
    Raises EngineError if ONNX Runtime refuses the graph."""
    for name, got, want in zip(names, answers(data, inputs), expected, strict=True):
        if (worst := agreement(got, want)) > 0:
            return f"the output '{name}' moved by {worst:.3g}"
    return ""


def answers(data: bytes, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Run the graph on several items, at once if its batch is free, else one by one.
    Raises EngineError if ONNX Runtime refuses the graph."""
    from edgekit_runtime.engines.registry import load_engine

    with load_engine("onnx", data, engine="onnxruntime") as engine:
        if all(spec.shape[0] == -1 for spec in (*engine.inputs, *engine.outputs)):
            return engine.run(inputs)
        parts = [engine.run([array[i : i + 1] for array in inputs]) for i in range(len(inputs[0]))]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def agreement(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Return the largest difference, 0 if within a thousandth of the largest value.
    Infinite for another shape, and for a NaN or an infinity unless the other is the same."""
    if got.shape != want.shape:
        return float("inf")
    one, other = got.astype(np.float64), want.astype(np.float64)
    known = np.isfinite(other)
    if not (np.isfinite(one[known]).all() and np.array_equal(one[~known], other[~known], equal_nan=True)):
        return float("inf")
    error = float(np.abs(one[known] - other[known]).max(initial=0.0))
    return 0.0 if error <= max(_TOLERANCE * float(np.abs(other[known]).max(initial=0.0)), _TINY) else error


def proof_inputs(source: SourceModel, items: int = PROOFS) -> list[NDArray[Any]]:
    """Return items to prove a conversion with: the source's own, or random ones.
    Every second random item has no negative numbers, for logarithms and roots."""
    if source.items:
        places = [place % len(source.items[0]) for place in range(items)]
        return [array[places] for array in source.items]
    random = random_inputs(source.inputs, items)
    for array in random:
        np.abs(array[1::2], out=array[1::2])
    return random


def random_inputs(specs: Sequence[TensorSpec], items: int, seed: int = 0) -> list[NDArray[Any]]:
    """Draw standard normal floats, and integers 0 and 1, which index any table."""
    rng = np.random.default_rng(seed)
    arrays: list[NDArray[Any]] = []
    for spec in specs:
        shape, dtype = (items, *spec.shape[1:]), np.dtype(spec.dtype)
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays.append(values.astype(dtype))
    return arrays


SUPPRESSION = "NonMaxSuppression"


def without_suppression(model: Any, path: Path, *, ultralytics: bool) -> str:
    """Return the command that exports the file without NonMaxSuppression, "" if it has none."""
    graph = model.graph
    node = next((node for node in graph.node if node.op_type == SUPPRESSION), None)
    if node is None:
        return ""
    if ultralytics:
        return f"yolo export model={path.stem}.pt format=onnx nms=False"
    fixed = {name for name, _ in onnx_file.constants(graph)}
    inputs = [value.name for value in graph.input if value.name not in fixed]
    ends = [name for name in node.input[:2] if name not in fixed]
    arguments = ", ".join(map(json.dumps, (str(path), f"{path.stem}-no-nms.onnx", inputs, ends)))
    return f"python -c {shlex.quote(f'from onnx.utils import extract_model; extract_model({arguments})')}"


def check_suppression(model: Any, inputs: Sequence[TensorSpec], where: str, command: str) -> None:
    """Raise SourceError if an output's size varies with the number of boxes kept.
    The graph is made to keep one box of a class, then several; a padded result keeps its size."""
    from edgekit_runtime.engines.registry import load_engine

    zeros = [np.zeros((1, *spec.shape[1:]), spec.dtype) for spec in inputs]
    shapes: dict[str, tuple[int, ...]] = {}
    for most in (1, 3, 10) if any(node.op_type == SUPPRESSION for node in onnx_file.nodes(model.graph)) else ():
        copy = onnx_file.copy_model(model)
        copy.graph.initializer.append(onnx_file.new_constant("edgekit/most", np.array([most], np.int64)))
        copy.graph.initializer.append(onnx_file.new_constant("edgekit/overlap", np.array([1.0], np.float32)))
        for node in onnx_file.nodes(copy.graph):
            if node.op_type == SUPPRESSION:  # boxes, scores, how many of a class, the largest overlap, the least score
                node.input[:] = [*node.input[:2], "edgekit/most", "edgekit/overlap"]
        try:
            with quiet(), load_engine("onnx", copy.SerializeToString(), engine="onnxruntime") as engine:
                found = dict(zip((spec.name for spec in engine.outputs), engine.run(zeros), strict=True))
        except EngineError:
            continue  # it asks for more boxes than those
        for name, array in found.items():
            if shapes.setdefault(name, array.shape) != array.shape:
                raise varying_size(name, array.shape, shapes[name], where, command)


_COUNTER = re.compile(r"__\d+")


def order(model: Any) -> None:
    """Sort nodes and weights of the main graph, and give each node its own name, in place."""
    graph = model.graph
    onnx_file.name_nodes(model)
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output}
    wanted = [makers[value.name] for value in graph.output if value.name in makers]
    placed, sequence = set[int](), list[int]()
    for start in (*wanted, *range(len(graph.node))):
        stack = [(start, False)]
        while stack:
            index, ready = stack.pop()
            if index in placed:
                continue
            if ready:
                placed.add(index)
                sequence.append(index)
                continue
            stack.append((index, True))
            needs = [makers[name] for name in onnx_file.reads(graph.node[index]) if name in makers]
            stack.extend((need, False) for need in reversed(needs) if need not in placed)
    onnx_file.replace_values(graph.node, [graph.node[index] for index in sequence])
    weights = {tensor.name: tensor for tensor in graph.initializer}
    used = dict.fromkeys(name for node in graph.node for name in onnx_file.reads(node) if name in weights)
    onnx_file.replace_values(graph.initializer, [weights[name] for name in (*used, *sorted(set(weights) - set(used)))])


def renumber(model: Any) -> None:
    """Give nodes, weights and values names that depend on the graph alone, in place."""
    graph = model.graph
    keep = {value.name for value in (*graph.input, *graph.output)}
    taken, names = set(keep), dict[str, str]()
    called = set[str]()
    for node in graph.node:
        node.name = onnx_file.free_name(_COUNTER.sub("", node.name) or node.op_type, called)
        for position, name in enumerate(node.output):
            if name and name not in keep:
                names[name] = onnx_file.free_name(f"{node.name}:{position}", taken)
    weights = {tensor.name for tensor in graph.initializer} - keep
    for node in graph.node:
        for position, name in enumerate(onnx_file.reads(node)):
            if name in weights and name not in names:
                names[name] = onnx_file.free_name(f"{node.name}/weight_{position}", taken)
    # In two steps, so that no new name is an old one that has yet to go.
    onnx_file.rename(model, {old: f"edgekit/{i}" for i, old in enumerate(names)})
    onnx_file.rename(model, {f"edgekit/{i}": new for i, new in enumerate(names.values())})


def proved(
    model: Any, source: SourceModel, finish: Callable[[Any], None], channels_first: bool = False
) -> tuple[bytes | None, str]:
    """Return the finished graph's bytes, or None and the reason if its answers moved.
    Folded by onnxslim if the answers stay.
    channels_first: pictures that the source takes as NHWC are NCHW in it."""
    inputs = proof_inputs(source)
    expected = source.predict(inputs)
    fed = [
        np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if channels_first and spec.layout == "NHWC" else array
        for array, spec in zip(inputs, source.inputs, strict=True)
    ]
    problem = ""
    for candidate in (slim(model), model):
        finish(candidate)
        data: bytes = candidate.SerializeToString(deterministic=True)
        try:
            problem = disagreement(data, fed, expected, [spec.name for spec in source.outputs])
        except EngineError as error:
            problem = str(error)
        if not problem:
            return data, ""
    return None, problem


def finish_onnx(original: Any, source: SourceModel) -> bytes:
    """Return a source's ONNX for all targets: boards' versions, folded, ordered, proved.
    original: its values have the names of the specs' `tensor`.
    Raises ConversionError if its answers moved."""
    model = tie_down(onnx_file.copy_model(original))

    def finish(candidate: Any) -> None:
        order(candidate)
        # Contract names in place of the file's (they differ where TensorFlow left ':0').
        onnx_file.rename(candidate, {spec.tensor: spec.name for spec in (*source.inputs, *source.outputs)})
        set_batch(candidate, source.inputs, source.outputs)

    data, problem = proved(model, source, finish)
    if data is not None:
        return data
    before, after = onnx_file.opset_of(original), onnx_file.opset_of(model)
    step, do = f"taking the graph from opset {before} to {after}", f"Export it again at opset {OPSET}"
    if before == after:
        step, do = "rewriting the graph", "Export it again for inference: one item must always get one answer"
    raise ConversionError(f"{step} failed: {problem}", where=str(source.path), do=do)
