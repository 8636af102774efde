"""Which reader takes a model: two tables of strings, resolved when used.

Rules: a name like `package.module:function` that is no file is a PyTorch module; a folder is a SavedModel; else the suffix
names the format. What is plainly something else (nothing, a git-lfs pointer, a web page) is called that.

    source = load(Path("net.onnx"), LoadOptions(shapes={"x": (1, 3, 48, 192)}))
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import NoReturn, cast

from edgekit_converters.errors import SourceError
from edgekit_converters.sources.model import SourceModel, changed, content_sha256
from edgekit_converters.sources.options import LoadOptions

__all__ = ["FORMATS", "LOADERS", "load"]

FORMATS: dict[str, str] = {
    ".keras": "keras",
    ".h5": "keras-h5",
    ".hdf5": "keras-h5",
    ".onnx": "onnx",
    ".tflite": "tflite",
    ".pt2": "torch-export",
}
"""File suffix -> format. Two more have none: `saved-model` (a folder) and `torch-module` (`module:function`)."""

LOADERS: dict[str, str] = {
    "keras": "edgekit_converters.sources.keras:load",
    "keras-h5": "edgekit_converters.sources.keras:load_h5",
    "onnx": "edgekit_converters.sources.onnx:load",
    "saved-model": "edgekit_converters.sources.saved_model:load",
    "tflite": "edgekit_converters.sources.tflite:load",
    "tflite, as it is": "edgekit_converters.sources.tflite_finished:load",
    "torch-export": "edgekit_converters.sources.torch:load",
    "torch-module": "edgekit_converters.sources.torch:load_function",
}
"""Format -> `module:function`, called with the path and the options."""

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_KNOWN = "Pass a .keras, .h5, .hdf5, .onnx, .tflite or .pt2 file, a SavedModel folder, or module:function for PyTorch"
_HAS_NO_NETWORK = "it holds weights without their network; name the function that makes the network: module:function"
_HINTS = {
    ".pb": "a frozen graph of TensorFlow 1 is not read; pass the SavedModel folder, or its ONNX form",
    ".pt": f"PyTorch files of this kind run code when opened. Save it with torch.export.save (.pt2); or, if {_HAS_NO_NETWORK}",
    ".pth": f"PyTorch files of this kind run code when opened. Save it with torch.export.save (.pt2); or, if {_HAS_NO_NETWORK}",
    ".ckpt": f"a checkpoint is not read: {_HAS_NO_NETWORK}",
    ".safetensors": f"a weights file is not read: {_HAS_NO_NETWORK}",
    ".pkl": "a pickle runs code when opened, and is not read; save the model in a format of its framework's",
    ".joblib": "a pickle runs code when opened, and is not read; save the model in a format of its framework's",
    ".ekb": "this is a bundle, which `edgekit build` already made; pass the model that it was made from",
}
_LFS = b"version https://git-lfs.github.com/spec/"


def load(path: Path | str, options: LoadOptions | None = None) -> SourceModel:
    """Open a trained model: a file, a SavedModel folder, or `module:function` that returns a torch.nn.Module.

    Raises SourceError when it is missing, empty, damaged, not a model, changes meanwhile, holds something edgekit does not take, or does not
    fit the options; and MissingExtraError when the tools that read it are not installed.
    """
    path, options = Path(path), options or LoadOptions()
    format = _format(path)  # noqa: A001
    if options.signature is not None and format != "saved-model":
        _refuse(path, f"--signature is for SavedModel folders, and this is {_article(format)}", "Leave it out")
    if options.constants and format != "onnx":
        _refuse(path, f"--constant is for ONNX files, and this is {_article(format)}", "Export it to ONNX first")
    if options.as_is and format != "tflite":
        _refuse(
            path, f"only a .tflite file can be packed as it is, and this is {_article(format)}", "Name other recipes"
        )
    module, function = LOADERS[f"{format}, as it is" if options.as_is else format].split(":")
    loader = getattr(importlib.import_module(module), function)
    before = _content(path)
    try:
        source = cast(SourceModel, loader(path, options))
    except SourceError as error:
        if _content(path) != before:  # half a file looks like a damaged one
            raise changed(path) from error
        raise
    if _content(path) != before:
        raise changed(path)
    return source


def _content(path: Path) -> str | None:
    try:
        return content_sha256(path)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", "Check its permissions", error)


def _format(path: Path) -> str:
    if not path.exists():
        if _FUNCTION.fullmatch(str(path)):
            return "torch-module"
        _refuse(path, "there is no such file", "Check the path")
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        _refuse(path, "this is not a regular file, but a pipe, a socket or a device", "Save the model in a file")
    suffix = path.suffix.lower()
    try:
        if path.stat().st_size == 0:
            _refuse(path, "the file is empty", "Save the model again, or download it again")
        with path.open("rb") as file:
            head = file.read(256)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", "Check its permissions", error)
    if head.startswith(_LFS):
        _refuse(path, "this is a git-lfs pointer: the model itself was not downloaded", "Run: git lfs pull")
    if head.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        _refuse(path, "this is a web page, not a model: most likely the download failed", "Download the file itself")
    if suffix not in FORMATS:
        _refuse(path, _HINTS.get(suffix, f"the suffix '{path.suffix}' is not that of a model edgekit reads"))
    return FORMATS[suffix]


def _folder(path: Path) -> str:
    if not (path / "saved_model.pb").is_file():
        inside = [file for file in sorted(path.iterdir()) if file.suffix.lower() in FORMATS]
        inside += [file.parent for file in sorted(path.glob("*/saved_model.pb"))]
        do = f"Did you mean {inside[0]}?" if inside else _KNOWN
        _refuse(path, "this is a folder without a saved_model.pb, so no SavedModel", do)
    if (path / "saved_model.pb").stat().st_size == 0:
        _refuse(path, "its saved_model.pb is empty", "Save the model again, or download it again")
    return "saved-model"


def _article(format: str) -> str:  # noqa: A002
    return f"an {format} model" if format[0] in "aeio" else f"a {format} model"


def _refuse(path: Path, what: str, do: str = _KNOWN, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause
