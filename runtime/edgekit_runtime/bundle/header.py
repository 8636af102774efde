"""The head of an .ekb, checked as bytes, so that a download can be refused early.

    while (need := header_needs(data, where)) > len(data):      # a few rounds: the lengths first, then all
        data += more(need - len(data))
    header = read_header(data, where)                           # digest checked, signatures parsed, nothing trusted yet

    magic      8 bytes    89 45 4B 42 0D 0A 1A 0A   (a copy in text mode changes it)
    length     u32 LE     of the manifest
    manifest   canonical JSON
    length     u32 LE     of the signature block
    signatures JSON list of {"keyid", "sig"}
    digest     32 bytes   SHA-256 of everything before it; finds damage in unsigned files
    padding    zeros, up to the next multiple of 64

Rules: each length is checked against its cap before anything is read; the digest is checked before any parsing; the
caller parses the manifest after checking signatures.
"""

from __future__ import annotations

import hashlib
import struct

from edgekit_runtime.bundle.signature import Signature, parse_signatures
from edgekit_runtime.system.errors import BundleError, IntegrityError
from edgekit_runtime.system.records import record

MAGIC = b"\x89EKB\r\n\x1a\n"
ALIGNMENT = 64
MAX_MANIFEST_BYTES = 1 << 20
"""Room for 20,000 long labels."""
MAX_SIGNATURES_BYTES = 64 << 10
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32
_AGAIN = "Copy or download it again"


def align_up(position: int) -> int:
    """The next multiple of 64."""
    return -(-position // ALIGNMENT) * ALIGNMENT


MAX_HEADER_BYTES = align_up(len(MAGIC) + 2 * _LENGTH.size + MAX_MANIFEST_BYTES + MAX_SIGNATURES_BYTES + _DIGEST_BYTES)
"""Upper bound of any head, for readers of prefixes."""


@record(frozen=True)
class Header:
    """manifest_bytes: as signed, not parsed.
    signatures: as they appear, not checked.
    end: after the digest; only zeros from there to blobs_at, where the first blob begins."""

    manifest_bytes: bytes
    signatures: tuple[Signature, ...]
    end: int
    blobs_at: int

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest's bytes in hex: it names the bundle's whole content."""
        return hashlib.sha256(self.manifest_bytes).hexdigest()


def header_needs(data: bytes, where: str) -> int:
    """How many bytes `read_header` needs, as far as `data` says; at most MAX_HEADER_BYTES.
    If more than `len(data)`, read that many and ask again. Raises BundleError as soon as `data` shows that it is not a
    bundle or exceeds a cap."""
    start = data[: len(MAGIC)]
    if start != MAGIC[: len(start)]:
        what = "this is not an edgekit bundle"
        if data[4:8] == b"TFL3":
            what = "this is a bare TFLite model, not a bundle"
        elif data[:4] == MAGIC[:4]:
            what = "the file was changed in transfer (its line endings were converted)"
        raise BundleError(what, where=where, do="Pass a file that `edgekit build` wrote")
    position = len(MAGIC)
    for cap, what in ((MAX_MANIFEST_BYTES, "manifest"), (MAX_SIGNATURES_BYTES, "signature block")):
        if len(data) < position + _LENGTH.size:
            return position + _LENGTH.size
        (length,) = _LENGTH.unpack_from(data, position)
        if length > cap:
            what = f"the {what} claims {length:,} bytes, more than the {cap:,} allowed"
            raise BundleError(what, where=where, do="Pass a file that `edgekit build` wrote")
        position += _LENGTH.size + length
    return align_up(position + _DIGEST_BYTES)


def read_header(data: bytes, where: str) -> Header:
    """The head of the bundle that begins `data`, with or without the blobs.
    Raises BundleError (not a bundle, or beyond a cap) and IntegrityError (truncated or changed)."""
    if not data:
        raise BundleError("the file is empty", where=where, do="Pass a file that `edgekit build` wrote")
    need = header_needs(data, where)
    if len(data) < need:
        raise IntegrityError(f"the file ends {_place(data)}", where=where, do=_AGAIN)
    manifest, position = _section(data, len(MAGIC))
    block, position = _section(data, position)
    end = position + _DIGEST_BYTES
    if data[position:end] != hashlib.sha256(memoryview(data)[:position]).digest():
        raise IntegrityError("the header was changed (its SHA-256 differs)", where=where, do=_AGAIN)
    check_zeros(data, end, need, where)
    return Header(manifest, parse_signatures(block, where), end, need)


def check_zeros(data: bytes, start: int, end: int, where: str) -> None:
    """Raises IntegrityError unless the padding from `start` to `end` is zero."""
    if any(data[start:end]):
        raise IntegrityError(f"the padding at byte {start} is not zero", where=where, do=_AGAIN)


def _section(data: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH.size
    return data[start : start + length], start + length


def _place(data: bytes) -> str:
    """Where a truncated file ends, in words."""
    position = len(MAGIC)
    for what in ("manifest", "signature block"):
        if len(data) < position + _LENGTH.size:
            return f"before the {what}"
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size + length
        if len(data) < position:
            return f"inside the {what}"
    return "inside the header's digest or padding"
