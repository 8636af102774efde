"""Which reader takes a model, how much it may unpack to, and what is remembered of it.

    source = load(Path("net.onnx"), LoadOptions(shapes={"x": (1, 3, 48, 192)}))
    source = open_source(path, options, store)      # described from the store if this very model was opened before
    actual(source)                                  # opened now, for code that has to run or convert it

Rules:
- `package.module:function`, unless a file, is a PyTorch module; a folder is a SavedModel; else the suffix names the
  format. An empty file, a git-lfs pointer or a web page is reported as such;
- what is remembered belongs to these very bytes, options and tools. A model that is more than its file (a PyTorch
  function, an ONNX file) is opened every time, and one opened later must be the very one that was described;
- a file unpacks to 2 GB at most, and above 256 MB to at most 50 times its bytes: trained weights do not shrink further;
- no two members of an archive have one name, also by case alone, and their bytes do not overlap;
- an HDF5 file keeps its numbers in itself: no links to other files, no external or virtual storage.
"""

from __future__ import annotations

import pkgutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, cast

from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.store import StageStore, get_json, key, put_json
from edgekit_converters.recipe.user_function import is_function_name
from edgekit_converters.sources import isolated
from edgekit_converters.sources.load_options import LoadOptions, described_json
from edgekit_converters.sources.source_model import (
    Description,
    SourceModel,
    changed_error,
    content_sha256,
    description_of,
)

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
    "keras": "edgekit_converters.sources.keras_source:load",
    "keras-h5": "edgekit_converters.sources.keras_source:load_h5",
    "onnx": "edgekit_converters.sources.onnx_source:load",
    "saved-model": "edgekit_converters.sources.saved_model:load",
    "tflite": "edgekit_converters.sources.tflite_source:load",
    "tflite, as it is": "edgekit_converters.sources.tflite_source:load_finished",
    "torch-export": "edgekit_converters.sources.torch_source:load",
    "torch-module": "edgekit_converters.sources.torch_source:load_function",
}
"""Format -> `module:function`, called with the path and the options."""

_KNOWN = "Pass a .keras, .h5, .hdf5, .onnx, .tflite or .pt2 file, a SavedModel folder, or module:function for PyTorch"
_HAS_NO_NETWORK = "it contains weights without the network; name the function that builds the network: module:function"
_RUNS_CODE = "PyTorch files of this kind run code when opened. Save it with torch.export.save (.pt2); or, if "
_RUNS_CODE += _HAS_NO_NETWORK
_PICKLE = "a pickle runs code when opened and is not supported; save the model in its framework's own format, "
_PICKLE += "or as ONNX: skl2onnx for scikit-learn, onnxmltools for LightGBM and XGBoost"
_HINTS = {
    ".pb": "TensorFlow 1's frozen graphs are not supported; pass the SavedModel folder or an ONNX export",
    ".pt": _RUNS_CODE,
    ".pth": _RUNS_CODE,
    ".ckpt": f"checkpoints are not supported: {_HAS_NO_NETWORK}",
    ".safetensors": f"weights files are not supported: {_HAS_NO_NETWORK}",
    ".pkl": _PICKLE,
    ".joblib": _PICKLE,
    ".gguf": "a language model needs no contract and no first look; pass it to `edgekit build`",
    ".ekb": "this is a bundle, which `edgekit build` already made; pass the model that it was made from",
}
_LFS = b"version https://git-lfs.github.com/spec/"


def load(path: Path | str, options: LoadOptions | None = None) -> SourceModel:
    """Open a trained model: a file, a SavedModel folder, or `module:function` (PyTorch).
    Raises SourceError for a missing, damaged, changing or unsupported file, or options that do not fit it;
    MissingExtraError if the tools that read it are not installed."""
    path, options = Path(path), options or LoadOptions()
    format = _format(path)  # noqa: A001
    if options.signature is not None and format != "saved-model":
        _refuse(path, f"--signature is for SavedModel folders, and this is {_article(format)}", "Leave it out")
    if options.constants and format != "onnx":
        _refuse(path, f"--constant is for ONNX files, and this is {_article(format)}", "Export it to ONNX first")
    if options.as_is and format != "tflite":
        what = f"only a .tflite file can be packed as it is, and this is {_article(format)}"
        _refuse(path, what, "Name other recipes")
    loader = pkgutil.resolve_name(LOADERS[f"{format}, as it is" if options.as_is else format])
    before = _content(path)
    try:
        source = cast(SourceModel, loader(path, options))
    except SourceError as error:
        if _content(path) != before:  # half a file looks like a damaged one
            raise changed_error(path) from error
        raise
    if _content(path) != before:
        raise changed_error(path)
    return source


def _content(path: Path) -> str | None:
    try:
        return content_sha256(path)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", "Check its permissions", error)


