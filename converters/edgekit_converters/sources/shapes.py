"""Shapes and names of inputs and outputs, pictures and states among them, finite weights.

    image_layout((-1, 224, 224, 3), prefer="NHWC")      # "NHWC"
    pin("x", (-1, 3, -1, -1), (1, 3, 48, 192), where="net.onnx")     # (-1, 3, 48, 192)
    state_pairs(inputs, outputs)      # (("state", "stateN"),)

Rules:
- the first axis is the batch, free or 1; every other axis is fixed in the file or by --shape, or the error names it and
  shows the option to give; a 4-D input with 1, 3 or 4 channels is a picture;
- output shapes are measured in runs, and a size that depends on the values is refused;
- a state is an output that is the next call's input: both have one dtype and shape, and names with a word for memory
  that differ only in words such as `in`, `out`, `new`;
- a state whose first axis is not the batch (layers come first in recurrent nets) gets a first axis of 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import onnx_file
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.source_model import varying_size
from edgekit_runtime.contract.spec import Layout, TensorSpec

CHANNELS = (1, 3, 4)
Run = Callable[[list[NDArray[Any]]], Sequence[NDArray[Any]]]


def image_layout(shape: Sequence[int], *, prefer: Layout) -> Layout | None:
    """Where a 4-D input has its 1, 3 or 4 channels, or None. `prefer` settles [N, 3, 5, 3]."""
    if len(shape) != 4:
        return None
    fits: dict[Layout, bool] = {"NHWC": shape[3] in CHANNELS, "NCHW": shape[1] in CHANNELS}
    if fits[prefer]:
        return prefer
    other: Layout = "NCHW" if prefer == "NHWC" else "NHWC"
    return other if fits[other] else None


def check_named(wanted: Iterable[str], inputs: Sequence[str], *, where: str, option: str = "--shape") -> None:
    """Raise SourceError if an option names an input that the model does not have."""
    for name in wanted:
        if name not in inputs:
            do = f"Its inputs: {', '.join(inputs)}"
            raise SourceError(f"{option} names the input '{name}', which the model does not have", where=where, do=do)


def pin(name: str, shape: Sequence[int], wanted: Sequence[int], *, where: str) -> tuple[int, ...]:
    """Return the model's shape with its free axes fixed.
    A free batch stays free, a fixed one becomes 1.
    Raises SourceError if the model itself says otherwise."""
    if len(shape) != len(wanted):
        what = f"--shape gives the input '{name}' {len(wanted)} axes; the model has {len(shape)}: {shape_text(shape)}"
        raise SourceError(what, where=where, do=f"Write --shape {name}={','.join(_example(shape))}")
    for axis, (has, want) in enumerate(zip(shape, wanted, strict=True)):
        if axis > 0 and has not in (-1, want):
            what = f"--shape gives axis {axis} of the input '{name}' the size {want}; in the model it is fixed at {has}"
            raise SourceError(what, where=where, do=f"Write {has} there, or export the model with that axis free")
    return (-1 if shape[0] == -1 else 1, *wanted[1:])


def check_shape(
    spec: TensorSpec,
    *,
    where: str,
    kind: str,
    axis_names: Sequence[str | None] = (),
    picture: tuple[int, int] | None = None,
) -> None:
    """Raise SourceError unless axis 0 is -1 or 1 and the others are fixed and positive.
    picture: the height and width that the file names, for the option that the error shows."""
    label, shape = f"{kind} '{spec.name}'", spec.shape
    if not shape:
        do = "Give it a first axis for the batch"
        if kind == "input":
            do = f"Fix its value with --constant {spec.name}=NUMBER, or give it a first axis for the batch"
        raise SourceError(f"{label} is a scalar: it has no batch axis", where=where, do=do)
    if shape[0] not in (-1, 1):
        sizes = ",".join(_example((1, *shape[1:]), picture))
        raise SourceError(
            f"{label} has the shape {shape_text(shape)}: a fixed batch of {shape[0]}",
            where=where,
            do=f"Try --shape {spec.name}={sizes}, or export the model with a free batch"
            if kind == "input"
            else "Return it with the batch as its first axis, or export the model with a free batch or a batch of 1",
        )
    for axis, size in enumerate(shape[1:], 1):
        if size >= 1:
            continue
        name = axis_names[axis] if axis < len(axis_names) else None
        called = f"axis {axis} ('{name}')" if name and name != "?" else f"axis {axis}"
        if size == 0:
            do = "Export the model again"
            raise SourceError(f"{label} has the shape {shape_text(shape)}: {called} has the size 0", where=where, do=do)
        what = f"{label} has the shape {shape_text(shape)}: {called} is free, and only the batch axis may be"
        do = _how_to_pin(spec, picture) if kind == "input" else f"Export the model with a fixed size for axis {axis}"
        raise SourceError(what, where=where, do=do)


def check_inputs(
    specs: Sequence[TensorSpec],
    *,
    where: str,
    axes: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
    picture: tuple[int, int] | None = None,
) -> None:
    """Check the shapes of all inputs; one error names every option. axes: their names."""
    errors: list[tuple[TensorSpec, SourceError]] = []
    for spec in specs:
        try:
            check_shape(spec, where=where, kind="input", axis_names=axes.get(spec.name, ()), picture=picture)
        except SourceError as error:
            errors.append((spec, error))
    if len(errors) > 1:
        specs = [spec for spec, _ in errors]
        shown = ", ".join(f"'{spec.name}' {shape_text(spec.shape) if spec.shape else '(a scalar)'}" for spec in specs)
        sizes = {spec.name: ",".join(_example(spec.shape, picture)) for spec in specs if spec.shape}
        options = " ".join(
            f"--shape {name}={sizes[name]}" if name in sizes else f"--constant {name}=NUMBER"
            for name in (spec.name for spec in specs)
        )
        what = f"{len(errors)} inputs are not of a fixed size with the batch in front: {shown}"
        raise SourceError(what, where=where, do=f"Pin them, with your own sizes: {options}")
    if errors:
        raise errors[0][1]


def described_inputs(
    found: Iterable[tuple[str, tuple[int, ...], str]], options: LoadOptions, *, where: str, prefer: Layout
) -> tuple[TensorSpec, ...]:
    """Make specs from names, shapes and dtypes, with the options' shapes. Raises SourceError."""
    found = list(found)
    names = unique_names([name for name, _, _ in found], where=where, kind="input")
    check_named((*options.shapes, *options.constants), names, where=where)
    specs = []
    for name, (_, shape, dtype) in zip(names, found, strict=True):
        if name in options.shapes:
            shape = pin(name, shape, options.shapes[name], where=where)
        try:
            kind = np.dtype(dtype).name
        except TypeError as error:
            what = f"input '{name}' has the dtype {dtype}, which no board's engine takes"
            raise SourceError(what, where=where, do="Use float32 or integer inputs") from error
        specs.append(TensorSpec(name, name, kind, shape, image_layout(shape, prefer=prefer)))
    check_inputs(specs, where=where)
    return tuple(specs)


