"""ONNX files, opset 11 and up, as sources: one session of ONNX Runtime.

    source = load(Path("net.onnx"), LoadOptions())

Rules: `checked_onnx` says what a file may hold and what the options change in it; weights stay data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.onnx_file import parse, sizes
from edgekit_converters.recipe.conversion_errors import LabelOutputError, SourceError
from edgekit_converters.sources import checked_onnx, float_onnx, shapes
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.onnx_stated import (
    LabelCheck,
    Scores,
    read_metadata,
    scores_alone,
    standardise,
    stated_classes,
    stated_contract,
)
from edgekit_converters.sources.shapes import check_inputs, image_layout, measured_outputs, unique_names
from edgekit_converters.sources.source_model import Note, SourceModel, refusing, with_options
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import Engine, load_engine


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxSource(SourceModel):
    """An ONNX model that passed every check.
    model: the file's, with the options applied.
    label: of a classifier whose label output was removed."""

    model: Any = field(repr=False)
    engine: Engine = field(repr=False)
    label: LabelCheck | None = field(default=None, repr=False)

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the original in float on any batch size; a fixed batch of 1 runs item by item."""
        return self.answered(inputs, self.engine.run, at_once=self.free_batch)

    def confirm(self, inputs: Sequence[NDArray[Any]], answers: Sequence[NDArray[Any]]) -> None:
        fed = {spec.tensor: array for spec, array in zip(self.inputs, inputs, strict=True)}
        if self.label is not None and not self.label.holds(fed, answers[0], at_once=self.free_batch):
            what = f"its output '{self.label.name}' is not the class with the best score"
            raise LabelOutputError(what, where=str(self.path))

    @cached_property
    def _onnx(self) -> bytes:
        return float_onnx.finish_onnx(self.model, self)


def load(path: Path, options: LoadOptions) -> OnnxSource:
    """Parse, check, and open a session. Raises SourceError with the reason."""
    (model, sha256), where = checked_onnx.read(path), str(path)
    if options.keep_label and (text := [v.name for v in model.graph.output if v.type.tensor_type.elem_type == 8]):
        what = f"its output '{text[0]}' is text, and not always the class with the best score"
        raise SourceError(what, where=where, do=f"{checked_onnx.EXPORT_AGAIN} with classes that are numbers")
    said = read_metadata(model)
    command = float_onnx.without_suppression(model, path, ultralytics=said.ultralytics)
    scores = scores_alone(model, keep_label=options.keep_label)
    standardise(model)
    stored = checked_onnx.widen(model)
    fixed = checked_onnx.fixed_batches(model, options)
    checked_onnx.make_constants(where, model, options)
    before = model.SerializeToString() if fixed or _branches(model) else b""
    checked_onnx.pin_shapes(where, model, options)
    states = shapes.states_without_batch(model)
    if _branches(model):
        model = _folded(model, before, where)
    shapes.give_states_batch(model, states)
    if unused := float_onnx.unused_inputs(model.graph):
        do = f"{checked_onnx.EXPORT_AGAIN} without it"
        raise SourceError(f"its input '{unused[0]}' is unused", where=where, do=do)
    engine = _engine(model.SerializeToString(), where)
    inputs = _inputs(model.graph, engine, where, said.picture)
    float_onnx.check_suppression(model, inputs, where, command)
    names = unique_names([spec.tensor for spec in engine.outputs], where=where, kind="output")
    tensors = [(name, spec.tensor) for name, spec in zip(names, engine.outputs, strict=True)]
    outputs = measured_outputs(tensors, lambda arrays: _run(engine, arrays, where), inputs, where=where)
    if stored and not states and not _branches(model):
        _check_widened(stored, options, engine, inputs, where)
    if fixed:
        _check_pinned_batch(_engine(before, where), engine, inputs, where)
    label = _label_check(scores, options, where)
    if label is not None and not _holds(label, inputs, outputs, engine, where):
        return load(path, replace(options, keep_label=True))
    pairs = shapes.state_pairs(inputs, outputs)
    stated, why = stated_contract(said, inputs, outputs)
    return OnnxSource(
        path=path,
        format="onnx",
        sha256=with_options(sha256, options),
        inputs=inputs,
        outputs=outputs,
        state="explicit" if pairs else "none",
        state_pairs=pairs,
        notes=_notes(pairs, [name for pair in states for name in pair], halved=bool(stored))
        + _removal_notes(scores)
        + (Note("metadata-unused", why, "Say what the numbers mean in a contract file"),) * bool(why),
        stated=stated or stated_classes(scores, outputs),
        model=model,
        engine=engine,
        label=label,
    )


def _label_check(scores: Scores, options: LoadOptions, where: str) -> LabelCheck | None:
    if scores.whole is None:
        return None
    checked_onnx.make_constants(where, scores.whole, options)
    checked_onnx.pin_shapes(where, scores.whole, options)
    with refusing(where, "", checked_onnx.EXPORT_AGAIN):
        return LabelCheck(scores.whole.SerializeToString(), scores)


def _holds(
    label: LabelCheck, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], engine: Engine, where: str
) -> bool:
    """Try random inputs of several magnitudes, since a tree's thresholds may have any."""
    free = all(spec.free_batch for spec in (*inputs, *outputs))
    for scale in (1, 30, 1000):
        drawn = float_onnx.random_inputs(inputs, 32 if free else 1)
        arrays = [array * array.dtype.type(scale) if array.dtype.kind == "f" else array for array in drawn]
        fed = {spec.tensor: array for spec, array in zip(inputs, arrays, strict=True)}
        if not label.holds(fed, _run(engine, arrays, where)[0], at_once=free):
            return False
    return True


