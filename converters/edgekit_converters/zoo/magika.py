"""The network of the package `magika`, which names a file's type, and its plain INT8.

    names = save_magika(Path("file_types.onnx"))        # its 214 classes, in order
    item = file_bytes(Path("a.py").read_bytes())        # int32 [2048]
    plain_int8(Path("file_types.onnx"), items)          # bytes of an .onnx file, to compare the demo's result with

Rule: nothing of the package is imported, and nothing unpickled: its model is ONNX, its settings JSON.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.foreign_code import quiet
from edgekit_runtime.system.errors import MissingExtraError

_MODEL = "models/standard_v3_3"
_HALF, _BLOCK, _PADDING = 1024, 4096, 256


def save_magika(path: Path) -> list[str]:
    """Copy the model to `path`; return its classes. Raises MissingExtraError."""
    shutil.copyfile(_package() / _MODEL / "model.onnx", path)
    settings = json.loads((_package() / _MODEL / "config.min.json").read_bytes())
    return list(map(str, settings["target_labels_space"]))


def file_bytes(data: bytes) -> NDArray[np.int32]:
    """int32 [2048]: 1024 bytes after leading blanks, 1024 before trailing ones, 256 for none."""
    first, last = data[:_BLOCK].lstrip()[:_HALF], data[-_BLOCK:].rstrip()[-_HALF:]
    gap = [_PADDING] * (2 * _HALF - len(first) - len(last))
    return np.array([*first, *gap, *last], np.int32)


def plain_int8(model: Path, items: Iterable[NDArray[np.int32]]) -> bytes:
    """What ONNX Runtime's quantizer makes of it with these items and no more options."""
    with quiet(), TemporaryDirectory(prefix="edgekit-") as folder:
        from onnxruntime.quantization import CalibrationDataReader, quantize_static

        class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
            left = iter(items)

            def get_next(self) -> dict[str, NDArray[np.int32]] | None:
                item = next(self.left, None)
                return None if item is None else {"bytes": item[None]}

        made = Path(folder) / "plain.onnx"
        quantize_static(model, made, Reader())
        return made.read_bytes()


def _package() -> Path:
    spec = importlib.util.find_spec("magika")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("demo", "the demo's second network")
    return Path(spec.submodule_search_locations[0])
