"""What TensorFlow's converter is given, wherever it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Network"]


@dataclass(frozen=True)
class Network:
    """TensorFlow code that answers as the source does.

    call: tensors in the source's input order -> list of tensors in its output order. weights: the TensorFlow variables that
    it reads. turned: picture inputs that are NHWC here and NCHW in the source. tools: distributions that
    had a hand in it.
    """

    call: Callable[..., list[Any]]
    weights: Sequence[Any] = ()
    turned: frozenset[str] = field(default_factory=frozenset)
    tools: tuple[str, ...] = ()
