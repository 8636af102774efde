"""Open an .ekb: one open descriptor, everything checked before anything is used.

    bundle = read_bundle("camera.ekb", trust="root.json")

Order of checks: the caps, the header's digest, the signature over the manifest's bytes, the manifest, where the blobs
lie, then the SHA-256 of every blob and every padding byte, so no bit of the file can change unseen. Encrypted blobs are
then decrypted into memory. The file is read once: what was checked is what runs.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.checks import check_answers, parse_manifest
from edgekit_runtime.bundle.cipher import Kind, bound_to, decrypt
from edgekit_runtime.bundle.header import Header, align_up, check_zeros, read_header
from edgekit_runtime.bundle.manifest import MAX_BUNDLE_BYTES, ArtifactEntry, BlobEntry, GoldenExample, Manifest
from edgekit_runtime.bundle.trust_finding import UNCHECKED, Trust, TrustDecision, TrustPolicy, find_trust, load_trust
from edgekit_runtime.system.errors import BundleError, EdgekitError, IntegrityError, SecretError
from edgekit_runtime.system.records import field, record

if TYPE_CHECKING:
    from edgekit_runtime.bundle.secrets import Secret, SecretArgument

NO_KEY = ("secret-format", "secret-unreadable")
"""Codes that say nothing against a bundle: the named key cannot be read."""
_AGAIN = "Copy or download it again"


@record(frozen=True)
class Bundle:
    """A checked bundle.

    digest: SHA-256 of the manifest's bytes, which names the bundle's whole content.
    signed_by: every keyid in the signature block, trusted or not.
    trust_decision: which of them count.
    secret: the key that decrypted its blobs, for a child process that reads it again."""

    path: Path
    manifest: Manifest
    digest: str
    signed_by: tuple[str, ...]
    trust_decision: TrustDecision = field(compare=False)
    size: int
    _blobs: dict[str, bytes | memoryview] = field(repr=False)
    secret: Secret | None = field(default=None, repr=False, compare=False)

    @property
    def trusted(self) -> bool:
        """Whether trusted keys signed it."""
        return self.trust_decision.trusted

    @property
    def locked(self) -> bool:
        """Whether it is encrypted and was read without its key: digests checked, no blob readable."""
        return self.manifest.encrypted_with is not None and self.secret is None

    def blob(self, sha256: str) -> bytes:
        """Raises SecretError (secret-missing) if the bundle is locked."""
        found = self._blobs.get(sha256)
        if found is None and self.locked:
            from edgekit_runtime.bundle.secrets import missing

            raise missing(self.manifest.encrypted_with or "", str(self.path))
        data = self._blobs[sha256] = bytes(self._blobs[sha256])
        return data

    def release(self, *kept: str) -> None:
        """Free all blobs but those `kept`: engines are loaded and tested."""
        held = {sha256: self.blob(sha256) for sha256 in kept}
        self._blobs.clear()
        self._blobs.update(held)

    def golden_items(self, golden: GoldenExample) -> dict[str, NDArray[Any]]:
        """Canonical inputs of a golden example by contract name, read-only, without a batch axis.
        A sequence has all its frames: [steps, ...]."""
        contract, frames = self.manifest.contract, () if golden.steps is None else (golden.steps,)
        return {
            name: np.frombuffer(self.blob(blob), golden.dtypes[name]).reshape((*frames, *contract.input(name).shape))
            for name, blob in golden.inputs.items()
        }

    def artifact(self, recipe: str | None = None) -> ArtifactEntry:
        """The artifact made by `recipe`, or the primary one."""
        for entry in self.manifest.artifacts:
            if entry.recipe == recipe or (recipe is None and entry.role == "primary"):
                return entry
        names = ", ".join(entry.recipe for entry in self.manifest.artifacts)
        raise BundleError(f"no artifact '{recipe}'", where=str(self.path), do=f"It holds: {names}")


def read_bundle(path: str | os.PathLike[str], *, trust: Trust = (), secret: SecretArgument = None) -> Bundle:
    """Open and check a bundle.

    trust: PEM files of Ed25519 public keys, a root.json, or a TrustStore. A bundle without the signatures that it asks
        for is refused; without trust signatures are not checked (`read_verified` uses this machine's trusted keys).
    secret: the key of an encrypted bundle or its source (see `bundle.secrets`), fetched only when needed; without one
        everything is checked and the blobs stay closed.
    Raises BundleError (not a bundle, malformed), IntegrityError (changed bytes), SignatureError, SecretError."""
    store = load_trust(trust)
    policy = None if store is None else TrustPolicy(store, allow_unsigned=None)
    return Opening(path, policy, secret).read(partial(read_file, Path(path)))


def read_verified(
    path: str | os.PathLike[str], trust: Trust = (), *, secret: SecretArgument = None, allow_unsigned: bool = False
) -> Bundle:
    """Read a bundle that is used now, checked by `trust` or else by this machine's trusted keys.
    Without any it is unchecked. Dates are not checked: they decide what is installed. Raises as `read_bundle` does."""
    store = load_trust(trust)
    store = find_trust() if store is None else store
    policy = TrustPolicy(store, allow_unsigned, new=False, mode="if-known")
    return Opening(path, policy, secret).read(partial(read_file, Path(path)))


@record(frozen=True)
class BundleCheck:
    """name: what was checked.
    ok: None for a remark, or if it was not checked.
    text: what was found."""

    name: str
    ok: bool | None
    text: str


Step = Callable[[], tuple[bool | None, str]]
"""Makes one check: its `ok` and `text`. Raises EdgekitError to refuse the bundle."""


def checks_of(steps: Iterable[tuple[str, Step]]) -> Iterator[BundleCheck]:
    """Each check once it is made.
    If one refuses the bundle, that check last, and then its error.
    An error about the key alone (NO_KEY) is raised without a check."""

    for name, step in steps:
        try:
            ok, text = step()
        except EdgekitError as error:
            if error.code in NO_KEY:
                raise
            yield BundleCheck(name, False, error.what)
            raise
        yield BundleCheck(name, ok, text)


class Opening:
    """One opening of a bundle. Nothing is parsed before its signature is checked.

    path: where it is, or its name for messages.
    policy: who must have signed it, None to leave the signature unchecked.
    secret: see `read_bundle`.
    spare_key: if the key is missing or wrong, the blobs stay closed.
    header, trust_decision, manifest, bundle: set by their checks."""

    header: Header
    trust_decision: TrustDecision
    manifest: Manifest
    bundle: Bundle

    def __init__(
        self,
        path: str | os.PathLike[str],
        policy: TrustPolicy | None,
        secret: SecretArgument = None,
        *,
        spare_key: bool = False,
    ) -> None:
        self._where, self._policy, self._secret, self._spare_key = os.fspath(path), policy, secret, spare_key

    def read(self, get: Callable[[], bytes]) -> Bundle:
        """Make all checks; get: reads the file. Raises as `read_bundle` does."""
        for _, step in self.steps(get):
            step()
        return self.bundle

    def judge(self, header: Header) -> Manifest:
        """Check what the head alone decides, before the blobs arrive.
        Raises SignatureError, BundleError."""
        self.header = header
        self._check_signature()
        self._check_manifest()
        return self.manifest

    def steps(self, get: Callable[[], bytes]) -> list[tuple[str, Step]]:
        """The checks in order, for `checks_of`."""
        return [
            ("file", partial(self._check_file, get)),
            ("signature", self._check_signature),
            ("manifest", self._check_manifest),
            ("contents", self._check_contents),
        ]

    def _check_file(self, get: Callable[[], bytes]) -> tuple[bool, str]:
        data = self._data = get()
        self.header = read_header(data, self._where)
        return True, f"{len(data):,} bytes; the head is what was written"

    def _check_signature(self) -> tuple[bool | None, str]:
        policy, header = self._policy, self.header
        found = UNCHECKED if policy is None else policy.decide(header.manifest_bytes, header.signatures, self._where)
        self.trust_decision, text = found, found.text
        if policy is not None and policy.store is not None and found.trusted:
            needed, keyids = policy.store.bundle.threshold, policy.store.bundle.keyids
            text += f" ({policy.store.where}: {needed} of {len(keyids)} keys must sign)"
        return found.trusted or None, text

    def _check_manifest(self) -> tuple[bool, str]:
        manifest = self.manifest = parse_manifest(self.header.manifest_bytes, self._where)
        needs = ", ".join((f"edgekit {manifest.min_runtime} or newer", *manifest.requires))
        seq = "" if manifest.rollout_seq is None else f", rollout_seq {manifest.rollout_seq}"
        return True, f"{manifest.title}: format {manifest.format}{seq}; it needs {needs}"

    def _check_contents(self) -> tuple[bool, str]:
        data, manifest, where = self._data, self.manifest, self._where
        self._data = b""  # a small board has room for it once, so blobs are views of it until `release`
        checked = _check_blobs(data, self.header.blobs_at, manifest.blobs, where)
        wanted, secret = manifest.encrypted_with, None
        if self._secret is not None and wanted is not None:
            from edgekit_runtime.bundle.secrets import opened_with

            try:
                secret = opened_with(self._secret, wanted, where)
            except SecretError as error:
                if not self._spare_key or error.code not in ("secret-missing", "secret-wrong"):
                    raise
        blobs = _decrypt_blobs(manifest, checked, secret, where)
        if len(blobs) == len(manifest.blobs):  # else it is locked, and what it answers is not to be seen
            check_answers(manifest, blobs, where)
        signed_by = tuple(name for name, _ in self.header.signatures)
        digest = self.header.digest
        self.bundle = Bundle(Path(where), manifest, digest, signed_by, self.trust_decision, len(data), blobs, secret)
        sealed = "; encrypted, and opened with its key" if secret is not None else ""
        sealed = f"; encrypted with the key {manifest.encrypted_with:.12}" if self.bundle.locked else sealed
        return True, f"{len(manifest.blobs)} blobs, each with its SHA-256{sealed}"


def read_file(path: Path) -> bytes:
    """All of a regular file. Raises BundleError."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device may never end
            raise BundleError("not a regular file", where=str(path), do="Pass a file that `edgekit build` wrote")
        with path.open("rb") as file:
            return read_open(file, str(path))
    except IsADirectoryError as error:
        do = "Pass a bundle's file, or an install root where `edgekit install` has put a bundle"
        raise BundleError("cannot be read: it is a directory", where=str(path), do=do) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or error
        do = "Check the path; `edgekit build` writes NAME-PROFILE.ekb"
        raise BundleError(f"cannot be read: {why}", where=str(path), do=do) from error


def read_open(file: BinaryIO, where: str) -> bytes:
    """All of an open file of at most MAX_BUNDLE_BYTES. Raises BundleError, OSError.
    `read` allocates what it is asked for, so it is asked for the file's size, not for the cap."""
    size = os.fstat(file.fileno()).st_size
    most = min(MAX_BUNDLE_BYTES, sys.maxsize - 1)  # on a 32-bit board nothing longer can be read at once
    if size > most:
        raise BundleError(f"{size:,} bytes is more than a bundle may have ({most:,})", where=where)
    return file.read(size + 1)


def _check_blobs(data: bytes, start: int, entries: Sequence[BlobEntry], where: str) -> dict[str, memoryview]:
    """Blobs by digest, as views of the bytes that were read."""
    blobs: dict[str, memoryview] = {}
    whole = memoryview(data)
    end = cursor = start
    for entry in entries:
        if start + entry.offset != cursor:
            raise BundleError(f"blob {entry.sha256[:12]} is not at its place", where=where)
        check_zeros(data, end, cursor, where)
        blob = whole[cursor : cursor + entry.size]
        if len(blob) != entry.size:
            raise IntegrityError(f"the file ends inside blob {entry.sha256[:12]}", where=where, do=_AGAIN)
        if hashlib.sha256(blob).hexdigest() != entry.sha256:
            what = f"blob {entry.sha256[:12]} was changed (its SHA-256 differs)"
            raise IntegrityError(what, where=where, do="It is damaged or was tampered with: copy or build it again")
        blobs[entry.sha256] = blob
        end = cursor + entry.size
        cursor = align_up(end)
    check_zeros(data, end, cursor, where)
    if len(data) != cursor:
        raise IntegrityError("the file does not end after its last blob", where=where, do=_AGAIN)
    return blobs


def _decrypt_blobs(
    manifest: Manifest, checked: dict[str, memoryview], secret: Secret | None, where: str
) -> dict[str, bytes | memoryview]:
    """Decrypted bytes, and views of what is not encrypted, by digest; none without its key."""
    blobs: dict[str, bytes | memoryview] = {}
    models = {artifact.blob for artifact in manifest.artifacts}
    for entry in manifest.blobs:
        if entry.cipher is None:
            blobs[entry.sha256] = checked[entry.sha256]
        elif secret is not None:
            kind: Kind = "model" if entry.sha256 in models else "golden"
            from cryptography.exceptions import InvalidTag

            key, salt = secret.key(entry.cipher.key), bytes.fromhex(entry.cipher.salt)
            try:
                blobs[entry.sha256] = decrypt(key, salt, checked[entry.sha256], bound_to(manifest.model_id, kind))
            except InvalidTag:  # its SHA-256 is right, and so is the key's id: it was never encrypted for this place
                what = f"blob {entry.sha256:.12} does not open with its key: it was encrypted for another model, or "
                do = "Build the bundle again, and find out who changed this one"
                raise IntegrityError(what + "forged", where=where, do=do) from None
    return blobs
