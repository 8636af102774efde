"""What every source becomes: a model that runs as it was trained.

    source = load(Path("net.onnx"), LoadOptions())
    source.sha256                           # of the file, and of the options that make another model of it
    toml_text({"task": "classification", "labels": ["cat", "dog"], "input": {"kind": "image"}})    #
`Description.stated`

Rules:
- what a model file says of its numbers is the text of a contract file and goes through the same checks; a label has at
  most 200 printable characters;
- a digest is of the bytes that were read, so a file that changes meanwhile is refused.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import SourceError, one_line
from edgekit_converters.recipe.foreign_code import quiet
from edgekit_converters.sources.load_options import LoadOptions, described_json
from edgekit_profiles.schema import parse_toml
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.system.errors import EdgekitError, EngineError

State = Literal["none", "explicit", "internal"]
"""Whether an answer depends on earlier ones. explicit: the caller carries the state. internal: the model keeps it."""


@dataclass(frozen=True)
class Note:
    """A remark on a model that was accepted. code: stable, for scripts."""

    code: str
    what: str
    do: str = ""


def description_of(source: SourceModel) -> Description:
    """Describe the model without its path."""
    return Description(**{**{name: getattr(source, name) for name in Description.__dataclass_fields__}, "path": Path()})


@dataclass(frozen=True, eq=False, kw_only=True)
class Description:
    """What every source says of itself.
    path: the file, the folder, or `module:function`.
    sha256: of the file, together with the options that make another model of it (shapes, constants, signature).
    inputs, outputs: with the contract's names; shapes have -1 for a free axis (the batch), `layout` is set for
        image-shaped inputs ([N, H, W, C] or [N, C, H, W] with 1, 3 or 4 channels).
    state_pairs: (input, output), if state is explicit.
    stated: what the file itself says of its numbers, as a contract file's text.
    Two sources are equal only if they are one."""

    path: Path
    format: str
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state: State = "none"
    state_pairs: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()
    stated: str = ""

    @property
    def free_batch(self) -> bool:
        """Whether a batch may have any size."""
        return all(spec.free_batch for spec in (*self.inputs, *self.outputs))

    @cached_property
    def items(self) -> list[NDArray[Any]]:
        """Real items to prove a conversion with, an array for each input; the caller fills it."""
        return []

    def answered(
        self, inputs: Sequence[NDArray[Any]], run: Callable[[list[NDArray[Any]]], list[NDArray[Any]]], *, at_once: bool
    ) -> list[NDArray[Any]]:
        """Run a batch of any size, all items at once or one by one.
        Raises SourceError for an output of another size than described."""
        arrays = [np.ascontiguousarray(array, spec.dtype) for array, spec in zip(inputs, self.inputs, strict=True)]
        count = len(arrays[0])
        if count == 0:
            return [np.zeros((0, *spec.shape[1:]), spec.dtype) for spec in self.outputs]
        if at_once:
            return self.sized(run(arrays), count)
        items = [self.sized(run([array[i : i + 1] for array in arrays]), 1) for i in range(count)]
        return [np.concatenate(parts) for parts in zip(*items, strict=True)]

    def sized(self, answers: list[NDArray[Any]], count: int) -> list[NDArray[Any]]:
        """Return the answers if their sizes are as described. Raises SourceError."""
        for spec, answer in zip(self.outputs, answers, strict=True):
            if answer.shape != (count, *spec.shape[1:]):
                raise varying_size(spec.name, answer.shape, (count, *spec.shape[1:]), str(self.path))
        return answers


class SourceModel(Description):
    """A trained model as its author saved it; each reader makes one."""

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the original in float on a batch, arrays in the order of `inputs` and `outputs`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Make the next answer a first one, if `state` is internal."""

    def confirm(self, inputs: Sequence[NDArray[Any]], answers: Sequence[NDArray[Any]]) -> None:
        """Check on real items what reading the file took for granted. Raises LabelOutputError."""

    def onnx(self) -> bytes:
        """The float model as ONNX, made once: IR 10, opset 17 to 21, a free batch axis if it is.
        Raises ConversionError if ONNX cannot express it."""
        return self._onnx

    @cached_property
    def _onnx(self) -> bytes:
        raise NotImplementedError


