"""The messages of an .onnx file, one after another: their fields, texts and spans.

    messages = Messages(data)
    for number, kind, value, end in messages.fields(0, len(data), {1, 7}, "the model"): ...

Rules, beside those of `protobuf`: what may stand once stands once, because readers differ in what they make of a second one; all
messages together have no more than `MAX_PARTS` parts of a few fields each.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgekit_runtime.modelfile.facts import refused
from edgekit_runtime.modelfile.protobuf import BYTES, Field, fields

__all__ = ["MAX_PARTS", "Messages"]

MAX_PARTS = 300_000
"""Nodes, tensors, values and attributes; MobileNetV2 as QDQ has 2,500."""


class Messages:
    """data: the whole file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._parts = 0

    def fields(self, start: int, stop: int, once: Iterable[int], what: str) -> list[Field]:
        """A message's fields, with those that may stand only once checked to."""
        found = fields(self.data, start, stop)
        self._parts += len(found)
        if self._parts > MAX_PARTS * 8:
            raise refused(f"it has more than {MAX_PARTS * 8:,} parts")
        if once and len(found) > 1:
            seen: set[int] = set()
            for number, *_ in found:
                if number in once:
                    if number in seen:
                        raise refused(f"{what} says field {number} twice")
                    seen.add(number)
        return found

    def text(self, kind: int, value: int, end: int) -> str:
        start, stop = self.span(kind, value, end, "a name")
        return self.data[start:stop].decode("utf-8", "replace")

    def span(self, kind: int, value: int, end: int, what: str) -> tuple[int, int]:
        if kind != BYTES:
            raise refused(f"the protobuf is damaged: {what} at byte {end} is a number")
        return value, end
