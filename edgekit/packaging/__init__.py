"""Write and sign bundles."""

from __future__ import annotations

from edgekit.packaging.assemble import Content, Shipped, Terms, assemble, refuse_past, terms_of
from edgekit.packaging.signing import Signer, SigningKey, load_signing_key
from edgekit.packaging.writer import BundleDraft, check_tools, write_bundle, write_whole

__all__ = [
    "BundleDraft",
    "Content",
    "Shipped",
    "Signer",
    "SigningKey",
    "Terms",
    "assemble",
    "check_tools",
    "load_signing_key",
    "refuse_past",
    "terms_of",
    "write_bundle",
    "write_whole",
]
