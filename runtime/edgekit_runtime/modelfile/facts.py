"""What a look at a model file's structure tells, and how it is refused.

raise refused("tensor 3 lies outside the file")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgekit_runtime.errors import ModelFileError

__all__ = ["DELEGATED", "MAX_TENSOR_BYTES", "ModelFacts", "bytes_of", "delegated", "refused"]

MAX_TENSOR_BYTES = 512 << 20
"""The most that a file may declare for one computed tensor. Constants stand in the file and are as large as they are."""

DELEGATED = {"edgetpu-custom-op": "libedgetpu.so.1", "ethos-u": "libethosu_delegate.so"}
"""Custom TFLite operators that an accelerator's compiler writes -> the delegate's library that alone can run them."""


@dataclass(frozen=True)
class ModelFacts:
    """ops: the operators it uses, each once, sorted: "CONV_2D", or "ai.onnx:Conv". operators: how often it uses any.

    tensors: of all graphs together, as far as the file names them. constant_bytes: what stands in the file.
    largest_tensor_bytes: of a computed tensor, as far as its shape is declared. version: "schema 3", "IR 8, opset 13".
    """

    format: str
    version: str
    ops: tuple[str, ...]
    operators: int
    graphs: int
    tensors: int
    constant_bytes: int
    largest_tensor_bytes: int


def delegated(ops: Iterable[str] | None) -> tuple[str, ...]:
    """Those of these operators that only a delegate can run."""
    return tuple(op for op in ops or () if op in DELEGATED)


def refused(what: str, do: str = "Do not use it: build the bundle again from the original model") -> ModelFileError:
    return ModelFileError(what, do=do)


def bytes_of(shape: tuple[int, ...], bits: int, what: str, most: int | None = None) -> int:
    """The bytes that a tensor of so many bits an element takes. Raises ModelFileError beyond `most`, and for a negative side.

    Python's integers do not wrap: a product that would overflow in 64 bits is simply too large here.
    """
    count = 1
    for side in shape:
        if side < 0:
            raise refused(f"{what} has a negative side: {list(shape)}")
        count *= side
    size = (count * bits + 7) // 8
    if most is not None and size > most:
        raise refused(f"{what} declares {size:,} bytes, more than the {most:,} that one tensor may have")
    return size
