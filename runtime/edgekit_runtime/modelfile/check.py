"""One call for every format of model file.

facts = check_model("onnx", data, ops=entry.ops)
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgekit_runtime.errors import ModelFileError
from edgekit_runtime.modelfile.facts import MAX_TENSOR_BYTES, ModelFacts, refused

if TYPE_CHECKING:
    from edgekit_runtime.bundle import ArtifactEntry, Bundle

__all__ = ["check_artifact", "check_model"]

_MOST_KEPT = 64
_SOUND: dict[tuple[str, str, tuple[str, ...] | None], ModelFacts] = {}
_FORMATS = {"tflite": "edgekit_runtime.modelfile.tflite", "onnx": "edgekit_runtime.modelfile.onnx"}


def check_model(
    format: str,  # noqa: A002 - the manifest's word
    data: bytes,
    *,
    ops: Sequence[str] | None = None,
    max_tensor_bytes: int = MAX_TENSOR_BYTES,
    where: str = "",
) -> ModelFacts:
    """Walk a model file's whole structure; nothing of it is run.

    format: "tflite" or "onnx". ops: the operators it may use, None for any that its format's rules allow.
    max_tensor_bytes: the most that one computed tensor may declare. where: for the message.
    Raises ModelFileError.
    """
    try:
        if format not in _FORMATS:
            raise refused(f"nothing here knows the format '{format}'", "Upgrade edgekit-deploy")
        facts: ModelFacts = importlib.import_module(_FORMATS[format]).check(data, max_tensor_bytes)
        if ops is not None and (more := [op for op in facts.ops if op not in set(ops)]):
            raise refused(f"it uses {', '.join(more)}, which the manifest does not allow")
    except ModelFileError as error:
        raise ModelFileError(error.what, where=where, do=error.do) from None
    return facts


def check_artifact(bundle: Bundle, entry: ArtifactEntry) -> ModelFacts:
    """`check_model` of a bundle's own bytes, by what its manifest allows. Raises ModelFileError.

    Bytes that were found sound are not walked again: the name of a blob is the digest of what the reader found there.
    """
    key = (entry.format, entry.blob, entry.ops)
    facts = _SOUND.get(key)
    if facts is None:
        where = f"{bundle.path}: the model file of {entry.recipe}"
        facts = check_model(entry.format, bundle.blob(entry.blob), ops=entry.ops, where=where)
        if len(_SOUND) >= _MOST_KEPT:
            _SOUND.clear()
        _SOUND[key] = facts
    return facts
