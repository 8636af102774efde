"""An ONNX file, parsed, checked and made ready before anything runs it.

    model, digest = read(Path("net.onnx"))
    stored = widen(model)                   # b"" for a graph without float16, which stays as it is
    pin_shapes("net.onnx", model, options)

Rules:
- standard operators only, because a custom domain needs code that no board has; a float model with finite weights;
- weights in other files must be in the model's own folder;
- all float16 becomes float32, in inner graphs too: a board's CPU computes in float32. The widened graph must answer as
  the file does, within float16's precision;
- --shape: a named axis has one size in all inputs; shapes inside the graph are forgotten; a pinned batch must give the
  answers of the original's;
- an input that --constant names is gone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import onnx_file
from edgekit_converters.recipe.conversion_errors import ConversionError, SourceError, first_line
from edgekit_converters.recipe.foreign_code import quiet
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.onnx_stated import merge_opsets
from edgekit_converters.sources.shapes import check_finite, check_named, pin
from edgekit_converters.sources.source_model import changed_error, file_sha256, folder_sha256
from edgekit_runtime.system.errors import MissingExtraError

EXPORT_AGAIN = "Export the model to ONNX again"
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_QUANTIZED = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger".split()  # noqa: SIM905
)
# Read by one of these a constant is a weight; elsewhere an infinity may be meant, as in an attention mask.
_WEIGHTED = frozenset(
    "Conv ConvTranspose Gemm MatMul BatchNormalization InstanceNormalization LSTM GRU RNN PRelu".split()  # noqa: SIM905
)
_LARGEST = 2_000_000_000  # protobuf's own limit is 2 GiB


def read(path: Path) -> tuple[Any, str]:
    """The model with all weights inside, and the digest of all its files. Raises SourceError."""
    if path.stat().st_size > _LARGEST:
        _refuse(path, "it is larger than 2 GB: no board takes it", "Pass a smaller model")
    try:
        model = onnx_file.parse(path.read_bytes())
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "reading an ONNX model", where=str(path)) from error
    except ConversionError as error:
        _refuse(path, "this is not an ONNX model, or it is damaged", cause=error)
    if not model.opset_import:
        _refuse(path, "this is not an ONNX model, or it has no operators")
    merge_opsets(model)
    sha256 = _with_external_data(path, model)
    check_graph(str(path), model)
    return model, sha256


def check_graph(where: str, model: Any) -> None:
    """Raise SourceError for foreign operators, a quantized or broken graph, or damaged weights."""
    import onnx

    _check_operators(where, model)
    made = Counter(name for node in model.graph.node for name in node.output if name)
    made.update(value.name for value in model.graph.input)
    if twice := [name for name, times in made.items() if times > 1]:
        do = "Export it again with other input_names and output_names: none that a layer has"
        raise SourceError(f"two of its values share the name '{twice[0]}', which no engine loads", where=where, do=do)
    try:
        with quiet():
            onnx.checker.check_model(model)
    except Exception as error:
        what = f"the graph violates ONNX's rules: {first_line(error)}"
        raise SourceError(what, where=where, do=EXPORT_AGAIN) from error
    held = (
        pair
        for graph in onnx_file.subgraphs(model.graph)
        for pair in onnx_file.constants(graph)
        if pair[1].data_type in onnx_file.FLOATS
    )
    weights = {name for node in onnx_file.nodes(model.graph) if node.op_type in _WEIGHTED for name in node.input}

    def arrays() -> Iterator[tuple[str, NDArray[Any]]]:
        for name, tensor in held:
            try:
                yield name, onnx_file.array(tensor)
            except (ValueError, TypeError) as error:  # onnx's checker does not count the bytes of every tensor
                what = f"the weight '{name}' does not have its shape: {first_line(error)}"
                raise SourceError(what, where=where, do=EXPORT_AGAIN) from error

    check_finite(arrays(), where=where, may_be_infinite=lambda name: name not in weights)


def _check_operators(where: str, model: Any) -> None:
    every = [node for holder in (model.graph, *model.functions) for node in onnx_file.nodes(holder)]
    own = {function.domain for function in model.functions}
    foreign = sorted({f"{n.domain}.{n.op_type}" for n in every if n.domain not in _STANDARD and n.domain not in own})
    if any(name.startswith("com.microsoft.") for name in foreign):
        do = "Pass the float model that it was made from"
        raise SourceError(f"it was already optimized or quantized for ONNX Runtime ({foreign[0]})", where=where, do=do)
    if foreign:
        do = f"{EXPORT_AGAIN} with standard operators only"
        raise SourceError(f"it uses operators that no board's engine has: {', '.join(foreign[:5])}", where=where, do=do)
    if model.functions:
        do = "Inline them: onnx.inliner.inline_local_functions(model)"
        raise SourceError("it defines local functions, which the quantizer cannot process", where=where, do=do)
    quantized = sorted({node.op_type for node in every} & _QUANTIZED)
    if quantized:
        what = f"it is already quantized ({quantized[0]}), and what that lost cannot be measured"
        raise SourceError(what, where=where, do="Pass the float model that it was made from")


def _with_external_data(path: Path, model: Any) -> str:
    """Load external weights into the model; return the digest of all files.
    Nothing outside of the model's folder is opened."""
    import onnx

    external = [tensor for tensor in onnx_file.tensors(model) if tensor.data_location == tensor.EXTERNAL]
    if not external:
        return file_sha256(path)
    folder = path.parent.resolve()  # as the weights' files are, so that each has a place in one folder
    sizes: dict[Path, int] = {}
    for tensor in external:
        file, end = _place(path, folder, tensor)
        sizes[file] = max(sizes.get(file, 0), end)
    for file, end in sizes.items():
        if file.stat().st_size < end:
            _refuse(path, f"its weights' file {file.name} is truncated", "Copy or download it again")
    if sum(file.stat().st_size for file in sizes) > _LARGEST:
        _refuse(path, "its weights are larger than 2 GB: no board takes it", "Pass a smaller model")
    files = [folder / path.name, *sorted(sizes)]
    before = folder_sha256(folder, files)
    try:
        onnx.load_external_data_for_model(model, str(folder))
    except Exception as error:  # noqa: BLE001 - onnx raises ValidationError, ValueError and OSError here
        _refuse(path, f"its weights cannot be read: {first_line(error)}", cause=error)
    if folder_sha256(folder, files) != before:
        raise changed_error(path)
    return before


