"""What each runtime's own registration was found to know: `registered.toml`, read once.

    limits("tflite-runtime", "2.14.0")["FULLY_CONNECTED"]        # 10
    onnx_limits("1.23.2").ir                                     # 11

Rules: a version between two that were asked knows what the older of them does; one that is older than all of them is None;
one that is newer knows at least what the newest does.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit_profiles.schema import parse_toml

__all__ = ["OnnxLimits", "asked_of", "known_custom", "limits", "onnx_limits", "parts"]


@dataclass(frozen=True)
class OnnxLimits:
    """The highest IR version and opset that load, and the highest opset of which QuantizeLinear has a kernel."""

    ir: int
    opset: int
    quantize: int


def limits(engine: str, version: str) -> Mapping[str, int] | None:
    """TFLite operator -> the highest version of it; operators that it has none of are not in there."""
    asked = _facts()["tflite"]["asked"]
    places = [place for place, (name, _) in enumerate(asked) if name == engine]
    known = [place for place in places if parts(asked[place][1]) <= parts(version)]
    if not known:
        return None
    last = known[-1]
    return {op: versions[last] for op, versions in _facts()["tflite"]["operators"].items() if versions[last]}


def known_custom() -> frozenset[str]:
    """Custom TFLite operators that every runtime carries all the same."""
    return frozenset(_facts()["tflite"]["custom"])


def onnx_limits(version: str) -> OnnxLimits | None:
    known = [row for row in _facts()["onnx"] if parts(row["version"]) <= parts(version)]
    return OnnxLimits(known[-1]["ir"], known[-1]["opset"], known[-1]["quantize"]) if known else None


def asked_of(engine: str) -> tuple[str, ...]:
    """The versions of an engine that were asked, the oldest first."""
    if engine == "onnxruntime":
        return tuple(row["version"] for row in _facts()["onnx"])
    return tuple(version for name, version in _facts()["tflite"]["asked"] if name == engine)


def parts(version: str) -> tuple[int, ...]:
    """`2.14.0` -> (2, 14, 0). What is no number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


@functools.cache
def _facts() -> dict[str, Any]:
    text = (importlib.resources.files("edgekit_converters.needs") / "registered.toml").read_text(encoding="utf-8")
    return parse_toml(text)
