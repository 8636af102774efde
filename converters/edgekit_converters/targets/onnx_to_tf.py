"""An ONNX source as TensorFlow code, through onnx2tf.

    network(source, "net.onnx, tflite-int8").call(pixels)

Rules:
- onnx2tf runs in a process of its own (`onnx_to_tf_worker`): it sets seeds, switches and Keras 2 for its process, and
  exits if it fails;
- it never uses the network: the sample picture that it would download is already in its folder;
- pictures become NHWC; every other input and every output keeps the source's axes;
- the result is run against the original on real items, and a difference is an error.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.onnx_file import array, free_name, parse, rename, values
from edgekit_converters.recipe.artifact import TensorFlowNetwork, transposed_pixels
from edgekit_converters.recipe.conversion_errors import ConversionError, MissingToolsError, one_line
from edgekit_converters.recipe.foreign_code import import_tensorflow, quiet
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.targets.onnx_to_tf_worker import GRAPH, KEPT, RESULT, input_name, output_name
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.system.errors import EngineError, install_command

_NEEDS = ("onnx2tf", "onnx_graphsurgeon", "sng4onnx", "sne4onnx", "tf_keras", "psutil")
_TOOLS = ("onnx", "onnx2tf", "onnxslim", "tf-keras")
# Channels last -> the source's axes, by rank: onnx2tf turns outputs of 3 to 5 axes when it likes them better that way.
_CHANNELS_FIRST = {3: (0, 2, 1), 4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}


def available() -> bool:
    """Whether the `onnx-tflite` extra is installed."""
    return all(importlib.util.find_spec(module) is not None for module in _NEEDS)


def network(source: SourceModel, where: str, items: int = 1) -> TensorFlowNetwork:
    """Convert an ONNX source to TensorFlow code. items: the batch.

    Raises ConversionError if TFLite has no such operators, the extra is missing, onnx2tf cannot express the model, or
    its answers differ from the original's.
    """
    classic = sorted({node.op_type for node in parse(source.onnx()).graph.node if node.domain == "ai.onnx.ml"})
    if classic:
        raise ConversionError(f"TFLite has no operator for {', '.join(classic)}", where=where, do="Choose onnx-f32")
    if not available():
        raise MissingToolsError(
            "TFLite from an ONNX model needs the 'onnx-tflite' extra, which is not installed",
            where=where,
            do=f"Run: {install_command('onnx-tflite')}, or choose onnx-int8-qdq or onnx-f32",
        )
    try:
        return _network(cast(Hashable, source), items)  # by identity
    except _FailedError as error:
        raise ConversionError(
            str(error), where=where, do="Choose onnx-int8-qdq or onnx-f32, or pass the Keras model it was made from"
        ) from error


@functools.lru_cache(maxsize=1)  # one build asks for several TFLite recipes of one source, and onnx2tf is slow
def _network(source: Any, items: int) -> TensorFlowNetwork:
    transposed = frozenset(spec.name for spec in source.inputs if spec.layout == "NCHW")
    free = all(spec.free_batch for spec in (*source.inputs, *source.outputs))
    if items != 1 and not free:
        raise _FailedError(f"the model has a fixed batch, and cannot be given one of {items}")
    first: _FailedError | None = None
    # What onnx2tf makes of a graph depends on whether its batch is free: either may be right where the other is not.
    for batch in (-1, items) if free else (1,):
        try:
            return _attempt(source, transposed, batch, items)
        except _FailedError as error:
            first = first or error
    raise first or _FailedError("onnx2tf was not tried")


class _FailedError(Exception):
    """One way through onnx2tf failed."""


def _attempt(source: SourceModel, transposed: frozenset[str], batch: int, items: int) -> TensorFlowNetwork:
    """Convert with that batch of the ONNX graph (-1: free), for `items` in TensorFlow."""
    tf = import_tensorflow()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run_worker(source, folder, batch, items)
        with quiet():
            loaded = tf.saved_model.load(str(folder / RESULT))
    axes = _output_axes(source, loaded, transposed, items)

    def call(*inputs: Any) -> list[Any]:
        outputs = loaded.infer(*inputs)
        ordered = [outputs[output_name(i)] for i in range(len(axes))]
        return [tf.transpose(out, perm) if perm else out for out, perm in zip(ordered, axes, strict=True)]

    return TensorFlowNetwork(call, loaded.infer.concrete_functions[0].variables, transposed, _TOOLS)


def _run_worker(source: SourceModel, folder: Path, batch: int, items: int) -> None:
    import onnx

    model = parse(source.onnx())
    if batch != -1:
        sides = [
            [TensorSpec(spec.name, spec.tensor, spec.dtype, (batch, *spec.shape[1:])) for spec in specs]
            for specs in (source.inputs, source.outputs)
        ]
        float_onnx.set_batch(model, *sides)
    rename(model, {spec.name: input_name(i) for i, spec in enumerate(source.inputs)})
    rename(model, {spec.name: output_name(i) for i, spec in enumerate(source.outputs)})
    _plain_names(model.graph)
    model = onnx.shape_inference.infer_shapes(model)  # without the shapes inside, onnx2tf drops transposes silently
    _drop_whole_slices(model.graph)
    (folder / GRAPH).write_bytes(model.SerializeToString())
    kept = [input_name(i) for i, spec in enumerate(source.inputs) if spec.layout != "NCHW" and len(spec.shape) > 2]
    (folder / KEPT).write_text("\n".join(kept), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "edgekit_converters.targets.onnx_to_tf_worker", str(items)],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TMPDIR": str(folder)},
    )
    if done.returncode != 0 or not (folder / RESULT).is_dir():
        raise _FailedError(f"onnx2tf cannot turn the model into TensorFlow: {_complaint(done.stdout + done.stderr)}")


def _drop_whole_slices(graph: Any) -> None:
    """Remove slices that take everything: onnx2tf confuses their axes after a transpose."""
    ends = {value.name for value in graph.output}
    sizes = {name: value.shape or () for name, value in values(graph).items() if name not in ends}
    constants = {tensor.name: array(tensor) for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type != "Slice" or node.output[0] in ends or node.input[0] not in sizes:
            continue
        arguments: list[Any] = [constants.get(name) for name in node.input[1:] if name]
        if any(argument is None for argument in arguments):
            continue
        starts, stops, chosen, steps = (*arguments, None, None)[:4]
        own = sizes[node.input[0]]
        # -1 where a size is not known: there the end has to be beyond any
        axes = range(len(starts)) if chosen is None else map(int, chosen)
        reach = [own[axis] if own[axis] > 0 else 1 << 30 for axis in axes]
        whole = all(stop >= size for size, stop in zip(reach, stops, strict=True)) and not np.any(starts)
        if not whole or (steps is not None and not np.all(steps == 1)):
            continue
        for reader in graph.node:
            reader.input[:] = [node.input[0] if name == node.output[0] else name for name in reader.input]
        graph.node.remove(node)


def _plain_names(graph: Any) -> None:
    """Give operators unique names that TensorFlow accepts: letters, digits and a few signs."""
    taken: set[str] = set()
    for node in graph.node:
        plain = re.sub(r"[^A-Za-z0-9_./-]", "_", node.name or node.op_type).lstrip("_/-.") or node.op_type
        node.name = free_name(plain, taken)


def _output_axes(
    source: SourceModel, loaded: Any, transposed: frozenset[str], items: int
) -> list[tuple[int, ...] | None]:
    """Return each output's transposition to the source's axes, or None."""
    # Indexes are spread as widely as the model's tables allow: with 0 and 1 alone activations hardly vary, and a
    # normalisation then blows rounding up until right answers look wrong.
    inputs = float_onnx.proof_inputs(source, max(float_onnx.PROOFS // items, 1) * items)
    expected: list[NDArray[Any]] | None = None
    rng = np.random.default_rng(1)
    for high in () if source.items else (256, 16):
        wide = [rng.integers(0, high, a.shape).astype(a.dtype) if a.dtype.kind in "iu" else a for a in inputs]
        if all(a is b for a, b in zip(wide, inputs, strict=True)):
            break
        try:
            with quiet():
                inputs, expected = wide, source.predict(wide)
            break
        except EngineError:
            continue  # an index beyond a table
    expected = source.predict(inputs) if expected is None else expected
    fed = [
        transposed_pixels(array, spec) if spec.name in transposed else array
        for array, spec in zip(inputs, source.inputs, strict=True)
    ]
    with quiet():
        parts = [loaded.infer(*(a[at : at + items] for a in fed)) for at in range(0, len(fed[0]), items)]
    axes: list[tuple[int, ...] | None] = []
    for i, (spec, want) in enumerate(zip(source.outputs, expected, strict=True)):
        got = np.concatenate([np.asarray(part[output_name(i)]) for part in parts])
        last = _CHANNELS_FIRST.get(got.ndim)
        if not float_onnx.agreement(got, want):
            axes.append(None)
        elif last is not None and not float_onnx.agreement(got.transpose(last), want):
            axes.append(last)
        else:
            raise _FailedError(f"onnx2tf's network gives other answers than the original for the output '{spec.name}'")
    return axes


def _complaint(text: str) -> str:
    """Extract the cause from onnx2tf's output: exception, error line, or last line."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"@\s+0x|\*\*\* |#\d+ +0x", line)]
    marked = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    notes = ("input_onnx_file_path", "onnx_op_name", "The trace log", "Read this and deal with it")
    raised = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception): ", line)]
    chosen = next((line for line in (*raised[-1:], *marked) if not line.startswith(notes)), "")
    return one_line(chosen or (lines[-1] if lines else "it ended without a word"))
