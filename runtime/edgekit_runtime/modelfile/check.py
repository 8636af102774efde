"""One call for every format of model file, its facts, and how a file is refused."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edgekit_runtime.system.errors import ModelFileError
from edgekit_runtime.system.records import record

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import ArtifactEntry
    from edgekit_runtime.bundle.reader import Bundle

MAX_TENSOR_BYTES = 512 << 20
"""The most that a file may declare for one computed tensor; constants are in the file."""

DELEGATED = {"edgetpu-custom-op": "libedgetpu.so.1", "ethos-u": "libethosu_delegate.so"}
"""Custom TFLite operators of an accelerator's compiler -> the delegate's library that can run them."""


@record(frozen=True)
class ModelFacts:
    """version: "schema 3", "IR 8, opset 13", "1" of ncnn, or "GGUF 3".
    ops: the operators it uses, each once, sorted: "CONV_2D", or "ai.onnx:Conv"; of GGUF its number formats.
    operators: how many operators all graphs have.
    tensors: of all graphs, as far as the file names them.
    constant_bytes: of the file's constants.
    largest_tensor_bytes: of a computed tensor, as far as its shape is declared."""

    format: str
    version: str
    ops: tuple[str, ...]
    operators: int
    graphs: int
    tensors: int
    constant_bytes: int
    largest_tensor_bytes: int


def delegated_operators(ops: Iterable[str] | None) -> tuple[str, ...]:
    """Those operators that only a delegate can run."""
    return tuple(op for op in ops or () if op in DELEGATED)


def refusal(what: str, do: str = "Do not use it; build the bundle again from the original model") -> ModelFileError:
    return ModelFileError(what, do=do)


def bytes_of(shape: tuple[int, ...], bits: int, what: str, most: int | None = None) -> int:
    """Bytes of a tensor of this shape, `bits` an element.
    Raises ModelFileError beyond `most`, and for a negative side. Python's integers do not overflow."""
    count = 1
    for side in shape:
        if side < 0:
            raise refusal(f"{what} has a negative side: {list(shape)}")
        count *= side
    size = (count * bits + 7) // 8
    if most is not None and size > most:
        raise refusal(f"{what} declares {size:,} bytes, more than the {most:,} that one tensor may have")
    return size


_MOST_KEPT = 64
_SOUND: dict[tuple[str, str, tuple[str, ...] | None], ModelFacts] = {}
_FORMATS = {form: f"edgekit_runtime.modelfile.{form}_structure" for form in ("tflite", "onnx", "ncnn", "gguf")}


def check_model(
    format: str,  # noqa: A002 - the manifest's word
    data: bytes,
    *,
    ops: Sequence[str] | None = None,
    max_tensor_bytes: int = MAX_TENSOR_BYTES,
    where: str = "",
) -> ModelFacts:
    """Walk a model file's whole structure; nothing of it is run. Raises ModelFileError.

    format: "tflite", "onnx", "ncnn" or "gguf".
    ops: operators it may use, None for any that its format's rules allow.
    max_tensor_bytes: the most that one computed tensor may declare.
    where: for the message."""
    try:
        if format not in _FORMATS:
            raise refusal(f"unknown format '{format}'", "Upgrade edgekit-deploy")
        facts: ModelFacts = importlib.import_module(_FORMATS[format]).check(data, max_tensor_bytes)
        if ops is not None and (more := [op for op in facts.ops if op not in set(ops)]):
            raise refusal(f"it uses {', '.join(more)}, which the manifest does not allow")
    except ModelFileError as error:
        raise ModelFileError(error.what, where=where, do=error.do) from None
    return facts


def check_artifact(bundle: Bundle, entry: ArtifactEntry) -> ModelFacts:
    """`check_model` of a bundle's own bytes, by what its manifest allows. Raises ModelFileError.
    Bytes that passed are not walked again: a blob's name is its digest."""
    key = (entry.format, entry.blob, entry.ops)
    facts = _SOUND.get(key)
    if facts is None:
        where = f"{bundle.path}: the model file of {entry.recipe}"
        facts = check_model(entry.format, bundle.blob(entry.blob), ops=entry.ops, where=where)
        if len(_SOUND) >= _MOST_KEPT:
            _SOUND.clear()
        _SOUND[key] = facts
    return facts
