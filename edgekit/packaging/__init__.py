"""Write and sign bundles."""

from __future__ import annotations

from edgekit.packaging.assemble import Content, Shipped, assemble
from edgekit.packaging.signing import Signer, SigningKey, load_signing_key
from edgekit.packaging.terms import Terms, refuse_past, terms_of
from edgekit.packaging.whole import write_whole
from edgekit.packaging.writer import BundleDraft, check_tools, write_bundle

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
