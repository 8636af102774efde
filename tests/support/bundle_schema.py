"""docs/bundle-manifest.schema.json, made from the manifest's dataclasses. `tests/support/bundle_schema.py` writes it
anew.

The types say what a field may hold; patterns and bounds are those of `edgekit_runtime.bundle.manifest`. What refers to
another field (a blob that is listed, a size that fits) no schema can say: docs/bundle-format.md does.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

from edgekit_runtime.bundle import manifest as limits
from edgekit_runtime.bundle.checks import DTYPE_BYTES
from edgekit_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from edgekit_runtime.system.strict_json import MAX_NUMBER

FILE = Path(__file__).parents[2] / "docs" / "bundle-manifest.schema.json"
NAME = {"pattern": f"^{limits.NAME.pattern}$"}
SHA256 = {"pattern": f"^{limits.SHA256.pattern}$"}
MOMENT = {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"}
DTYPE = {"enum": sorted(DTYPE_BYTES)}
POSITIVE = {"exclusiveMinimum": 0}
SHORT = {"minLength": 1, "maxLength": limits.MAX_NAME_TEXT}
BLOBS = {"additionalProperties": {"type": "string", **SHA256}}
SHAPE = {"maxItems": limits.MAX_RANK}
RULES: dict[tuple[str, str], dict[str, Any]] = {
    ("Manifest", "format"): {"const": FORMAT_VERSION},
    ("Manifest", "name"): NAME,
    ("Manifest", "version"): {"pattern": f"^{limits.VERSION.pattern}$"},
    ("Manifest", "model_id"): SHA256,
    ("Manifest", "contract_digest"): SHA256,
    ("Manifest", "artifacts"): {"minItems": 1, "maxItems": limits.MAX_ARTIFACTS},
    ("Manifest", "golden"): {"minItems": 1, "maxItems": limits.MAX_GOLDEN},
    ("Manifest", "blobs"): {"minItems": 1, "maxItems": limits.MAX_BLOBS},
    ("Manifest", "min_runtime"): {"pattern": r"^(0|[1-9][0-9]{0,5})(\.(0|[1-9][0-9]{0,5})){2}$"},
    ("Manifest", "licence"): {"minLength": 1, "maxLength": limits.MAX_TEXT},
    ("Manifest", "rollout_seq"): {"minimum": 0, "maximum": MAX_NUMBER},
    ("Manifest", "not_before"): MOMENT,
    ("Manifest", "expires"): MOMENT,
    ("Manifest", "compatible"): {
        "maxItems": limits.MAX_BOARDS,
        "uniqueItems": True,
        "items": {"type": "string", **NAME},
    },
    ("Manifest", "requires"): {"uniqueItems": True},
    ("Target", "profile"): NAME,
    ("Target", "arch"): NAME,
    ("Target", "threads"): {"minimum": 1, "maximum": limits.MAX_THREADS},
    ("Target", "budget_ms"): POSITIVE,
    ("Promise", "p50_ms"): POSITIVE,
    ("Promise", "p99_ms"): POSITIVE,
    ("Promise", "peak_mb"): POSITIVE,
    ("ArtifactEntry", "memory_mb"): {"additionalProperties": {"type": "number", **POSITIVE}},
    ("ArtifactEntry", "top_scores"): {"items": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}},
    ("ArtifactEntry", "recipe"): NAME,
    ("ArtifactEntry", "precision"): NAME,
    ("ArtifactEntry", "blob"): SHA256,
    ("ArtifactEntry", "bytes"): {"minimum": 0},
    ("ArtifactEntry", "ops"): {"maxItems": limits.MAX_OPS, "uniqueItems": True},
    ("TensorSpec", "dtype"): DTYPE,
    ("TensorSpec", "shape"): {**SHAPE, "minItems": 1},
    ("TensorSpec", "name"): SHORT,
    ("TensorSpec", "tensor"): SHORT,
    ("Quantization", "scale"): POSITIVE,
    ("InputContract", "dtype"): DTYPE,
    ("InputContract", "shape"): SHAPE,
    ("InputContract", "name"): SHORT,
    ("OutputContract", "dtype"): DTYPE,
    ("OutputContract", "shape"): SHAPE,
    ("OutputContract", "name"): SHORT,
    ("ImageSpec", "crop"): {"exclusiveMinimum": 0, "maximum": 1},
    ("Contract", "inputs"): {"minItems": 1, "maxItems": limits.MAX_TENSORS},
    ("Contract", "outputs"): {"minItems": 1, "maxItems": limits.MAX_TENSORS},
    ("Contract", "labels"): {"maxItems": limits.MAX_LABELS},
    ("Contract", "hop"): POSITIVE,
    ("GoldenExample", "inputs"): BLOBS,
    ("GoldenExample", "dtypes"): {"additionalProperties": {"type": "string", **DTYPE}},
    ("GoldenExample", "steps"): {"minimum": 1, "maximum": limits.MAX_GOLDEN_FRAMES},
    ("GoldenOutputs", "recipe"): NAME,
    ("GoldenOutputs", "outputs"): BLOBS,
    ("GoldenOutputs", "engine"): SHORT,
    ("GoldenOutputs", "engine_version"): SHORT,
    ("Tolerance", "steps"): {"minimum": 0, "maximum": limits.MAX_SEQUENCE_STEPS},
    ("Tolerance", "cosine"): {"minimum": limits.MIN_COSINE, "maximum": 1},
    ("BlobEntry", "sha256"): SHA256,
    ("BlobEntry", "offset"): {"minimum": 0, "multipleOf": 64},
    ("BlobEntry", "size"): {"minimum": 0, "maximum": limits.MAX_BUNDLE_BYTES},
    ("Cipher", "key"): {"pattern": f"^{limits.KEY_ID.pattern}$"},
    ("Cipher", "salt"): SHA256,
}
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema() -> dict[str, Any]:
    """The whole document: JSON Schema, draft 2020-12."""
    definitions: dict[str, Any] = {}
    _object(Manifest, definitions)
    unused = {kind for kind, _ in RULES} - definitions.keys()
    assert not unused, f"rules for what is no part of a manifest: {unused}"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The manifest of an edgekit bundle, format 1",
        "$ref": "#/$defs/Manifest",
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    return json.dumps(schema(), indent=1) + "\n"


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    reference = {"$ref": f"#/$defs/{kind.__name__}"}
    if kind.__name__ in definitions:
        return reference
    definitions[kind.__name__] = {}
    hints, properties, required = typing.get_type_hints(kind), {}, []
    for field in dataclasses.fields(kind):
        properties[field.name] = _type(hints[field.name], definitions) | RULES.get((kind.__name__, field.name), {})
        optional = type(None) in typing.get_args(hints[field.name])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and not optional:
            required.append(field.name)
    assert {name for owner, name in RULES if owner == kind.__name__} <= properties.keys()
    definitions[kind.__name__] = {"type": "object", "required": sorted(required), "properties": properties}
    return reference


def _type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _type(next(one for one in arguments if one is not type(None)), definitions)
    if origin is typing.Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _type(arguments[0], definitions)}
    if origin is tuple:
        items = [_type(one, definitions) for one in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}
    if dataclasses.is_dataclass(hint):
        return _object(hint, definitions)
    return {} if hint is Any else {"type": SCALARS[hint]}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
