"""What one inference asks of a processor: a list of operations, each with its work and its traffic.

Workload("int8", (Op("pw", macs=32 * 64 * 112 * 112, activation_elements=..., weight_elements=32 * 64),))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["OP_KINDS", "Op", "OpKind", "Precision", "Workload", "mobilenet_v1"]

OpKind = Literal["pw", "c3", "cx", "dw", "fc", "ew"]
OP_KINDS: tuple[OpKind, ...] = get_args(OpKind)
Precision = Literal["float32", "int8", "dynamic"]


@dataclass(frozen=True)
class Op:
    """One operation as the engine runs it, with its activation function fused in.

    kind: `pw` 1x1 convolution; `c3` 3x3 convolution of stride and dilation 1; `cx` any other dense convolution; `dw`
    depthwise; `fc` dense; `ew` whatever only moves or transforms elements (additions, pooling, quantize, transpose).
    macs: multiply-accumulates. activation_elements: read plus written. weight_elements: of the kernel.
    """

    kind: OpKind
    macs: int
    activation_elements: int
    weight_elements: int
    name: str = ""


@dataclass(frozen=True)
class Workload:
    """precision: what the artifact's recipe says. batch: items at once.

    unknown: what could not be counted (operation names, shapes that only running would tell); an estimate refuses it.
    """

    precision: Precision
    ops: tuple[Op, ...]
    unknown: tuple[str, ...] = ()
    batch: int = 1

    @property
    def macs(self) -> int:
        return sum(op.macs for op in self.ops)

    @property
    def weights(self) -> int:
        return sum(op.weight_elements for op in self.ops)


def mobilenet_v1(precision: Precision) -> Workload:
    """MobileNetV1 1.0 at 224x224 (569 million multiply-accumulates), the model that anchors are measured with."""
    side, channels = 112, 32
    ops = [Op("cx", side * side * 3 * 32 * 9, 224 * 224 * 3 + side * side * 32, 3 * 32 * 9, "stem")]
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for index, (width, stride) in enumerate(plan, start=1):
        out = side // stride
        area_in, area = side * side, out * out
        ops.append(Op("dw", area * channels * 9, (area_in + area) * channels, channels * 9, f"depthwise {index}"))
        ops.append(Op("pw", area * channels * width, area * (channels + width), channels * width, f"pointwise {index}"))
        side, channels = out, width
    ops.append(Op("ew", 0, side * side * channels + channels, 0, "pool"))
    ops.append(Op("fc", channels * 1000, channels + 1000, channels * 1000, "classifier"))
    return Workload(precision, tuple(ops))