def measured_outputs(
    names: Sequence[tuple[str, str]], run: Run, inputs: Sequence[TensorSpec], *, where: str
) -> tuple[TensorSpec, ...]:
    """Measure output specs by running zeros (one item, then two) and noise.
    Two items show whether an output grows with the batch, noise whether a size depends on the values.
    names: (contract's, file's).
    run: may raise SourceError. With two items it means that the batch is fixed, with noise nothing."""
    one, two = list(run(_zeros(inputs, 1))), None
    for items in _noise(inputs):
        try:
            others = run(items)
        except SourceError:
            continue
        for (name, _), array, other in zip(names, one, others, strict=True):
            if other.shape != array.shape:
                raise varying_size(name, other.shape, array.shape, where)
    if all(spec.free_batch for spec in inputs):
        try:
            two = [array.shape for array in run(_zeros(inputs, 2))]
        except SourceError:
            two = None
    specs = []
    for i, ((name, tensor), array) in enumerate(zip(names, one, strict=True)):
        shape = tuple(array.shape)
        grows = two is not None and bool(shape) and two[i] == (2, *shape[1:])
        spec = TensorSpec(name, tensor, array.dtype.name, (-1, *shape[1:]) if grows else shape)
        check_shape(spec, where=where, kind="output")
        specs.append(spec)
    return tuple(specs)


