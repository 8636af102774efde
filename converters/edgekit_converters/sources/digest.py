"""What tells one model from another: its bytes, and the options that make another model of the same bytes.

Rules: a digest is of the bytes that were read: a file that changed meanwhile is refused, because what is made of it would be
remembered as made of the other one.

model_sha256(Path("net.onnx"), LoadOptions(shapes={"x": (1, 3, 48, 192)}))
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from edgekit_converters.errors import SourceError
from edgekit_converters.sources.options import LoadOptions

__all__ = [
    "changed",
    "content_sha256",
    "file_sha256",
    "folder_sha256",
    "model_sha256",
    "saved_model_sha256",
    "with_options",
]


def file_sha256(path: Path) -> str:
    """Of the whole file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path, files: Sequence[Path]) -> str:
    """Of the named files, their places in the folder with them, in hex."""
    entries = sorted((path.relative_to(folder).as_posix(), file_sha256(path)) for path in files)
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def content_sha256(path: Path) -> str | None:
    """Of the file, or of everything in the folder; None for what is neither, such as `module:function`. Raises OSError."""
    if path.is_file():
        return file_sha256(path)
    if not path.is_dir():
        return None
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return folder_sha256(path, [file for file in files if file.is_file()])


def changed(path: Path) -> SourceError:
    """The error for a model that is not what it was when its reading began."""
    return SourceError(
        "the file changed while it was read", where=str(path), do="Run the build again when nothing writes to it"
    )


def model_sha256(path: Path, options: LoadOptions, more: Sequence[Path] = ()) -> str:
    """Of the file (with `more` files that belong to it) and of the options; of the file alone where there is no more."""
    digest = folder_sha256(path.parent, [path, *more]) if more else file_sha256(path)
    return with_options(digest, options)


def saved_model_sha256(folder: Path, options: LoadOptions) -> str:
    """Of a SavedModel's graph, variables and assets, and of the options. Raises OSError."""
    places = [folder / "variables", folder / "assets"]
    files = [file for place in places if place.is_dir() for file in place.rglob("*") if file.is_file()]
    return with_options(folder_sha256(folder, [folder / "saved_model.pb", *files]), options)


def with_options(digest: str, options: LoadOptions) -> str:
    """The digest itself where no option makes another model."""
    if not (options.shapes or options.constants or options.signature):
        return digest
    said = {
        "file": digest,
        "shapes": {name: list(sizes) for name, sizes in options.shapes.items()},
        "constants": dict(options.constants),
        "signature": options.signature,
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
