"""Whom a machine trusts: root.json and its successors, thresholds, revocation, expiry, and the clock that judges it.

store = find_trust()                                     # None: say so, and refuse unless told otherwise
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
from edgekit_runtime.trust.root import MAX_ROOT_BYTES, ROOT_PAYLOAD_TYPE, follow, load_root, parse_root, signed_part
from edgekit_runtime.trust.store import (
    EARLIEST_S,
    Moment,
    Revoked,
    Role,
    TrustedKey,
    TrustStore,
    judge,
    parse_time,
    seen_after,
    tell_time,
)
from edgekit_runtime.trust.vouching import UNCHECKED, TrustPolicy, Vouched

__all__ = [
    "EARLIEST_S",
    "MAX_ROOT_BYTES",
    "ROOT_PAYLOAD_TYPE",
    "UNCHECKED",
    "Moment",
    "Revoked",
    "Role",
    "Trust",
    "TrustPolicy",
    "TrustStore",
    "TrustedKey",
    "Vouched",
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
