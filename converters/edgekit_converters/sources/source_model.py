"""What every source becomes: a model that runs as it was trained, and options to load it.

    options = LoadOptions(shapes=dict([parse_shape("image=1,3,48,192")]))
    source = load(Path("net.onnx"), options)
    source.sha256                           # of the file, and of the options that make another model of it
    toml_text({"task": "classification", "labels": ["cat", "dog"], "input": {"kind": "image"}})    #
`Description.stated`

Rules:
- a shape names its input and every size, the batch first and 1; a constant names its input and one number;
- code in a model runs only if the user trusts the file;
- what a model file says of its numbers is the text of a contract file and goes through the same checks; a label has at
  most 200 printable characters;
- a digest is of the bytes that were read, so a file that changes meanwhile is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_runtime.contract.spec import TensorSpec

_T = TypeVar("_T")
_LARGEST = 2**31 - 1
_NOTHING: Mapping[str, int | float] = MappingProxyType({})


@dataclass(frozen=True)
class LoadOptions:
    """How to read a model.
    shapes: input -> all its sizes, (1, 3, 48, 192); the batch must be 1, which leaves a free one free.
    constants: input -> the number that it always has; the input is then gone.
    signature: which function of a SavedModel.
    trust_model: code that the file holds (Lambda layers, classes of its author's, pickles) may run.
    as_is: the file is read as what boards run already, not as an original.
    keep_label: a classifier's label stays an output, because it is not the class with the best score."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    constants: Mapping[str, int | float] = field(default_factory=lambda: _NOTHING)
    signature: str | None = None
    trust_model: bool = False
    as_is: bool = False
    keep_label: bool = False

    @classmethod
    def parse(
        cls,
        *,
        shapes: Iterable[str] = (),
        constants: Iterable[str] = (),
        signature: str | None = None,
        trust_model: bool = False,
    ) -> LoadOptions:
        """From a command line's words. Raises SourceError naming the option."""
        pinned, fixed = _once(shapes, parse_shape, "--shape"), _once(constants, parse_constant, "--constant")
        return cls(pinned, fixed, signature, trust_model)


def described_json(options: LoadOptions) -> dict[str, Any]:
    """For the process that opens the file, and for the key of what is made of it.
    Without `as_is` and `keep_label`: such files are opened at once."""
    return {
        "shapes": {name: list(sizes) for name, sizes in options.shapes.items()},
        "constants": dict(options.constants),
        "signature": options.signature,
        "trust_model": options.trust_model,
    }


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`image=1,3,48,192` -> ("image", (1, 3, 48, 192)). Raises SourceError for anything else."""
    name, sizes = _halves(text, "--shape", "NAME=1,3,224,224")
    try:
        numbers = tuple(int(size) for size in sizes.split(","))
    except ValueError as error:
        raise _refused("--shape", text, "a size is no whole number", "NAME=1,3,224,224") from error
    if not all(0 < number <= _LARGEST for number in numbers):
        raise _refused("--shape", text, "every size must be 1 or more", "NAME=1,3,224,224")
    if numbers[0] != 1:
        what = f"the first size is the batch and must be 1, not {numbers[0]}: a board answers one item at a time"
        do = f"Write --shape {name}={','.join(map(str, (1, *numbers[1:])))}"
        raise SourceError(what, where=f"--shape {text}", do=do)
    return name, numbers


def parse_constant(text: str) -> tuple[str, int | float]:
    """`sr=16000` -> ("sr", 16000). Raises SourceError for anything else."""
    name, number = _halves(text, "--constant", "NAME=16000")
    try:
        return name, int(number)
    except ValueError:
        pass
    try:
        value = float(number)
    except ValueError as error:
        raise _refused("--constant", text, f"'{number}' is no number", "NAME=16000") from error
    if not math.isfinite(value):
        raise _refused("--constant", text, f"'{number}' is not finite", "NAME=16000")
    return name, value


def _halves(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")  # a name may hold an equals sign, numbers do not
    if not equals or not name.strip() or not value.strip():
        raise _refused(option, text, "this names no input and value", example)
    return name.strip(), value.strip()


def _refused(option: str, text: str, what: str, example: str) -> SourceError:
    return SourceError(what, where=f"{option} {text}", do=f"Write {option} {example}")


def _once(texts: Iterable[str], parse: Callable[[str], tuple[str, _T]], option: str) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for text in texts:
        name, value = parse(text)
        if name in found:
            raise SourceError(f"the input '{name}' is named twice", where=f"{option} {text}", do="Keep one of the two")
        found[name] = value
    return found


State = Literal["none", "explicit", "internal"]
"""Whether an answer depends on earlier ones. explicit: the caller carries the state. internal: the model keeps it."""


@dataclass(frozen=True)
class Note:
    """Something to know of a model that was read all the same. code: stable, for scripts."""

    code: str
    what: str
    do: str = ""


def description_of(source: SourceModel) -> Description:
    """What the model is, wherever its file lies."""
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
        """Outputs of `run` for a batch of any size, all items at once or one by one.
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
        """The answers to so many items, or SourceError for another size than described."""
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


def varying_size(
    output: str, found: Sequence[int], before: Sequence[int], where: str, command: str = ""
) -> SourceError:
    """The error for an output whose size depends on the input. command: exports it otherwise."""
    what = f"the size of its output '{output}' depends on the input: {list(found)} for one, {list(before)} for another"
    do = "Export it without what chooses among its answers, as NonMaxSuppression: edgekit does that itself"
    if command:
        do = f"Export it without NonMaxSuppression, which edgekit does itself: {command}"
    return SourceError(what, where=where, do=do)


def file_sha256(path: Path) -> str:
    """Of the whole file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path, files: Sequence[Path]) -> str:
    """Of the named files and their places in the folder, in hex."""
    entries = sorted((path.relative_to(folder).as_posix(), file_sha256(path)) for path in files)
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def content_sha256(path: Path) -> str | None:
    """Of the file, or of everything in the folder; None for neither. Raises OSError."""
    if path.is_file():
        return file_sha256(path)
    if not path.is_dir():
        return None
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return folder_sha256(path, [file for file in files if file.is_file()])


def changed_error(path: Path) -> SourceError:
    """The error for a model that changed since its reading began."""
    do = "Run the build again when nothing writes to it"
    return SourceError("the file changed while it was read", where=str(path), do=do)


def model_sha256(path: Path, options: LoadOptions, more: Sequence[Path] = ()) -> str:
    """Of the file, `more` files that belong to it, and options that make another model."""
    digest = folder_sha256(path.parent, [path, *more]) if more else file_sha256(path)
    return with_options(digest, options)


def saved_model_sha256(folder: Path, options: LoadOptions) -> str:
    """Of a SavedModel's graph, variables and assets, and of the options. Raises OSError."""
    places = [folder / "variables", folder / "assets"]
    files = [file for place in places if place.is_dir() for file in place.rglob("*") if file.is_file()]
    return with_options(folder_sha256(folder, [folder / "saved_model.pb", *files]), options)


def with_options(digest: str, options: LoadOptions) -> str:
    """The digest itself if no option makes another model."""
    if not (options.shapes or options.constants or options.signature or options.keep_label):
        return digest
    record = {
        "file": digest,
        "shapes": {name: list(sizes) for name, sizes in options.shapes.items()},
        "constants": dict(options.constants),
        "signature": options.signature,
    } | ({"keep_label": True} if options.keep_label else {})
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


_LONGEST_LABEL = 200


def is_label(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and text.strip() != "" and len(text) <= _LONGEST_LABEL


def toml_text(document: Mapping[str, Any]) -> str:
    """Keys first, then one table for each mapping in it, at any depth."""
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
