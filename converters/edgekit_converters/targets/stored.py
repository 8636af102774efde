"""Float models and artifacts as bytes, for the store: a length, canonical JSON, then the model file.

artifact == artifact_from(artifact_bytes(artifact))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edgekit_converters.targets.artifact import Artifact, Recipe
from edgekit_converters.targets.float_model import FloatModel
from edgekit_converters.targets.plan import Plan
from edgekit_runtime.strict_json import load_json
from edgekit_runtime.tensors import Quantization, TensorSpec

__all__ = ["artifact_bytes", "artifact_from", "float_model_bytes", "float_model_from", "plan_from", "plan_json"]


def float_model_bytes(model: FloatModel) -> bytes:
    head = {key: value for key, value in vars(model).items() if key != "data"}
    return _packed({**head, "turned": sorted(model.turned), "tools": dict(model.tools)}, model.data)


def float_model_from(stored: bytes) -> FloatModel:
    """Raises ValueError for bytes that `float_model_bytes` did not write."""
    head, data = _unpacked(stored)
    head.update(inputs=tuple(head["inputs"]), outputs=tuple(head["outputs"]), turned=frozenset(head["turned"]))
    return FloatModel(data=data, **head)


def artifact_bytes(artifact: Artifact) -> bytes:
    head = {key: value for key, value in vars(artifact).items() if key != "data"}
    head["recipe"] = asdict(artifact.recipe)
    head["plan"] = plan_json(artifact.plan)
    head["inputs"] = [_spec_json(spec) for spec in artifact.inputs]
    head["outputs"] = [_spec_json(spec) for spec in artifact.outputs]
    return _packed(head, artifact.data)


def artifact_from(stored: bytes) -> Artifact:
    """Raises ValueError for bytes that `artifact_bytes` did not write."""
    head, data = _unpacked(stored)
    head["recipe"] = Recipe(**head["recipe"])
    head["plan"] = plan_from(head["plan"])
    for side in ("inputs", "outputs"):
        head[side] = tuple(_spec_from(spec) for spec in head[side])
    return Artifact(data=data, **head)


def plan_json(plan: Plan) -> dict[str, Any]:
    """As reports, manifests and keys have it: lists for tuples, sorted names for sets."""
    return {
        "ranges": plan.ranges,
        "fixed_ranges": [list(entry) for entry in plan.fixed_ranges],
        "float_layers": sorted(plan.float_layers),
        "steps": list(plan.steps),
    }


def plan_from(found: Mapping[str, Any]) -> Plan:
    return Plan(
        ranges=found["ranges"],
        fixed_ranges=tuple((str(name), float(low), float(high)) for name, low, high in found["fixed_ranges"]),
        float_layers=frozenset(found["float_layers"]),
        steps=tuple(found["steps"]),
    )


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    return asdict(spec)


def _spec_from(found: dict[str, Any]) -> TensorSpec:
    quantization = found.pop("quantization", None)
    found["shape"] = tuple(found["shape"])
    return TensorSpec(**found, quantization=Quantization(**quantization) if quantization else None)


def _packed(head: Mapping[str, Any], data: bytes) -> bytes:
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data


def _unpacked(stored: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(stored[:8], "little")
    head = load_json(stored[8 : 8 + size])
    return dict(head), stored[8 + size :]
