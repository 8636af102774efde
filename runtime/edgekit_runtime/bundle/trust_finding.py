"""Find trusted keys, this machine's or those that a caller names, and judge bundles by them.

    store = load_trust("root.json")                    # or one PEM file, or several: any one of those keys is enough
    store = find_trust()                               # None: no trusted keys are configured on this machine
    decision = TrustPolicy(store).decide(header.manifest_bytes, header.signatures, where=path)
    decision.signers, decision.text                    # (), "not signed; accepted because unsigned bundles are allowed"

Rules:
- $EDGEKIT_TRUST, if set, decides alone, and must exist: a misspelt name must not turn checking off;
- else the first that exists decides: the user's configuration folder, then /etc/edgekit/trust/root.json. One that
  cannot be used is an error;
- a damaged one is never replaced automatically: the error says how, and that the new one is taken on the user's word;
- a file that another user could change or replace, by it or by any folder above it, is refused (`first_unsafe`);
- without a store, a signature, a known key or enough keys a bundle is refused, unless `allow_unsigned`; a changed,
  revoked or expired one is always refused;
- a report on a bundle shows `text`, so that an allowance does not look like a check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from edgekit_runtime.bundle.signature import Signature, keyid_of, parse_public_key, raw_key
from edgekit_runtime.bundle.trust_root import is_document, parse_root, read_root
from edgekit_runtime.bundle.trust_store import Role, TrustedKey, TrustStore, TrustTime
from edgekit_runtime.system.errors import SignatureError, TrustError
from edgekit_runtime.system.files import first_unsafe
from edgekit_runtime.system.records import record

SYSTEM_ROOT = Path("/etc/edgekit/trust/root.json")

Trust = str | os.PathLike[str] | TrustStore | Sequence[str | os.PathLike[str]]


def load_trust(trust: Trust) -> TrustStore | None:
    """The store that `trust` names; None for an empty list.
    Several files must be PEM keys: any one is enough.
    Raises TrustError or SignatureError naming the file."""
    if isinstance(trust, TrustStore):
        return trust
    paths = [Path(trust)] if isinstance(trust, (str, os.PathLike)) else [Path(one) for one in trust]
    if not paths:
        return None
    return store_in([(str(path), read_trusted(path)) for path in paths])


def store_in(contents: Sequence[tuple[str, bytes]]) -> TrustStore | None:
    """As `load_trust`, from (path, contents) of each file."""
    if not contents:
        return None
    roots = [(where, data) for where, data in contents if is_document(data)]
    if not roots:
        keys = {}
        for where, data in contents:
            raw = raw_key(parse_public_key(data, where))
            keyid = keyid_of(raw)
            name = Path(where).name.removeprefix(f"{keyid[:16]}-")  # so an install root names its copy
            keys[keyid] = TrustedKey(keyid, name, raw)
        return TrustStore(", ".join(where for where, _ in contents), keys, Role(tuple(keys), 1))
    if len(contents) > 1:
        what, do = (
            "a root.json lists every trusted key, so it cannot be combined with other keys",
            "Pass the root.json alone",
        )
        raise TrustError(what, where=roots[0][0], do=f"{do}, or public keys alone")
    return parse_root(roots[0][1], roots[0][0])


def find_trust(environ: Mapping[str, str] | None = None, *, system: Path = SYSTEM_ROOT) -> TrustStore | None:
    """This machine's trusted keys, or None without any.
    Raises TrustError if they cannot be used."""
    environ = os.environ if environ is None else environ
    named = bool(environ.get("EDGEKIT_TRUST"))
    for path in trust_paths(environ, system=system):
        if named and not os.path.lexists(path):
            do = "Correct or unset EDGEKIT_TRUST; or run: edgekit keys update ROOT.json, which writes it there"
            raise TrustError("EDGEKIT_TRUST names a file that does not exist", where=str(path), do=do)
        if named or _is_there(path, ours=path != system):
            return load_in_force(path, load_trust)
    return None


def load_in_force(path: Path, load: Callable[[Path], TrustStore | None]) -> TrustStore | None:
    """What this machine trusts by the file `path`, as `load` reads it.
    Raises TrustError or SignatureError; for a damaged file `do` says how to replace it, because no later version can
    follow one that cannot be read."""
    try:
        return load(path)
    except SignatureError as error:
        if error.code == "unsafe-path":
            raise
        if not isinstance(error, TrustError) and path.suffix != ".json":
            raise  # of a public key, which says what it lacks
        do = "Make it readable for this user"
        if not isinstance(error.__cause__, PermissionError):
            do = f"Move it away, then run: edgekit keys update ROOT.json --to {path}; it is trusted without a check, "
            do += "so compare its fingerprint"
        what = f"the trusted keys of this machine cannot be read: {error.what}"
        raise TrustError(what, where=str(path), do=do) from error


def trust_paths(environ: Mapping[str, str] | None = None, *, system: Path = SYSTEM_ROOT) -> tuple[Path, ...]:
    """Where `find_trust` looks, in its order."""
    environ = os.environ if environ is None else environ
    if named := environ.get("EDGEKIT_TRUST"):
        return (Path(named),)
    own = config_dir(environ)
    return (*([own / "trust" / "root.json"] if own else []), system)


def config_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder of this user's settings; None for a user without a home."""
    environ = os.environ if environ is None else environ
    if base := environ.get("XDG_CONFIG_HOME") or environ.get("APPDATA"):
        return Path(base) / "edgekit"
    if home := environ.get("HOME"):
        return Path(home) / ".config" / "edgekit"
    try:
        return Path.home() / ".config" / "edgekit"
    except RuntimeError:  # no HOME, and no line in the list of users
        return None