def shape_text(shape: Sequence[int]) -> str:
    """[?, 3, 224, 224]"""
    return "[" + ", ".join("?" if n == -1 else str(n) for n in shape) + "]"


def _zeros(inputs: Sequence[TensorSpec], items: int) -> list[NDArray[Any]]:
    return [np.zeros((items, *spec.shape[1:]), spec.dtype) for spec in inputs]


def _noise(inputs: Sequence[TensorSpec]) -> Iterator[list[NDArray[Any]]]:
    """An item of standard normal numbers and one of pixels; integers are 0 or 1."""
    draw = np.random.default_rng(0)
    for scale in (0, 255):
        items = list[NDArray[Any]]()
        for spec in inputs:
            shape, dtype = (1, *spec.shape[1:]), np.dtype(spec.dtype)
            floats = draw.uniform(0, scale, shape) if scale else draw.standard_normal(shape)
            items.append((floats if dtype.kind == "f" else draw.integers(0, 2, shape)).astype(dtype))
        yield items


def _how_to_pin(spec: TensorSpec, picture: tuple[int, int] | None = None) -> str:
    letters: Mapping[int, str] = {}
    if image_layout(spec.shape, prefer="NCHW") == "NCHW":
        letters = {2: "HEIGHT", 3: "WIDTH"}
    elif image_layout(spec.shape, prefer="NHWC") == "NHWC":
        letters = {1: "HEIGHT", 2: "WIDTH"}
    sizes = ["1", *(letters.get(i, f"SIZE{i}") if n < 1 else str(n) for i, n in enumerate(spec.shape[1:], 1))]
    example = ",".join(_example(spec.shape, picture))
    return f"Pin it: --shape {spec.name}={','.join(sizes)}, such as --shape {spec.name}={example}"


def _example(shape: Sequence[int], picture: tuple[int, int] | None = None) -> list[str]:
    stand_in, sides = 224 if len(shape) == 4 else 128, dict[int, int]()
    if picture is not None and (layout := image_layout(shape, prefer="NCHW")):
        first = 2 if layout == "NCHW" else 1
        sides = dict(zip((first, first + 1), picture, strict=True))
    return ["1", *(str(sides.get(i, stand_in) if n < 1 else n) for i, n in enumerate(shape[1:], 1))]


def unique_names(names: Sequence[str], *, where: str, kind: str) -> tuple[str, ...]:
    """Strip TensorFlow's ':0' from names. Raises SourceError for duplicates."""
    clean = tuple(name.removesuffix(":0") for name in names)
    for name in clean:
        if not name or clean.count(name) > 1:
            what = f"two {kind}s are called '{name}'" if name else f"an {kind} has no name"
            raise SourceError(what, where=where, do="Give each its own name and save the model again")
    return clean


def graph_names(specs: Sequence[TensorSpec]) -> list[str]:
    """Turn the contract's names into ASCII identifiers for TensorFlow."""
    names: list[str] = []
    for index, spec in enumerate(specs):
        name = re.sub(r"\W", "_", spec.name, flags=re.ASCII)
        name = name if re.match(r"[A-Za-z]", name) else f"t_{name}"
        names.append(name if name not in names else f"{name}_{index}")
    return names


def check_finite(
    tensors: Iterable[tuple[str, NDArray[Any]]],
    *,
    where: str,
    may_be_infinite: Callable[[str], bool] = lambda name: False,
) -> None:
    """Raise SourceError for the first tensor with a NaN or a forbidden infinity.
    may_be_infinite: names of constants that are not weights, such as an attention mask."""
    for name, array in tensors:
        if array.dtype.kind not in "fcV" or array.size == 0:
            continue
        values = array if array.dtype.kind == "f" else np.asarray(array, np.float32)
        nans = int(np.isnan(values).sum())
        endless = 0 if may_be_infinite(name) else int(np.isinf(values).sum())
        if nans or endless:
            kind = "NaN" if nans else "infinite"
            what = f"the weights '{name}' are damaged: {nans or endless:,} of {array.size:,} values are {kind}"
            raise SourceError(what, where=where, do="Take an earlier checkpoint, from before the training diverged")


