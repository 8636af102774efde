"""How commands find keys, ask for passphrases, write root.json and show who is trusted.

Rule: a passphrase is never given on a command line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_result
from edgekit.packaging.bundle_options import SigningOptions, given_passphrase
from edgekit.packaging.output_errors import KeysError
from edgekit_runtime.bundle.signature import keyid_of
from edgekit_runtime.bundle.trust_finding import config_dir, trust_paths
from edgekit_runtime.bundle.trust_store import TrustStore, judge, tell_time

if TYPE_CHECKING:
    from edgekit.packaging.key_folder import KeyEntry, KeyFolder
    from edgekit.packaging.roots import Member, WrittenRoot
    from edgekit.packaging.writer import Signer

DAY_S = 86_400

folder = click.option(
    "--folder",
    type=opt.PATH,
    metavar="DIR",
    help="The directory of your keys. Default: $EDGEKIT_KEYS, or edgekit/keys in ~/.config.",
)


def folder_of(path: Path | None) -> KeyFolder:
    from edgekit.packaging.key_folder import KeyFolder, default_folder

    return KeyFolder(path or default_folder())


def signing_of(sign: tuple[str, ...], signer: str | None, passphrase_file: Path | None) -> SigningOptions:
    if signer is not None and not sign:
        raise click.UsageError("--signer signs for a public key: name that with --sign.")
    return SigningOptions(sign, signer, passphrase_file, lambda key: _asked(f"passphrase of {key}"), warn_open)


def warn_open(key: Path) -> None:
    """On stderr, where it spoils no --json."""
    click.echo(f"warning: other users can read {key}. Run: chmod 600 {key}", err=True)


def new_passphrase(file: Path | None, prompt: str) -> bytes | None:
    """From the file, the environment or a prompt that asks twice. Raises KeysError."""
    return given_passphrase(file) or _asked(prompt, twice=True)


def _asked(prompt: str, *, twice: bool = False) -> bytes | None:
    """None if there is no terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return str(click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)).encode()


class RootEditor:
    """Writes versions of root.json. signed: the version in force, None before the first."""

    def __init__(self, options: dict[str, Any]) -> None:
        from edgekit.packaging.roots import Dates, read_signed

        self.own, base = folder_of(options["folder"]), config_dir()
        if options["root"] is None and base is None:
            raise KeysError("this user has no home to keep a root.json in", do="Name one with --root-json FILE")
        self.root: Path = options["root"] or (base or Path()) / "trust" / "root.json"
        self.signed = read_signed(self.root) if self.root.exists() else None
        now = float(int(time.time()))
        self.dates: Dates = Dates(now, now + options["days"] * DAY_S)
        self._asked = signing_of(options["sign"], options["signer"], options["passphrase_file"])

    def existing(self) -> dict[str, Any]:
        if self.signed is None:
            raise KeysError("no root.json yet", where=str(self.root), do="Create it: edgekit keys trust KEY")
        return self.signed

    def signers(self, keyids: Sequence[str]) -> list[Signer]:
        """Signers of --sign, else of those `keyids` whose private keys are in the folder."""
        from edgekit.packaging.signers import open_signers

        if self._asked.sign:
            return open_signers(self._asked, self.own)
        mine = [entry for keyid in keyids if (entry := self.own.of(keyid)) is not None and entry.private is not None]
        if not mine:
            raise KeysError(
                f"no key that could sign it is in {self.own.path}",
                do="Name one that is elsewhere with --sign KEY",
            )
        asked = replace(self._asked, sign=tuple(str(entry.private) for entry in mine), signer=None)
        return open_signers(asked, self.own)

    def first_signers(self, entries: Sequence[KeyEntry]) -> list[Signer]:
        """Who signs the first version and the next ones. Raises UsageError if several keys could."""
        own = [found.name for each in entries if (found := self.own.of(each.keyid)) is not None and found.private]
        if not self._asked.sign and len(own) > 1:
            raise click.UsageError(
                f"{', '.join(own)} are all yours: say with --sign which of them sign the next versions of root.json, "
                f"and so decide which keys boards trust, such as --sign {own[0]}."
            )
        return self.signers([entry.keyid for entry in entries])

    def name_of(self, one: Signer, members: Sequence[Member]) -> str:
        keyid = keyid_of(one.public)
        named = next((member.name for member in members if member.keyid == keyid), None)
        found = self.own.of(keyid)
        return named or (found.name if found else keyid[:8])

    def keyid_of(self, named: str) -> str:
        """A key of the root by its name, the start of its keyid, or a file. Raises KeysError."""
        known = self.existing()["keys"]
        for keyid, key in known.items():
            if key["name"] == named:
                return str(keyid)
        short = [keyid for keyid in known if len(named) >= 8 and keyid.startswith(named)]
        try:
            return str(short[0]) if len(short) == 1 else self.own.public(named).keyid
        except KeysError as error:
            do = f"Name one of {', '.join(sorted(key['name'] for key in known.values()))}, or a PEM file"
            raise KeysError(f"it has no key '{named}'", where=str(self.root), do=do) from error

    def write(self, signed: dict[str, Any], as_json: bool, signers: Sequence[Signer] | None = None) -> int:
        """signers: None for all that may sign versions before or after this one."""
        from edgekit.packaging.roots import write_root

        if signers is None:
            may = [*self.existing()["roles"]["root"]["keyids"], *signed["roles"]["root"]["keyids"]]
            signers = self.signers(list(dict.fromkeys(may)))
        return print_written(write_root(self.root, signed, signers), as_json)


