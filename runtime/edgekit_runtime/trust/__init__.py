"""Trusted keys of a machine.
They are in root.json and its successors, with thresholds, revocation, expiry, and the clock.

store = find_trust()                                     # None: say so, and refuse without a waiver
signers = store.check(manifest_bytes, signatures)        # keyids, or a SignatureError that says why not
"""

from __future__ import annotations

from edgekit_runtime.trust.finding import (
    Trust,
    config_dir,
    find_trust,
    load_trust,
    no_trust,
    read_trusted,
    refuse_unsafe,
    trust_paths,
)
from edgekit_runtime.trust.policy import UNCHECKED, TrustDecision, TrustPolicy
from edgekit_runtime.trust.root import MAX_ROOT_BYTES, ROOT_PAYLOAD_TYPE, follow, load_root, parse_root, signed_part
from edgekit_runtime.trust.store import (
    EARLIEST_S,
    RevokedKey,
    Role,
    TrustedKey,
    TrustStore,
    TrustTime,
    judge,
    parse_time,
    seen_after,
    tell_time,
)

__all__ = [
    "EARLIEST_S",
    "MAX_ROOT_BYTES",
    "ROOT_PAYLOAD_TYPE",
    "UNCHECKED",
    "RevokedKey",
    "Role",
    "Trust",
    "TrustDecision",
    "TrustPolicy",
    "TrustStore",
    "TrustTime",
    "TrustedKey",
    "config_dir",
    "find_trust",
    "follow",
    "judge",
    "load_root",
    "load_trust",
    "no_trust",
    "parse_root",
    "parse_time",
    "read_trusted",
    "refuse_unsafe",
    "seen_after",
    "signed_part",
    "tell_time",
    "trust_paths",
]