def no_trust(where: str = "") -> TrustError:
    """The error if a signature must be checked and there are no trusted keys."""
    return TrustError(
        "no trusted keys are configured on this machine",
        where=where,
        do="Run: edgekit keys update ROOT.json; or name a key or root.json with trust=; or pass allow_unsigned=True",
        do_cli="Run: edgekit keys update ROOT.json; or name a key or root.json with --trust; or pass --allow-unsigned",
        code="no-trust-store",
    )


def _is_there(path: Path, *, ours: bool) -> bool:
    """Raises TrustError if that is unknown, unless it is in the user's own folder (`ours`).
    A HOME that this user may not enter belongs to another user, whose trusted keys do not count."""
    try:
        return path.exists()
    except OSError as error:
        if ours:
            return False
        why = error.strerror or str(error)
        raise TrustError(f"cannot be accessed: {why}", where=str(path), do="Make it readable for every user") from error


def read_trusted(path: Path) -> bytes:
    """The bytes of a root.json or public key.
    Raises TrustError: unsafe-path if another user could replace it; trust if it cannot be read."""
    refuse_unsafe(path)
    return read_root(path)


def refuse_unsafe(path: Path, uid: int | None = None, above: Path | None = None) -> None:
    """Raises TrustError (unsafe-path) if another user could replace the file (`first_unsafe`)."""
    if found := first_unsafe(path, uid, above):
        do = f"{found.do}. Then check that it still lists your keys: edgekit keys list"
        raise TrustError(found.what, where=str(found.where), do=do, code="unsafe-path")


BY_THE_ROOT = "trusted by the install root (slot.json), not by this machine"
"""Whoever can write to the root can write that, too, so a report says which keys were used."""


@record(frozen=True)
class TrustDecision:
    """Who signed a bundle, and whether that suffices.

    signers: keyids that count; empty unless trusted keys signed it.
    text: the decision in words.
    code: of the refusal that was waived or is only shown, else empty.
    lasting_text: the part of `text` that stays true, for a record on disk.
    by_the_root: the trusted keys are the install root's, not this machine's or the caller's."""

    signers: tuple[str, ...]
    text: str
    code: str = ""
    lasting_text: str = ""
    by_the_root: bool = False

    @property
    def trusted(self) -> bool:
        return bool(self.signers)


UNCHECKED = TrustDecision((), "its signature was not checked")


@record(frozen=True)
class TrustPolicy:
    """What to accept.

    store: trusted keys, None without any.
    allow_unsigned: accept a bundle that no trusted key has signed, and say so; None if no option allows it.
    new, now: as in `TrustStore.check`.
    mode: `require` a trusted signature; `if-known`: only with a store; `show`: refuse nothing."""

    store: TrustStore | None = None
    allow_unsigned: bool | None = False
    new: bool = True
    now: TrustTime | None = None
    mode: Literal["require", "if-known", "show"] = "require"

    def decide(self, manifest: bytes, signatures: Sequence[Signature], where: str = "") -> TrustDecision:
        """Raises TrustError (no-trust-store) without a store, and what `TrustStore.check` raises."""
        store = self.store
        if store is None and self.mode != "require":
            return TrustDecision((), f"{UNCHECKED.text}: no trusted keys are configured on this machine")
        try:
            if store is None:
                raise no_trust(where)
            signers = store.check(manifest, signatures, self.now, new=self.new, where=where)
        except SignatureError as error:
            if self.mode == "show":
                return TrustDecision((), f"NOT trusted here: {error.what}", error.code)
            waivable = error.code in ("no-trust-store", "unsigned", "unknown-key", "too-few-signatures")
            if waivable and self.allow_unsigned:
                reason = f"{error.what}; accepted because unsigned bundles are allowed"
                return TrustDecision((), reason, error.code, lasting_text=error.what)
            if waivable and self.store is not None and self.allow_unsigned is not None:
                error.do_cli = f"{error.do_cli or error.do}; or accept it as it is with --allow-unsigned"
                error.do += "; or accept it as it is with allow_unsigned=True"
            raise
        signed = f"signed by {', '.join(map(store.name_of, signers))}"
        whose = BY_THE_ROOT if store.by_the_root else "trusted here"
        return TrustDecision(signers, f"{signed}, {whose}", lasting_text=signed, by_the_root=store.by_the_root)
