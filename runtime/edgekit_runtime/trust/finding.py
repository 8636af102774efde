"""Find this machine's trusted keys, or those that `--trust` or `trust=` names.

    store = load_trust("root.json")                    # or one PEM file, or several: any one of those keys is enough
    store = find_trust()                               # None: no trusted keys are configured on this machine

Rules:
- $EDGEKIT_TRUST, once it is set, decides alone, and must exist: a misspelt name may not turn checking off;
- else it is looked for in the user's configuration folder, then in /etc/edgekit/trust/root.json. The first that exists
  decides, and one that does not hold is an error, never a reason to look on;
- what may not be looked at is an error too, but for the folder of a user's own settings;
- one in force that is damaged is never replaced by itself: the error says how a person does it, and that it rests on
  the person's word then;
- a file that another user could change or replace, by it or by any folder above it, is refused (`strict_modes`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgekit_runtime.errors import SignatureError, TrustError
from edgekit_runtime.strict_modes import first_unsafe
from edgekit_runtime.trust.root import is_document, parse_root, read_root
from edgekit_runtime.trust.signature import keyid_of, parse_public_key, raw_key
from edgekit_runtime.trust.store import Role, TrustedKey, TrustStore

SYSTEM_ROOT = Path("/etc/edgekit/trust/root.json")

Trust = str | os.PathLike[str] | TrustStore | Sequence[str | os.PathLike[str]]


def load_trust(trust: Trust) -> TrustStore | None:
    """The store that `trust` names; None for an empty list.
    Several files must be PEM keys, any one of which is enough.

    Raises TrustError or SignatureError naming the file.
    """
    if isinstance(trust, TrustStore):
        return trust
    paths = [Path(trust)] if isinstance(trust, (str, os.PathLike)) else [Path(one) for one in trust]
    if not paths:
        return None
    return store_in([(str(path), read_trusted(path)) for path in paths])


def store_in(contents: Sequence[tuple[str, bytes]]) -> TrustStore | None:
    """The store in the contents of files, each with its path. As `load_trust`."""
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
        raise TrustError(
            "a root.json names every trusted key, and other keys were given beside it",
            where=roots[0][0],
            do="Name the root.json alone, or public keys alone",
        )
    return parse_root(roots[0][1], roots[0][0])


def find_trust(environ: Mapping[str, str] | None = None, *, system: Path = SYSTEM_ROOT) -> TrustStore | None:
    """This machine's trusted keys, or None without any.
    Raises TrustError for one that does not hold."""
    environ = os.environ if environ is None else environ
    named = bool(environ.get("EDGEKIT_TRUST"))
    for path in trust_paths(environ, system=system):
        if named and not os.path.lexists(path):
            raise TrustError(
                "there is no such file, and EDGEKIT_TRUST names it",
                where=str(path),
                do="Correct or unset EDGEKIT_TRUST; or run: edgekit keys update ROOT.json, which writes it there",
            )
        if named or _is_there(path, ours=path != system):
            return load_in_force(path, load_trust)
    return None


def load_in_force(path: Path, load: Callable[[Path], TrustStore | None]) -> TrustStore | None:
    """What this machine trusts by the file `path`, as `load` reads it.
    Raises TrustError, SignatureError with the way out of a file that is damaged: no later version can follow one that
    cannot be read."""
    try:
        return load(path)
    except SignatureError as error:
        if error.code == "unsafe-path":
            raise
        if not isinstance(error, TrustError) and path.suffix != ".json":
            raise  # of a public key, which says what it lacks
        if isinstance(error.__cause__, PermissionError):
            do = "Let this user read it"
        else:
            do = (
                f"Move it away, then run: edgekit keys update ROOT.json --to {path}; that one is taken on your word "
                "again, so compare its fingerprint"
            )
        raise TrustError(
            f"the trusted keys of this machine cannot be read:  {error.what}", where=str(path), do=do
        ) from error


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
    """What to raise where something must be checked and there is nothing to check it by."""
    return TrustError(
        "no trusted keys are configured on this machine",
        where=where,
        do="Run: edgekit keys update ROOT.json; or name a key or root.json with trust=; or pass allow_unsigned=True",
        do_cli="Run: edgekit keys update ROOT.json; or name a key or root.json with --trust; or pass --allow-unsigned",
        code="no-trust-store",
    )


def _is_there(path: Path, *, ours: bool) -> bool:
    """Raises TrustError where that is unknown.
    Not so of a user's own folder: a HOME that this user may not enter, as services have it, belongs to another user,
    whose trusted keys do not count."""
    try:
        return path.exists()
    except OSError as error:
        if ours:
            return False
        why = error.strerror or str(error)
        raise TrustError(f"cannot be looked at: {why}", where=str(path), do="Let every user read it") from error


def read_trusted(path: Path) -> bytes:
    """The bytes of a root.json or public key that is to be relied on.
    Raises TrustError (unsafe-path) where another user could have replaced it (see `strict_modes`), TrustError for what
    cannot be read."""
    refuse_unsafe(path)
    return read_root(path)


def refuse_unsafe(path: Path, uid: int | None = None, above: Path | None = None) -> None:
    """Raises TrustError (unsafe-path) where another user could replace a file of keys.
    See `first_unsafe`."""
    if found := first_unsafe(path, uid, above):
        do = f"{found.do}. Then check that it still holds your keys: edgekit keys list"
        raise TrustError(found.what, where=str(found.where), do=do, code="unsafe-path")