def _branches(model: Any) -> bool:
    return any(node.op_type == "If" for node in model.graph.node)


def _folded(model: Any, original: bytes, where: str) -> Any:
    """Remove branches that constants and shapes decide, if the answers stay.
    No quantizer sees into a branch, and ONNX Runtime 1.31 crashes on some once shapes are pinned: `original` still has
    the file's."""
    graph = model.graph
    shapes = {value.name: sizes(value) for value in graph.input}
    if any(not shape or min(shape[1:], default=1) < 1 for shape in shapes.values()):
        return model  # an input is refused in a moment
    before = _engine(original, where)
    sized = [replace(spec, shape=tuple(max(size, 1) for size in shapes[spec.tensor])) for spec in before.inputs]
    arrays = [float_onnx.random_inputs([spec], spec.shape[0])[0] for spec in sized]
    slimmed = float_onnx.slim(model)
    after = _engine(slimmed.SerializeToString(), where)
    same = zip(_run(before, arrays, where), _run(after, arrays, where), strict=True)
    alike = all(a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in same)
    return slimmed if alike else model


def _engine(data: bytes, where: str) -> Engine:
    with refusing(where, "", checked_onnx.EXPORT_AGAIN):
        return load_engine("onnx", data, threads=0, engine="onnxruntime")


def _inputs(graph: Any, engine: Engine, where: str, picture: tuple[int, int] | None) -> tuple[TensorSpec, ...]:
    names = unique_names([spec.tensor for spec in engine.inputs], where=where, kind="input")
    axes = {value.name: [dim.dim_param or None for dim in value.type.tensor_type.shape.dim] for value in graph.input}
    specs = tuple(
        replace(spec, name=name, layout=image_layout(spec.shape, prefer="NCHW"))
        for name, spec in zip(names, engine.inputs, strict=True)
    )
    named = {spec.name: axes.get(spec.tensor, ()) for spec in specs}
    check_inputs(specs, where=where, axes=named, picture=picture)
    return specs


def _run(engine: Engine, arrays: list[NDArray[Any]], where: str) -> list[NDArray[Any]]:
    with refusing(where, "the model does not run:", f"Check --shape, or: {checked_onnx.EXPORT_AGAIN}"):
        return engine.run(arrays)


def _check_pinned_batch(original: Engine, pinned: Engine, inputs: Sequence[TensorSpec], where: str) -> None:
    """Check that the pinned graph answers each item as the file does in its own batch."""
    batch = next(spec.shape[0] for spec in original.inputs if spec.shape[0] > 1)
    arrays = float_onnx.random_inputs(inputs, batch)
    expected = _run(original, arrays, where)
    items = [_run(pinned, [array[i : i + 1] for array in arrays], where) for i in range(batch)]
    for want, parts in zip(expected, zip(*items, strict=True), strict=True):
        got = np.concatenate(parts)
        if got.shape != want.shape or not np.allclose(got, want, rtol=1e-3, atol=1e-3, equal_nan=True):
            what = f"its batch of {batch} is built into the graph: with --shape its answers differ from the file's"
            raise SourceError(what, where=where, do="Export the model with a free batch axis or a batch of 1")


def _check_widened(
    stored: bytes, options: LoadOptions, widened: Engine, inputs: Sequence[TensorSpec], where: str
) -> None:
    """Check that float32 answers as float16 does, if ONNX Runtime can run the float16."""
    model = parse(stored)
    checked_onnx.make_constants(where, model, options)
    checked_onnx.pin_shapes(where, model, options)
    try:
        original = _engine(model.SerializeToString(), where)
        arrays = float_onnx.random_inputs(inputs, 1)
        halves = [array.astype(spec.dtype) for array, spec in zip(arrays, original.inputs, strict=True)]
        expected = _run(original, halves, where)
    except SourceError:
        return
    fed = [half.astype(spec.dtype) for half, spec in zip(halves, inputs, strict=True)]
    if problem := checked_onnx.differs(expected, _run(widened, fed, where)):
        do = f"{checked_onnx.EXPORT_AGAIN} in float32"
        raise SourceError(f"its float16 cannot be widened to float32: {problem}", where=where, do=do)


def _notes(pairs: Sequence[tuple[str, str]], wrapped: Sequence[str], *, halved: bool) -> tuple[Note, ...]:
    notes = []
    if pairs:
        carried = ", ".join(f"'{output}' is the next '{name}'" for name, output in pairs)
        more = f"; {', '.join(wrapped)} got a first axis of 1 for the batch" if wrapped else ""
        what = f"the caller carries the model's state: {carried}{more}"
        do = "Give sequences (recordings, or arrays [sequences, frames, ...]) without the state, and run it with "
        notes.append(Note("explicit-state", what, f"{do}model.session()"))
    if halved:
        what = "its float16 weights are widened to float32: accuracy that was lost to float16 before is not measured"
        notes.append(Note("float16-weights", what, "Pass the float32 model, if there is one"))
    return tuple(notes)


def _removal_notes(scores: Scores) -> tuple[Note, ...]:
    notes = []
    if scores.zipped:
        what = f"the output '{scores.zipped[0]}' was a list of dictionaries (ZipMap) and is now a table of scores"
        notes.append(Note("zipmap-removed", what, "Use answer.top(), which has the classes by name"))
    if scores.removed:
        what = f"the output '{scores.removed[0]}' was removed: it is always the class with the best score"
        notes.append(Note("label-removed", what, "Use answer.top(1)"))
    return tuple(notes)
