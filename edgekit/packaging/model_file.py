"""A bundle, an install root or a model file, recognised by content, ONNX by its name.

form_of(Path("net.tflite"))         # "tflite", "onnx" or "bundle"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.bundle.header import MAGIC
from edgekit_runtime.bundle.manifest import MAX_BUNDLE_BYTES
from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.files import open_regular, read_regular

if TYPE_CHECKING:
    from edgekit_runtime.install import Generation, Root

_DO = "Pass a bundle (.ekb), a .tflite or an .onnx file"


@contextmanager
def found_bundle(path: Path) -> Iterator[tuple[Path, Root | None, Generation | None]]:
    """Yield the file itself, or a root's active bundle, held open. Raises InstallError."""
    from edgekit_runtime.install import Root, is_root

    if not is_root(path):
        yield path, None, None
        return
    root = Root.open(path)
    lease, generation = root.hold_current()
    try:
        yield lease.path, root, generation
    finally:
        lease.release()


@contextmanager
def bundle_file(path: Path, trust: Sequence[Path] = (), allow_unsigned: bool = False) -> Iterator[Path]:
    """The file of `found_bundle`, verified against trust if given."""
    from edgekit_runtime.bundle.reader import read_verified

    with found_bundle(path) as (file, _, _):
        if trust:
            read_verified(file, tuple(trust), allow_unsigned=allow_unsigned)
        yield file


def form_of(path: Path) -> Literal["bundle", "tflite", "onnx"]:
    """Recognise a file by its content. Raises BundleError for any other."""
    try:
        with open_regular(path) as file:
            head = file.read(len(MAGIC))
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise BundleError(_why(error), where=str(path), do=_DO) from error
    if head[4:8] == b"TFL3":
        return "tflite"
    if path.suffix.lower() == ".onnx":
        return "onnx"
    if head == MAGIC or path.suffix.lower() == ".ekb":  # a damaged one: its reader says what is wrong
        return "bundle"
    raise BundleError("is neither a bundle nor a .tflite or .onnx file", where=str(path), do=_DO)


def read_model(path: Path) -> bytes:
    """The bytes of a bare model file. Raises BundleError."""
    try:
        return read_regular(path, MAX_BUNDLE_BYTES)
    except (OSError, ValueError) as error:
        raise BundleError(_why(error), where=str(path), do=_DO) from error


def _why(error: Exception) -> str:
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"