_MEMORY = frozenset(
    "state states hidden h c cell cache memory mem carry context ctx past present".split()  # noqa: SIM905
)
_DIRECTION = frozenset(
    "in out input output prev previous next new old n i o 0 1 initial init final updated current".split()  # noqa: SIM905
)


def state_pairs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[tuple[str, str], ...]:
    """Pair each state's input with its output."""
    if len(inputs) < 2 or len(outputs) < 2:
        return ()  # nothing besides the state: an image in and an image out
    found, taken = [], set[str]()
    for spec in inputs:
        for output in outputs:
            same = output.dtype == spec.dtype and output.shape[1:] == spec.shape[1:]
            if same and output.name not in taken and _same_memory(spec.name, output.name):
                found.append((spec.name, output.name))
                taken.add(output.name)
                break
    return tuple(found)


def states_without_batch(model: Any) -> tuple[tuple[str, str], ...]:
    """Find states whose first axis is not the batch: pairs of (input, output).
    If there are any, the batch of every input becomes 1, in place. A free axis of such a state is taken for its batch.
    """
    values = onnx_file.given(model.graph)
    if len(values) < 2 or len(model.graph.output) < 2:
        return ()
    found = {}
    for value in values:
        sizes = onnx_file.sizes(value)
        output = next((out.name for out in model.graph.output if _same_memory(value.name, out.name)), None)
        if output is not None and len(sizes) > 1 and sizes[0] > 1 and sum(size < 1 for size in sizes) < 2:
            found[value.name] = output
    for value in values if found else ():
        for dim in value.type.tensor_type.shape.dim[: None if value.name in found else 1]:
            if dim.dim_value < 1:
                dim.Clear()
                dim.dim_value = 1
    return tuple(found.items())


def give_states_batch(model: Any, states: Sequence[tuple[str, str]]) -> None:
    """Add a first axis of 1 to these inputs and outputs, in place."""
    graph = model.graph
    taken = onnx_file.value_names(model)
    for name, output in states:
        value = next(value for value in graph.input if value.name == name)
        made = next(value for value in graph.output if value.name == output)
        sizes = onnx_file.sizes(value)
        shapes = [onnx_file.free_name(f"{owner}/shape", taken) for owner in (name, output)]
        for owner, shape in zip(shapes, (sizes, (1, *sizes)), strict=True):
            graph.initializer.append(onnx_file.new_constant(owner, np.array(shape, np.int64)))
        # The input becomes [1, *sizes]; what read it reads it reshaped
        inner = onnx_file.free_name(f"{value.name}/without_batch", taken)
        _rename_readings(graph, value.name, inner)
        reshape = onnx_file.new_node("Reshape", [value.name, shapes[0]], [inner], inner)
        onnx_file.replace_values(graph.node, [reshape, *graph.node])
        onnx_file.set_sizes(value, (1, *sizes))
        inner = onnx_file.free_name(f"{made.name}/without_batch", taken)
        for node in graph.node:
            node.output[:] = [inner if old == made.name else old for old in node.output]
        _rename_readings(graph, made.name, inner)
        graph.node.append(onnx_file.new_node("Reshape", [inner, shapes[1]], [made.name], f"{made.name}/batch"))
        onnx_file.set_sizes(made, (1, *sizes))
    if states:
        onnx_file.name_nodes(model)
        del graph.value_info[:]


def _rename_readings(graph: Any, old: str, new: str) -> None:
    """Rename a value wherever nodes read it, inner graphs included."""
    for node in onnx_file.nodes(graph):
        node.input[:] = [new if name == old else name for name in node.input]


def _same_memory(first: str, second: str) -> bool:
    a, b = _words(first), _words(second)
    memory = [word for word in a if word in _MEMORY]
    return bool(memory) and [w for w in a if w not in _DIRECTION] == [w for w in b if w not in _DIRECTION] != []


def _words(name: str) -> list[str]:
    """`stateN`, `state_n` -> state, n; `hn`, `h0` -> h, n or 0."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)
    words: list[str] = []
    for part in map(str.lower, parts):
        words += [part[0], part[1]] if part in ("hn", "cn") else [part]
    return words
