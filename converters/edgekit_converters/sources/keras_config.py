"""What a Keras file's config gives away before Keras opens it: code that would run, and the version that wrote it.

Rules: a Lambda layer holds Python code; a class or function of another package than Keras makes Keras import that package;
a TensorFlow function in the network must be arithmetic, not one that touches files. Each is named with its layer.

    for piece in code(config): print(piece)         # "the layer 'double' is a Lambda: it holds Python code"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["code"]

_OWN = ("keras", "tf_keras", "tensorflow.keras", "tensorflow.python.keras")
_OWN_LEGACY = "builtins"
_UNSAFE = ("io.", "raw_ops.", "py_function", "numpy_function", "py_func", "print", "saved_model.", "train.", "data.")


def code(config: Any, layer: str = "") -> Iterator[str]:
    """What would run, in words, at any depth of a model's config."""
    if isinstance(config, list):
        for value in config:
            yield from code(value, layer)
    if not isinstance(config, dict):
        return
    kind, inner = config.get("class_name"), config.get("config")
    name = str(inner.get("name", "")) if isinstance(inner, dict) else ""
    layer = name or layer
    if kind in ("Lambda", "__lambda__"):
        yield f"the layer '{layer or 'lambda'}' is a Lambda: it holds Python code"
        return
    if kind in ("TFOpLambda", "SlicingOpLambda") and isinstance(inner, dict):
        function = str(inner.get("function", ""))
        if function.startswith(_UNSAFE):
            yield f"the layer '{layer}' calls tf.{function}, which reaches beyond the network"
    module = config.get("module")
    if isinstance(module, str) and kind is not None and not _is_own(module):
        yield f"the layer '{layer}' is of {module}.{kind}: it needs that Python code"
    for value in config.values():
        yield from code(value, layer)


def _is_own(module: str) -> bool:
    return module == _OWN_LEGACY or any(module == own or module.startswith(f"{own}.") for own in _OWN)
