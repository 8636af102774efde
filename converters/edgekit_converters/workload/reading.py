"""What the readers of both formats find in a model file, and how a convolution is classed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit_profiles.workload import Op, OpKind

__all__ = ["Counted", "Reading", "Untimed", "convolution_kind", "dense_kind", "multiplies"]

_MULTIPLY = ("LSTM", "GRU", "RNN", "SVDF", "MATMUL", "EINSUM", "CONV", "GEMM", "ATTENTION", "FULLY_CONNECTED")
_HOLD_GRAPHS = ("WHILE", "IF", "LOOP", "SCAN", "CALL", "CALL_ONCE", "STABLEHLO_WHILE")


@dataclass(frozen=True)
class Counted:
    """An operation, whether its multiply-accumulates run in 8 bits, and the type of what it multiplies, where known."""

    op: Op
    eight_bit: bool = False
    activation: str = ""


@dataclass(frozen=True)
class Untimed:
    """Multiply-accumulates of an operation of which nobody knows how long they take, as a recurrent layer's; it is in
    `Reading.unknown` too. eight_bit: whether they run in 8 bits."""

    macs: int
    eight_bit: bool = False


@dataclass(frozen=True)
class Reading:
    """unknown: what could not be counted. batch: items at once, 1 where the file leaves it free. untimed: of the unknown,
    what is known of their arithmetic; uncounted: names of those that multiply so many times that nobody can tell from the
    file.

    weights: elements of the constants with two axes or more; eight_bit_weights: of those, the ones stored in 8 bits
    or fewer. (Biases and scales have one axis; every kernel, matrix and embedding has more.)
    """

    counted: tuple[Counted, ...]
    unknown: tuple[str, ...]
    batch: int
    weights: int
    eight_bit_weights: int
    untimed: tuple[Untimed, ...] = ()
    uncounted: tuple[str, ...] = ()


def convolution_kind(kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> OpKind:
    """The class of a convolution that is not depthwise. kernel, strides, dilations: spatial axes only."""
    if all(side == 1 for side in kernel):
        return "pw"
    plain = all(step == 1 for step in (*strides, *dilations))
    return "c3" if plain and tuple(kernel) == (3, 3) else "cx"


def dense_kind(rows: int) -> OpKind:
    """A matrix times one vector is a dense layer; times many it does what a 1x1 convolution does."""
    return "fc" if rows == 1 else "pw"


def multiplies(name: str) -> bool:
    """Whether an operation that could not be counted may hold products: by its name, as `unknown` has it."""
    op = name.split(" of ")[0]
    foreign = op.startswith("custom ") or "." in op
    return foreign or op.upper() in _HOLD_GRAPHS or any(part in op.upper() for part in _MULTIPLY)
