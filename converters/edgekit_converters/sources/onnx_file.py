"""An ONNX file, parsed, complete and held against the rules, before anything runs it.

Rules: standard operators only (a custom domain needs code that no board has); a float model (what was already quantized or
optimized for one machine is no start for another); weights that stand in other files must stand in the model's own folder;
weights are finite.

    file = read(Path("net.onnx"))
    file.model.graph
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from edgekit_converters.errors import ConversionError, SourceError, first_line
from edgekit_converters.formats.onnx import FLOATS, array, constants, nodes, parse, subgraphs, tensors
from edgekit_converters.sources.model import changed, file_sha256, folder_sha256
from edgekit_converters.sources.quiet import quiet
from edgekit_converters.sources.shapes import check_finite
from edgekit_runtime.errors import MissingExtraError

__all__ = ["EXPORT_AGAIN", "OnnxFile", "check_graph", "read"]

EXPORT_AGAIN = "Export the model to ONNX again"
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_QUANTIZED = frozenset(
    [
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
    ]
)
# Read by one of these a constant is a weight; elsewhere an infinity may be meant, as in an attention mask.
_WEIGHTED = frozenset(
    [
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "BatchNormalization",
        "InstanceNormalization",
        "LSTM",
        "GRU",
        "RNN",
        "PRelu",
    ]
)
_LARGEST = 2_000_000_000  # protobuf's own limit is 2 GiB


@dataclass(frozen=True)
class OnnxFile:
    """model: with every weight inside. sha256: of the file, and of those that weights were read from."""

    model: Any
    sha256: str


def read(path: Path) -> OnnxFile:
    """Raises SourceError with the reason for whatever is refused."""
    if path.stat().st_size > _LARGEST:
        _refuse(path, "it is larger than 2 GB: no board takes it", "Pass a smaller model")
    try:
        model = parse(path.read_bytes())
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "reading an ONNX model", where=str(path)) from error
    except ConversionError as error:
        _refuse(path, "this is not an ONNX model, or it is damaged", cause=error)
    if not model.opset_import:
        _refuse(path, "this is not an ONNX model, or it has no operators")
    sha256 = _with_external_data(path, model)
    check_graph(str(path), model)
    return OnnxFile(model, sha256)


def check_graph(where: str, model: Any) -> None:
    """Raises SourceError for operators that no board has, a quantized model, a broken graph, or weights that are damaged."""
    import onnx

    _check_operators(where, model)
    try:
        with quiet():
            onnx.checker.check_model(model)
    except Exception as error:
        raise SourceError(
            f"the graph breaks ONNX's own rules: {first_line(error)}", where=where, do=EXPORT_AGAIN
        ) from error
    held = (pair for graph in subgraphs(model.graph) for pair in constants(graph) if pair[1].data_type in FLOATS)
    weights = {name for node in nodes(model.graph) if node.op_type in _WEIGHTED for name in node.input}
    arrays = ((name, array(tensor)) for name, tensor in held)
    check_finite(arrays, where=where, may_be_infinite=lambda name: name not in weights)


def _check_operators(where: str, model: Any) -> None:
    every = [node for holder in (model.graph, *model.functions) for node in nodes(holder)]
    own = {function.domain for function in model.functions}
    foreign = sorted({f"{n.domain}.{n.op_type}" for n in every if n.domain not in _STANDARD and n.domain not in own})
    if any(name.startswith("com.microsoft.") for name in foreign):
        raise SourceError(
            f"it was already optimized or quantized for ONNX Runtime ({foreign[0]})",
            where=where,
            do="Pass the float model that it was made from",
        )
    if foreign:
        raise SourceError(
            f"it uses operators that no board's engine has: {', '.join(foreign[:5])}",
            where=where,
            do=f"{EXPORT_AGAIN} with standard operators only",
        )
    if model.functions:
        raise SourceError(
            "it defines functions of its own, which the quantizer cannot see into",
            where=where,
            do="Inline them: onnx.inliner.inline_local_functions(model)",
        )
    quantized = sorted({node.op_type for node in every} & _QUANTIZED)
    if quantized:
        raise SourceError(
            f"it is already quantized ({quantized[0]}), and what that lost cannot be measured",
            where=where,
            do="Pass the float model that it was made from",
        )


def _with_external_data(path: Path, model: Any) -> str:
    """Read weights that stand beside the model into it; the digest of all. Nothing outside of the model's folder is opened."""
    import onnx

    external = [tensor for tensor in tensors(model) if tensor.data_location == tensor.EXTERNAL]
    if not external:
        return file_sha256(path)
    folder = path.parent.resolve()  # as the weights' files are, so that each has a place in one folder
    sizes: dict[Path, int] = {}
    for tensor in external:
        file, end = _place(path, folder, tensor)
        sizes[file] = max(sizes.get(file, 0), end)
    for file, end in sizes.items():
        if file.stat().st_size < end:
            _refuse(path, f"its weights' file {file.name} is too short: it is truncated", "Copy or download it again")
    if sum(file.stat().st_size for file in sizes) > _LARGEST:
        _refuse(path, "its weights are larger than 2 GB: no board takes it", "Pass a smaller model")
    files = [folder / path.name, *sorted(sizes)]
    before = folder_sha256(folder, files)
    try:
        onnx.load_external_data_for_model(model, str(folder))
    except Exception as error:  # noqa: BLE001 - onnx raises ValidationError, ValueError and OSError here
        _refuse(path, f"its weights cannot be read: {first_line(error)}", cause=error)
    if folder_sha256(folder, files) != before:
        raise changed(path)
    return before


def _place(path: Path, folder: Path, tensor: Any) -> tuple[Path, int]:
    """The file that a tensor's data stands in, and where in it they end. folder: the model's, without links."""
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
            f"the weights '{tensor.name}' point out of the model's folder, to {to}, which is never opened",
            f"Copy {file} in the place of the link"
            if linked
            else "Save it as one file: onnx.save_model(model, path, save_as_external_data=False)",
        )
    if not file.is_file():
        _refuse(path, f"its weights stand in {location}, which is not there", f"Copy {location} beside it")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
    except ValueError as error:
        _refuse(path, f"the location of the weights '{tensor.name}' is damaged", cause=error)
    if offset < 0 or length < 0:
        _refuse(path, f"the location of the weights '{tensor.name}' is damaged")
    return file, offset + length


def _refuse(path: Path, what: str, do: str = EXPORT_AGAIN, *, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause
