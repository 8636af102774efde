"""What both readers find in a model file, as far as a runtime may stumble over it.

Needs("tflite", ops=(Use("FULLY_CONNECTED", 12, "dense"),), hybrid_dense=("dense",), claimed="2.17.0")
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekit_converters.needs.kernels import Node

__all__ = ["Needs", "Use"]


@dataclass(frozen=True)
class Use:
    """An operator in the version that the file asks for, and the first layer that uses it. In ONNX the version is the
    operator set's."""

    op: str
    version: int
    layer: str


@dataclass(frozen=True)
class Needs:
    """ops: each operator once a version. custom: those that are no built-in ones, by the names they go by.

    Layers, in the file's order. per_channel_dense: dense ones in int8 with a scale a channel. hybrid_dense: dense ones with
    float activations and 8-bit weights with a scale a channel. int8_matmul: products of two computed int8 tensors, which is
    what attention is made of. Tensors: free_axes, with an axis other than the batch that is only known at run time; empty,
    with an axis of length 0. claimed: the `min_runtime_version` that a .tflite says it has. ir: of ONNX. opsets: of ONNX,
    domain -> version. nodes: of ONNX's main graph, each kind once. external: constants that lie in another file.
    """

    format: str
    ops: tuple[Use, ...] = ()
    custom: tuple[Use, ...] = ()
    per_channel_dense: tuple[str, ...] = ()
    hybrid_dense: tuple[str, ...] = ()
    int8_matmul: tuple[str, ...] = ()
    free_axes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    claimed: str | None = None
    ir: int | None = None
    opsets: dict[str, int] = field(default_factory=dict, hash=False)
    nodes: tuple[Node, ...] = ()
    external: tuple[str, ...] = ()

    def version(self, op: str) -> int:
        """The highest version of an operator that is used, 0 where none is."""
        return max((use.version for use in self.ops if use.op == op), default=0)