def _place(path: Path, folder: Path, tensor: Any) -> tuple[Path, int]:
    """Return a tensor's file and the end of its data there. folder: the model's, without links."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if "\0" in location:
        _refuse(path, f"the location of the weights '{tensor.name}' holds a NUL character")
    file = (folder / location).resolve()
    if not location or folder not in file.parents:
        linked = location and folder in Path(os.path.normpath(folder / location)).parents
        to = f"'{file}' (by the link {location!r})" if linked else repr(location)
        _refuse(
            path,
            f"the weights '{tensor.name}' are stored outside the model's folder, in {to}, which is never opened",
            f"Copy {file} over the link"
            if linked
            else "Save it as one file: onnx.save_model(model, path, save_as_external_data=False)",
        )
    if not file.is_file():
        _refuse(path, f"its weights' file {location} is missing", f"Copy {location} next to the model")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
    except ValueError as error:
        _refuse(path, f"the location of the weights '{tensor.name}' is damaged", cause=error)
    if offset < 0 or length < 0:
        _refuse(path, f"the location of the weights '{tensor.name}' is damaged")
    return file, offset + length


def _refuse(path: Path, what: str, do: str = EXPORT_AGAIN, *, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause


_TYPED = ("to", "dtype")  # attributes that name an element type: Cast, EyeLike, RandomNormal, SequenceEmpty, ...
_PRECISION = 2e-2
"""Of the largest magnitude: float16 keeps 11 bits, and a deep network adds up what each operator rounds."""


def widen(model: Any) -> bytes:
    """Widen float16 to float32 in place; return the bytes before, or b"" without float16."""
    from onnx import TensorProto

    half, graphs = TensorProto.FLOAT16, list(onnx_file.subgraphs(model.graph))
    halves = [tensor for tensor in onnx_file.tensors(model) if tensor.data_type == half]
    types: list[tuple[Any, str]] = []  # where an element type stands, and the field's name
    for graph in graphs:
        for value in (*graph.input, *graph.output):
            types += [(kind, "elem_type") for kind in _kinds(value.type) if kind.elem_type == half]
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            if attribute.name in _TYPED and attribute.type == attribute.INT and attribute.i == half:
                types.append((attribute, "i"))
    if not halves and not types:
        return b""
    before = bytes(model.SerializeToString())
    for tensor in halves:
        tensor.CopyFrom(onnx_file.new_constant(tensor.name, onnx_file.array(tensor).astype(np.float32)))
    for holder, name in types:
        setattr(holder, name, TensorProto.FLOAT)
    for graph in graphs:
        del graph.value_info[:]  # what lies in between follows
    return before


def differs(before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> str:
    """Say how the second answers differ, or "" within float16's precision of the first.
    An answer that is too large for float16 is ignored, and so is an integer one: a tie may fall otherwise."""
    for index, (want, got) in enumerate(zip(before, after, strict=True)):
        if want.shape != got.shape:
            return f"output {index} is {list(got.shape)} and not {list(want.shape)}"
        if want.dtype.kind != "f" or not np.isfinite(want).all():
            continue
        error = np.abs(want.astype(np.float64) - got.astype(np.float64)).max(initial=0.0)
        if not error <= _PRECISION * max(1.0, float(np.abs(want).max(initial=0.0))):
            return f"output {index} is {error:.3g} off"
    return ""


def _kinds(kind: Any) -> Iterator[Any]:
    """The tensor types in a type: its own, or those of a sequence's or an optional's elements."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, which)
    elif which in ("sequence_type", "optional_type"):
        yield from _kinds(getattr(kind, which).elem_type)


