"""Which reader takes a file: two tables of strings, resolved when used."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NoReturn, cast

from edgekit_converters.errors import SourceError
from edgekit_converters.sources.model import SourceModel

__all__ = ["FORMATS", "LOADERS", "load"]

FORMATS: dict[str, str] = {".keras": "keras", ".h5": "keras-h5", ".hdf5": "keras-h5", ".onnx": "onnx"}
"""File suffix -> format."""

LOADERS: dict[str, str] = {
    "keras": "edgekit_converters.sources.keras:load",
    "keras-h5": "edgekit_converters.sources.keras:load_h5",
    "onnx": "edgekit_converters.sources.onnx:load",
}
"""Format -> `module:function`, called with the path."""

_KNOWN = "Pass a .keras, .h5, .hdf5 or .onnx file"
_HINTS = {
    ".tflite": "a .tflite file is already converted and has lost the original's precision; pass the model it was made from",
    ".pb": "a frozen graph or SavedModel is not read yet",
    ".pt": "PyTorch files are not read yet; export the model with torch.onnx.export",
    ".pth": "PyTorch files are not read yet; export the model with torch.onnx.export",
    ".safetensors": "a weights file has no network in it; export the model to .keras or .onnx",
}


def load(path: Path) -> SourceModel:
    """Open a trained model.

    Raises SourceError when the file is missing, empty, damaged, not a model, or holds something edgekit does not take,
    and MissingExtraError when the tools that read it are not installed.
    """
    path = Path(path)
    module, function = LOADERS[_format(path)].split(":")
    loader = getattr(importlib.import_module(module), function)
    return cast(SourceModel, loader(path))


def _format(path: Path) -> str:
    if not path.exists():
        _refuse(path, "there is no such file", "Check the path")
    if path.is_dir():
        saved_model = (path / "saved_model.pb").exists()
        _refuse(path, "a SavedModel folder is not read yet" if saved_model else "this is a folder, not a model file")
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        _refuse(path, _HINTS.get(suffix, f"the suffix '{path.suffix}' is not that of a model edgekit reads"))
    try:
        if path.stat().st_size == 0:
            _refuse(path, "the file is empty", "Save the model again")
        with path.open("rb"):
            pass
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", "Check its permissions", error)
    return FORMATS[suffix]


def _refuse(path: Path, what: str, do: str = _KNOWN, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause
