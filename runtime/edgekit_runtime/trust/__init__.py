"""Trusted keys of a machine.
They are in root.json and its successors, with thresholds, revocation, expiry, and the clock.

store = find_trust()                                     # None: say so, and refuse without a waiver
signers = store.check(manifest_bytes, signatures)        # keyids, or a SignatureError that says why not
"""
