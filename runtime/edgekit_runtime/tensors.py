"""What a tensor at the edge of a model looks like: name, dtype, shape, layout, quantization.

A `TensorSpec` describes one input or output of one artifact (or of the original model). `name` is the contract's name,
the same for every artifact; `tensor` is what this artifact's own file calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["NHWC", "NCHW"]


@dataclass(frozen=True)
class Quantization:
    """real = scale * (quantized - zero_point), one pair for the whole tensor."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model file.

    shape: batch axis first, -1 where the file leaves an axis free. dtype: a NumPy name. layout: for images only.
    """

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None = None
    quantization: Quantization | None = None

    @property
    def free_batch(self) -> bool:
        """True when the file takes any number of items at once."""
        return bool(self.shape) and self.shape[0] == -1