def _format(path: Path) -> str:
    if not path.exists():
        if is_function_name(str(path)):
            return "torch-module"
        _refuse(path, "there is no such file", "Check the path")
    if path.is_dir():
        if not (path / "saved_model.pb").is_file():
            inside = [file for file in sorted(path.iterdir()) if file.suffix.lower() in FORMATS]
            inside += [file.parent for file in sorted(path.glob("*/saved_model.pb"))]
            do = f"Did you mean {inside[0]}?" if inside else _KNOWN
            if all((path / name).is_file() for name in ("config.json", "tokenizer.json")):
                do = f"A Hugging Face folder becomes an .onnx first: edgekit contract {path} --length 64"
            _refuse(path, "this folder has no saved_model.pb, so it is not a SavedModel", do)
        if (path / "saved_model.pb").stat().st_size == 0:
            _refuse(path, "its saved_model.pb is empty", "Save the model again, or download it again")
        return "saved-model"
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
        _refuse(path, _HINTS.get(suffix, f"unsupported file suffix '{path.suffix}'"))
    return FORMATS[suffix]


def _article(format: str) -> str:  # noqa: A002
    return f"an {format} model" if format[0] in "aeio" else f"a {format} model"


def _refuse(path: Path, what: str, do: str = _KNOWN, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause


_WHOLE = {".keras", ".h5", ".hdf5", ".pt2"}  # one file holds everything, and opening it is slow


@dataclass(frozen=True, eq=False, kw_only=True)
class DeferredSource(SourceModel):
    """A SourceModel that opens the model for its first answer. open: called once, by one thread."""

    open: Callable[[], SourceModel]

    @cached_property
    def actual(self) -> SourceModel:
        return self.open()

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return self.actual.predict(inputs)

    def onnx(self) -> bytes:
        return self.actual.onnx()


def actual(source: SourceModel) -> SourceModel:
    """Return the source itself, opened."""
    return source.actual if isinstance(source, DeferredSource) else source


def open_source(path: Path, options: LoadOptions, store: StageStore) -> SourceModel:
    """Open the model, or describe it from the store. Raises what `load` raises."""
    content = _content_key(path)
    if content is None:
        return load(path, options)
    name = key("source", content, path.suffix.lower(), described_json(options))
    stored = get_json(store, name, Description)
    if stored is not None:

        def reopen() -> SourceModel:
            """Return the source if it is the one that everything stored was made from."""
            again = _opened(path, options)
            if again.sha256 != stored.sha256:
                raise changed_error(path)
            return again

        return DeferredSource(**{**vars(stored), "path": path}, open=reopen)
    source = _opened(path, options)
    if _content_key(path) != content:
        raise changed_error(path)
    put_json(store, name, description_of(source))
    return source


def _opened(path: Path, options: LoadOptions) -> SourceModel:
    """Open the model, in an isolated process if possible: frameworks' files are programs."""
    return isolated.open_isolated(path, options) if isolated.is_on() else load(path, options)


def _content_key(path: Path) -> str | None:
    """A digest of all that the model is made of; None if unknown, or if opening it is quick."""
    try:
        if (path.is_file() and path.suffix.lower() in _WHOLE) or (path / "saved_model.pb").is_file():
            return content_sha256(path)
    except OSError:
        pass  # `load` says what is wrong
    return None


LARGEST = 2_000_000_000
_FREELY = 256 << 20
_RATIO = 50
_MOST_PARTS = 100_000


def check_unpacked(path: Path, unpacked: int, stored: int, what: str) -> None:
    """Raise SourceError if it unpacks to too many bytes, absolutely or by ratio."""
    if unpacked > LARGEST:
        _refuse_size(path, f"{what} unpacks to {unpacked / 1e9:.1f} GB: no board takes more than 2 GB")
    if unpacked > _FREELY and unpacked > _RATIO * max(stored, 1):
        _refuse_size(path, f"{what} unpacks to {unpacked // max(stored, 1)} times its size, {unpacked / 1e6:.0f} MB")


def check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise SourceError for a ZIP archive that is too large or has ambiguous members."""
    members = archive.infolist()
    if len(members) > _MOST_PARTS:
        _refuse_size(path, f"it has {len(members)} members")
    if len({member.filename.casefold() for member in members}) < len(members):
        _refuse_size(path, "two of its members have the same name")
    stored = sum(member.compress_size for member in members)
    if stored > path.stat().st_size:
        _refuse_size(path, "its members overlap")
    check_unpacked(path, sum(member.file_size for member in members), stored, "it")


def check_hdf5(path: Path, file: Any) -> None:
    """Raise SourceError for links, external storage, or declared shapes beyond the bounds.
    file: an open h5py.File."""
    import h5py  # type: ignore[import-untyped]

    waiting, seen = [file], set[int]()
    unpacked = stored = 0
    while waiting:
        group = waiting.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                _refuse_size(path, f"its '{group.name.rstrip('/')}/{name}' is a link, and links are never followed")
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                continue
            seen.add(address)
            if len(seen) > _MOST_PARTS:
                _refuse_size(path, f"it has more than {_MOST_PARTS} parts")
            if isinstance(item, h5py.Group):
                waiting.append(item)
            elif isinstance(item, h5py.Dataset):
                if item.external or item.is_virtual:
                    _refuse_size(path, f"its '{item.name}' is stored in another file, which is never opened")
                unpacked += int(item.size or 0) * item.dtype.itemsize
                stored += item.id.get_storage_size()
                check_unpacked(path, unpacked, stored, "it")


def _refuse_size(path: Path, what: str) -> NoReturn:
    raise SourceError(what, where=str(path), do="Save the model again, or get it from a source you trust")
