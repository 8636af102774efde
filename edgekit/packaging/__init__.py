"""Write and sign bundles."""

from __future__ import annotations

from edgekit.packaging.assemble import BundleArtifact, BundleContent, BundleTerms, assemble, refuse_past, terms_of
from edgekit.packaging.signing import Signer, SigningKey, load_signing_key
from edgekit.packaging.writer import BundleDraft, check_tools, write_bundle, write_whole

__all__ = [
    "BundleArtifact",
    "BundleContent",
    "BundleDraft",
    "BundleTerms",
    "Signer",
    "SigningKey",
    "assemble",
    "check_tools",
    "load_signing_key",
    "refuse_past",
    "terms_of",
    "write_bundle",
    "write_whole",
]
