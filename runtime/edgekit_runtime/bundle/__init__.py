"""The .ekb format: manifest types, opening and checking. Writing is the workstation's business (`edgekit.packaging`)."""

from __future__ import annotations

from edgekit_runtime.bundle.manifest import (
    FORMAT_VERSION,
    ArtifactEntry,
    BlobEntry,
    Golden,
    GoldenOutputs,
    Manifest,
    Target,
    Tolerance,
    contract_digest,
    parse_manifest,
)
from edgekit_runtime.bundle.reader import ALIGNMENT, MAGIC, Bundle, aligned, read_bundle
from edgekit_runtime.bundle.signature import keyid, pae

__all__ = [
    "ALIGNMENT",
    "FORMAT_VERSION",
    "MAGIC",
    "ArtifactEntry",
    "BlobEntry",
    "Bundle",
    "Golden",
    "GoldenOutputs",
    "Manifest",
    "Target",
    "Tolerance",
    "aligned",
    "contract_digest",
    "keyid",
    "pae",
    "parse_manifest",
    "read_bundle",
]
