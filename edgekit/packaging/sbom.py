"""A software bill of materials of a bundle: CycloneDX 1.6 in JSON.

    document = sbom(read_bundle(path))          # json.dumps(document): what scanners and registries take

Rules: it has what the manifest has: the model and its files with their SHA-256, the licence as given, tools and engines
with their versions. The same bundle gives the same document: the serial number is a UUID (RFC 9562, version 8) of the
digest.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgekit_runtime.engines.registry import ENGINES

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import ArtifactEntry
    from edgekit_runtime.bundle.reader import Bundle

_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_EXPRESSION = re.compile(rf"\(?{_SPDX.pattern}\)?( (AND|OR|WITH) \(?{_SPDX.pattern}\)?)+")


def sbom(bundle: Bundle) -> dict[str, Any]:
    """The document as JSON values."""
    manifest, root = bundle.manifest, _ref(bundle.digest)
    tools = {tool for entry in manifest.artifacts for tool in entry.tools.items()}
    for engine, version in {(one.engine, one.engine_version) for each in manifest.golden for one in each.answers}:
        tools.add((ENGINES[engine].distribution if engine in ENGINES else engine, version))
    licences: dict[str, Any] = {}
    if manifest.licence is not None:
        # Anything but an SPDX expression by its name, because no list of identifiers is included
        expression = _EXPRESSION.fullmatch(manifest.licence)
        named = {"expression": manifest.licence} if expression else {"license": {"name": manifest.licence}}
        licences["licenses"] = [named]
    # A UUID of version 8, of the first 122 bits of the digest
    number = int(bundle.digest[:32], 16) & ~(0xF << 76) | 8 << 76
    serial = uuid.UUID(int=number & ~(0x3 << 62) | 2 << 62)
    parts = [_artifact(entry) for entry in manifest.artifacts]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "tools": {"components": [_library(name, version) for name, version in sorted(manifest.tools.items())]},
            "component": {
                "type": "machine-learning-model",
                "bom-ref": root,
                "name": manifest.name,
                "version": manifest.version,
                "hashes": [{"alg": "SHA-256", "content": bundle.digest}],
                **licences,
                "properties": [
                    *_properties(
                        {
                            "edgekit:model_id": manifest.model_id,
                            "edgekit:contract_digest": manifest.contract_digest,
                            "edgekit:profile": manifest.target.profile,
                            "edgekit:arch": manifest.target.arch,
                            "edgekit:rollout_seq": manifest.rollout_seq,
                            "edgekit:expires": manifest.expires,
                            "edgekit:min_runtime": manifest.min_runtime,
                        }
                    ),
                    *({"name": "edgekit:signed_by", "value": keyid} for keyid in bundle.signed_by),
                ],
            },
        },
        "components": [*parts, *(_library(name, version) for name, version in sorted(tools))],
        "dependencies": [
            {"ref": root, "dependsOn": [part["bom-ref"] for part in parts]},
            *(
                {"ref": part["bom-ref"], "dependsOn": sorted(_purl(*tool) for tool in entry.tools.items())}
                for part, entry in zip(parts, manifest.artifacts, strict=True)
            ),
        ],
    }


def _artifact(entry: ArtifactEntry) -> dict[str, Any]:
    """One model file. Roles may share a file: the reference has both."""
    return {
        "type": "machine-learning-model",
        "bom-ref": f"{_ref(entry.blob)}#{entry.role}-{entry.recipe}-{entry.inputs[0].shape[0] if entry.inputs else 0}",
        "name": f"{entry.recipe}.{entry.format}",
        "hashes": [{"alg": "SHA-256", "content": entry.blob}],
        "properties": list(
            _properties(
                {
                    "edgekit:role": entry.role,
                    "edgekit:format": entry.format,
                    "edgekit:precision": entry.precision,
                    "edgekit:bytes": entry.bytes,
                    "edgekit:ops": " ".join(entry.ops) if entry.ops is not None else None,
                }
            )
        ),
    }


def _library(name: str, version: str) -> dict[str, Any]:
    purl = _purl(name, version)
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _purl(name: str, version: str) -> str:
    """A package URL of the Python Package Index: lower case, dashes (purl-spec, type pypi)."""
    from urllib.parse import quote

    return f"pkg:pypi/{quote(re.sub(r'[-_.]+', '-', name).lower())}@{quote(version)}"


def _properties(values: dict[str, object]) -> Iterator[dict[str, str]]:
    for name, value in values.items():
        if value is not None:
            yield {"name": name, "value": str(value)}


def _ref(sha256: str) -> str:
    return f"sha256:{sha256}"
