"""Which operators, in which versions and element types, ONNX Runtime's CPU provider computes: `onnx_kernels.json`.

    missing("1.23.2", Node("", "Conv", 11, {"T": "int8"}))        # "it has no kernel for Conv in int8"

Rules:
- a kernel that names a last version serves every version of the operator up to it; one that names none serves its own alone;
- a type that nothing tells stands in no kernel's way, and float16 counts as float too, because the engine inserts casts;
- a version between two that were asked has the kernels of the older; of one that was not asked at all nothing is known.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from dataclasses import dataclass, field
from typing import Any

from edgekit_converters.needs.registered import parts

__all__ = ["Node", "kernel_versions", "missing"]

_OPEN = 2**31 - 1


@dataclass(frozen=True)
class Node:
    """domain: "" for ONNX's own. since: the operator's version. types: element types, by the schema's type parameters and by
    the names of inputs and outputs. function: its schema says how other operators compute it, and body names these, as far as
    they are known. layer: a name for people."""

    domain: str
    op: str
    since: int
    types: dict[str, str] = field(default_factory=dict, hash=False)
    function: bool = False
    body: tuple[Node, ...] = ()
    layer: str = ""


def missing(version: str, node: Node) -> str:
    """Why that version of ONNX Runtime computes no such operator on a CPU; empty where it does or nothing is known."""
    place = _place(version)
    if place is None or node.op == "Constant":  # a constant is no computation to the engine
        return ""
    reason = _reason(place, node)
    if reason and node.function:
        return next(filter(None, (missing(version, one) for one in node.body)), "") and reason
    return reason


def _reason(place: int, node: Node) -> str:
    name = f"{node.domain}:{node.op}" if node.domain else node.op
    rows = [row for row in _facts()["kernels"].get(name, []) if row[3] <= place <= row[4]]
    if not rows:
        return f"it has no kernel for {name}"
    of_version = [row for row in rows if _serves(row[0], row[1], node.since) or node.domain]
    if not of_version:
        return f"it has no kernel for {name} of opset {node.since}"
    if any(_takes(row[2], node.types) for row in of_version):
        return ""
    kinds = dict.fromkeys(
        kind for parameter, kind in node.types.items() if any(parameter in row[2] for row in of_version)
    )
    return f"it has no kernel for {name} in {', '.join(kinds)}"


def kernel_versions() -> tuple[str, ...]:
    """The versions that were asked, the oldest first."""
    return tuple(_facts()["versions"])


def _place(version: str) -> int | None:
    versions = kernel_versions()
    if parts(version) > parts(versions[-1]):
        return None
    return max((place for place, one in enumerate(versions) if parts(one) <= parts(version)), default=None)


def _serves(start: int, end: int, since: int) -> bool:
    return since == start or (start < since <= end and end != _OPEN)


def _takes(row: dict[str, str], types: dict[str, str]) -> bool:
    return all(_fits(types.get(parameter, ""), kinds.split()) for parameter, kinds in row.items())


def _fits(kind: str, kinds: list[str]) -> bool:
    return not kind or kind in kinds or (kind == "float16" and "float" in kinds)


@functools.cache
def _facts() -> dict[str, Any]:
    text = (importlib.resources.files("edgekit_converters.needs") / "onnx_kernels.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