def make_constants(where: str, model: Any, options: LoadOptions) -> None:
    """Turn inputs into constants, in place. Raises SourceError if one does not fit the model."""
    from onnx import helper

    graph, inputs = model.graph, _inputs(model)
    check_named(options.constants, list(inputs), where=where, option="--constant")
    for name, number in options.constants.items():
        value = inputs[name]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = onnx_file.sizes(value)
        if any(size < 0 for size in shape[1:]):
            do = "Pin it with --shape"
            raise SourceError(f"the input '{name}' has free axes, so it cannot be one number", where=where, do=do)
        array = np.full([abs(size) for size in shape], number, dtype)
        if not np.all(array == number):
            what = f"--constant sets the input '{name}' to {number}, which is not a valid {dtype.name}"
            raise SourceError(what, where=where, do="Use a value of that type")
        graph.initializer.append(onnx_file.new_constant(value.name, array))
        del graph.input[[entry.name for entry in graph.input].index(value.name)]


def pin_shapes(where: str, model: Any, options: LoadOptions) -> None:
    """Set the inputs' shapes, in place. Raises SourceError if one does not fit the model."""
    inputs = _inputs(model)
    check_named(options.shapes, list(inputs), where=where)
    symbols: dict[str, int] = {}
    for name, sizes in options.shapes.items():
        dims = inputs[name].type.tensor_type.shape.dim
        shape = pin(name, onnx_file.sizes(inputs[name]), sizes, where=where)
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if axis and dim.dim_param not in ("", "?"):
                symbols[dim.dim_param] = size
            if size != -1:
                dim.Clear()
                dim.dim_value = size
    for value in inputs.values():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis and dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
    if options.shapes:
        forget_shapes(model)


def _inputs(model: Any) -> dict[str, Any]:
    return {_plain_name(value.name): value for value in onnx_file.given(model.graph)}


def fixed_batches(model: Any, options: LoadOptions) -> dict[str, int]:
    """Return name -> batch of inputs with a fixed batch above 1 that --shape pins to 1."""
    batches = {_plain_name(value.name): next(iter(onnx_file.sizes(value)), 1) for value in model.graph.input}
    return {name: batch for name, batch in batches.items() if name in options.shapes and batch > 1}


def forget_shapes(model: Any) -> None:
    """Drop all shapes but those of inputs, in place; outputs keep their rank."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _plain_name(name: str) -> str:
    return name.removesuffix(":0")