def print_written(written: WrittenRoot, as_json: bool) -> int:
    """Print the version; exit code 0, also for a draft."""
    record = {
        "version": written.version,
        "file": str(written.path),
        "root": str(written.root) if written.root else None,
        "signed_by": list(written.signers),
        "missing": list(written.missing),
        "roles": _roles_json(written.store),
    }
    by = ", ".join(written.signers) or "no key yet"
    lines = [f"{written.path}: version {written.version}, signed by {by}", *_role_lines(written.store)]
    if written.root is None:
        lines.append(f"not in force: more of these must sign it: {', '.join(written.missing)}")
        lines.append(f"next: edgekit keys sign {written.path} --sign KEY")
    else:
        taken = f"boards take it over with: edgekit keys update {written.path.name}"
        lines.append(f"{written.root}: is this version now; {taken}")
    print_result(record, lines, as_json)
    return 0


def store_lines(store: TrustStore | None) -> Iterator[str]:
    if store is None:
        yield f"trust: none on this machine (looked for {', '.join(map(str, trust_paths()))})"
    elif store.root is None:
        yield f"trust: {store.where}, any one of {len(store.keys)} public keys"
    else:
        late = store.expires_s is not None and judge(issued_s=store.issued_s).at_s >= store.expires_s
        good = f"{'EXPIRED' if late else 'good until'} {tell_time(store.expires_s or 0)}"
        yield f"trust: {store.where}, version {store.version}, {good}"
        yield f"  fingerprint {store.fingerprint}"
        yield from _role_lines(store)
        for gone in store.revoked.values():
            yield f"  revoked  {gone.name} ({gone.keyid[:8]})" + (f": {gone.why}" if gone.why else "")


def _role_lines(store: TrustStore) -> Iterator[str]:
    """Which keys have each role, and how many of them must sign."""
    for title, role in (("bundles", store.bundle), ("root", store.root)):
        if role is not None:
            names = []
            for keyid in role.keyids:
                until = store.keys[keyid].expires_s
                names.append(store.name_of(keyid) + (f" until {tell_time(until)}" if until is not None else ""))
            yield f"  {title:<8} {role.threshold} of {len(role.keyids)}: {', '.join(names)}"


def store_json(store: TrustStore | None) -> dict[str, Any] | None:
    if store is None:
        return None
    return {
        "path": store.where,
        "version": store.version,
        "expires": tell_time(store.expires_s) if store.expires_s is not None else None,
        "fingerprint": store.fingerprint or None,
        "roles": _roles_json(store),
        "revoked": [{"keyid": gone.keyid, "name": gone.name, "why": gone.why} for gone in store.revoked.values()],
    }


def _roles_json(store: TrustStore) -> dict[str, Any]:
    found = {}
    for name, role in (("bundle", store.bundle), ("root", store.root)):
        if role is not None:
            keys = [(keyid, store.keys[keyid]) for keyid in role.keyids]
            members = [
                {"keyid": keyid, "name": key.name, "until": None if key.expires_s is None else tell_time(key.expires_s)}
                for keyid, key in keys
            ]
            found[name] = {"threshold": role.threshold, "keys": members}
    return found
