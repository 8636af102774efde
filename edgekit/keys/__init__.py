"""Keys and roots on the workstation.
Making them, signing with them, naming the trusted ones.

files = KeyFolder(default_folder()).create("alice")              # alice.pem, 0600 in a folder 0700, and alice.pub.pem
signed = first_root([Member("alice", files.raw)], [Member("alice", files.raw)], Dates(issued_s, expires_s))
"""

from __future__ import annotations

from edgekit.errors import KeysError
from edgekit.keys.folder import KeyEntry, KeyFolder, default_folder
from edgekit.keys.roots import (
    Dates,
    Member,
    RootUpdate,
    WrittenRoot,
    add_signatures,
    first_root,
    is_root,
    read_signed,
    renew,
    revoke,
    rotate,
    take_over,
    with_keys,
    write_root,
)
from edgekit.keys.signers import ExternalSigner, SigningOptions, SigningResult, endorse, open_signers

__all__ = [
    "Dates",
    "ExternalSigner",
    "KeyEntry",
    "KeyFolder",
    "KeysError",
    "Member",
    "RootUpdate",
    "SigningOptions",
    "SigningResult",
    "WrittenRoot",
    "add_signatures",
    "default_folder",
    "endorse",
    "first_root",
    "is_root",
    "open_signers",
    "read_signed",
    "renew",
    "revoke",
    "rotate",
    "take_over",
    "with_keys",
    "write_root",
]
