"""Write and sign bundles."""

from __future__ import annotations

from edgekit.packaging.signing import SigningKey, load_signing_key
from edgekit.packaging.writer import BundleDraft, write_bundle

__all__ = ["BundleDraft", "SigningKey", "load_signing_key", "write_bundle"]
