"""The .ekb format: manifest types, opening and checking.

Writing is the workstation's business (`edgekit.packaging`).
"""

from __future__ import annotations

from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.bundle.header import (
    ALIGNMENT,
    MAGIC,
    MAX_HEADER_BYTES,
    Header,
    align_up,
    header_needs,
    read_header,
)
from edgekit_runtime.bundle.manifest import (
    FEATURES,
    FORMAT_VERSION,
    RUNTIME_VERSION,
    ArtifactEntry,
    BlobEntry,
    Cipher,
    GoldenExample,
    GoldenOutputs,
    Manifest,
    Promise,
    Target,
    Tolerance,
    check_reader,
    contract_digest,
)
from edgekit_runtime.bundle.reader import MAX_BUNDLE_BYTES, Bundle, read_bundle, read_verified
from edgekit_runtime.trust.signature import keyid, pae

__all__ = [
    "ALIGNMENT",
    "FEATURES",
    "FORMAT_VERSION",
    "MAGIC",
    "MAX_BUNDLE_BYTES",
    "MAX_HEADER_BYTES",
    "RUNTIME_VERSION",
    "ArtifactEntry",
    "BlobEntry",
    "Bundle",
    "Cipher",
    "GoldenExample",
    "GoldenOutputs",
    "Header",
    "Manifest",
    "Promise",
    "Target",
    "Tolerance",
    "align_up",
    "check_reader",
    "contract_digest",
    "header_needs",
    "keyid",
    "pae",
    "parse_manifest",
    "read_bundle",
    "read_header",
    "read_verified",
]