@cache
def allowed(framework: str) -> dict[str, frozenset[str]]:
    """Return the names that `allowed.toml` permits for that framework."""
    text = (importlib.resources.files("edgekit_converters.sources") / "allowed.toml").read_text(encoding="utf-8")
    return {name: frozenset(words.split()) for name, words in parse_toml(text)[framework].items()}


@contextmanager
def refusing(where: Path | str, what: str, do: str) -> Iterator[None]:
    """Run a framework quietly; whatever it raises but MemoryError becomes a SourceError.
    what: ends with a colon if the framework's own words follow."""
    try:
        with quiet():
            yield
    except Exception as error:
        if isinstance(error, (EdgekitError, MemoryError)) and not isinstance(error, EngineError):
            raise
        detail = error.what if isinstance(error, EngineError) else one_line(error)
        said = f"{what} {detail}".strip() if what[-1:] in (":", "") else what
        raise SourceError(said, where=str(where), do=do) from error


def varying_size(
    output: str, found: Sequence[int], before: Sequence[int], where: str, command: str = ""
) -> SourceError:
    """Return the error for an output of varying size. command: exports the model without it."""
    what = f"the size of its output '{output}' depends on the input: {list(found)} for one, {list(before)} for another"
    do = "Export it without what chooses among its answers, as NonMaxSuppression: edgekit does that itself"
    if command:
        do = f"Export it without NonMaxSuppression, which edgekit does itself: {command}"
    return SourceError(what, where=where, do=do)


def file_sha256(path: Path) -> str:
    """Return the file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path, files: Sequence[Path]) -> str:
    """Return the SHA-256 of these files and their relative paths, in hex."""
    entries = sorted((path.relative_to(folder).as_posix(), file_sha256(path)) for path in files)
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def content_sha256(path: Path) -> str | None:
    """Return the SHA-256 of a file or a whole folder; None for neither. Raises OSError."""
    if path.is_file():
        return file_sha256(path)
    if not path.is_dir():
        return None
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return folder_sha256(path, [file for file in files if file.is_file()])


def changed_error(path: Path) -> SourceError:
    """Return the error for a model that changed while it was read."""
    do = "Run the build again when nothing writes to it"
    return SourceError("the file changed while it was read", where=str(path), do=do)


def model_sha256(path: Path, options: LoadOptions) -> str:
    """Return the SHA-256 of the file and the options that change the model."""
    return with_options(file_sha256(path), options)


def saved_model_sha256(folder: Path, options: LoadOptions) -> str:
    """Return the SHA-256 of graph, variables, assets and options. Raises OSError."""
    places = [folder / "variables", folder / "assets"]
    files = [file for place in places if place.is_dir() for file in place.rglob("*") if file.is_file()]
    return with_options(folder_sha256(folder, [folder / "saved_model.pb", *files]), options)


def with_options(digest: str, options: LoadOptions) -> str:
    """Combine a digest with the options; unchanged if no option changes the model."""
    if not (options.shapes or options.constants or options.signature or options.keep_label):
        return digest
    record = {"file": digest, **described_json(options)} | ({"keep_label": True} if options.keep_label else {})
    del record["trust_model"]
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


_LONGEST_LABEL = 200


def is_label(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and text.strip() != "" and len(text) <= _LONGEST_LABEL


def toml_text(document: Mapping[str, Any]) -> str:
    """Write TOML: keys first, then a table for each nested mapping."""
    return "\n".join(_lines(document)).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    lines = [f"{toml_key(name)} = {_value(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    if lines and path:
        lines = ["", f"[{'.'.join(map(toml_key, path))}]", *lines]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, name))
    return lines


def toml_key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
