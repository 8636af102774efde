"""A source that is described without being opened: loading Keras costs ten seconds, and an unchanged build needs no answers.

    source = open_source(path, options, store)
    source.inputs                            # from the store, where this very model was opened before
    actual(source)                           # opened now, for whatever has to run or convert it

Rules: what is remembered belongs to these very bytes, options and tools; a model whose file is not all of it (a PyTorch
function, an ONNX file) is opened every time; asking for answers opens the model, and what is found then must be the very
model that was described.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.sources import isolated
from edgekit_converters.sources.load import load
from edgekit_converters.sources.model import Description, SourceModel, changed, content_sha256
from edgekit_converters.sources.options import LoadOptions, described_json
from edgekit_converters.store import Store, key
from edgekit_runtime.bundle.codec import from_json, to_json
from edgekit_runtime.errors import BundleError

__all__ = ["DeferredSource", "actual", "open_source"]

_WHOLE = {".keras", ".h5", ".hdf5", ".pt2"}  # one file holds everything, and opening it is slow


@dataclass(frozen=True, eq=False, kw_only=True)
class DeferredSource(Description):
    """A SourceModel that opens the model when it is first asked for answers. open: called once, by one thread."""

    open: Callable[[], SourceModel]

    @cached_property
    def actual(self) -> SourceModel:
        return self.open()

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return self.actual.predict(inputs)

    def onnx(self) -> bytes:
        return self.actual.onnx()


def actual(source: SourceModel) -> SourceModel:
    """The source itself, opened: what can be asked whether TensorFlow can trace it."""
    return source.actual if isinstance(source, DeferredSource) else source


def open_source(path: Path, options: LoadOptions, store: Store) -> SourceModel:
    """`load`, or what is remembered of it. Raises what `load` raises."""
    content = _content(path)
    if content is None:
        return load(path, options)
    name = key("source", content, path.suffix.lower(), described_json(options))
    stored = _description(store.get(name), path)
    if stored is not None:
        return DeferredSource(**vars(stored), open=lambda: _same(_opened(path, options), stored.sha256))
    source = _opened(path, options)
    if _content(path) != content:
        raise changed(path)
    store.put(name, _bytes(source))
    return source


def _opened(path: Path, options: LoadOptions) -> SourceModel:
    """In a process of its own: what is remembered here is what frameworks open, and theirs are programs."""
    return isolated.open_isolated(path, options) if isolated.is_on() else load(path, options)


def _same(source: SourceModel, sha256: str) -> SourceModel:
    """The source, if it is the one that everything stored was made from. Raises SourceError."""
    if source.sha256 != sha256:
        raise changed(source.path)
    return source


def _content(path: Path) -> str | None:
    """A digest of everything that the model is made of, None where that cannot be told or opening it is quick."""
    try:
        if (path.is_file() and path.suffix.lower() in _WHOLE) or (path / "saved_model.pb").is_file():
            return content_sha256(path)
    except OSError:
        pass  # `load` says what is wrong
    return None


def _bytes(source: SourceModel) -> bytes:
    known = Description(
        path=Path(),
        format=source.format,
        sha256=source.sha256,
        inputs=source.inputs,
        outputs=source.outputs,
        state=source.state,
        state_pairs=source.state_pairs,
        notes=source.notes,
    )
    return json.dumps({**to_json(known), "path": ""}).encode()


def _description(stored: bytes | None, path: Path) -> Description | None:
    if stored is None:
        return None
    try:
        return from_json(Description, {**json.loads(stored), "path": path}, "a stored description")
    except (BundleError, ValueError):
        return None
