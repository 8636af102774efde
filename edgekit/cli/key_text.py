"""Options that say who signs, and keys and roots as text and JSON.

A passphrase never stands on a command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.cli import completion
from edgekit.cli.options import PATH, print_json

if TYPE_CHECKING:
    from edgekit.keys import KeyEntry, KeyFolder, SigningOptions, WrittenRoot
    from edgekit_runtime.trust import TrustStore

__all__ = [
    "PASSPHRASE",
    "folder",
    "folder_of",
    "key_json",
    "passphrase_file",
    "print_keys",
    "print_store",
    "print_written",
    "sign",
    "signer",
    "signing_of",
    "store_json",
    "warn_open",
]


def print_written(written: WrittenRoot, as_json: bool) -> int:
    """Exits 0 also for a draft: what was asked was done."""
    if as_json:
        print_json(
            {
                "version": written.version,
                "file": str(written.path),
                "root": str(written.root) if written.root else None,
                "signed_by": list(written.signers),
                "missing": list(written.missing),
                "roles": _roles_json(written.store),
            }
        )
        return 0
    by = ", ".join(written.signers) or "no key yet"
    click.echo(f"{written.path}: version {written.version}, signed by {by}")
    _print_roles(written.store)
    if written.root is None:
        click.echo(f"not in force: more of these must sign it: {', '.join(written.missing)}")
        click.echo(f"next: edgekit keys sign {written.path} --sign KEY")
        return 0
    click.echo(
        f"{written.root}: is this version now; boards take it over with: edgekit keys update {written.path.name}"
    )
    return 0


def print_keys(own: KeyFolder, entries: Sequence[KeyEntry]) -> None:
    click.echo(f"keys in {own.path}")
    if not entries:
        click.echo("  none: edgekit keys new NAME makes one")
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        state = "public half only" if entry.private is None else "passphrase" if entry.encrypted else "no passphrase"
        click.echo(f"  {entry.name:<{width}}  {entry.keyid[:16]}  {state}")


def print_store(store: TrustStore | None) -> None:
    from edgekit_runtime.trust import judge, tell_time, trust_paths

    if store is None:
        click.echo(f"trust: none on this machine (looked for {', '.join(map(str, trust_paths()))})")
        return
    if store.root is None:
        click.echo(f"trust: {store.where}, any one of {len(store.keys)} public keys")
        return
    late = store.expires_s is not None and judge(issued_s=store.issued_s).at_s >= store.expires_s
    click.echo(
        f"trust: {store.where}, version {store.version}, {'EXPIRED' if late else 'good until'} "
        f"{tell_time(store.expires_s or 0)}"
    )
    click.echo(f"  fingerprint {store.fingerprint}")
    _print_roles(store)
    for gone in store.revoked.values():
        click.echo(f"  revoked  {gone.name} ({gone.keyid[:8]})" + (f": {gone.why}" if gone.why else ""))


def _print_roles(store: TrustStore) -> None:
    """Which keys have each role, and how many of them must sign."""
    from edgekit_runtime.trust import tell_time

    for title, role in (("bundles", store.bundle), ("root", store.root)):
        if role is not None:
            names = []
            for keyid in role.keyids:
                until = store.keys[keyid].expires_s
                names.append(store.name_of(keyid) + (f" until {tell_time(until)}" if until is not None else ""))
            click.echo(f"  {title:<8} {role.threshold} of {len(role.keyids)}: {', '.join(names)}")


def key_json(entry: KeyEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "keyid": entry.keyid,
        "public": str(entry.public),
        "private": str(entry.private) if entry.private else None,
        "passphrase": entry.encrypted,
        "open_to_others": entry.open_to_others,
    }


def store_json(store: TrustStore | None) -> dict[str, Any] | None:
    from edgekit_runtime.trust import tell_time

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
    from edgekit_runtime.trust import tell_time

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


Command = TypeVar("Command", bound=Callable[..., Any])

PASSPHRASE = "EDGEKIT_PASSPHRASE"

sign = click.option(
    "--sign",
    "sign",
    shell_complete=completion.keys,
    multiple=True,
    metavar="KEY",
    help="Sign with this key: a name from `edgekit keys list`, or the PEM file of an Ed25519 private key; repeatable.",
)
signer = click.option(
    "--signer",
    metavar="CMD",
    help="A command that signs for the keys of --sign that are public ones: it reads the bytes on its standard "
    "input, or in "
    "the file that {} stands for, and prints the signature.",
)
passphrase_file = click.option(
    "--passphrase-file",
    type=PATH,
    metavar="FILE",
    help=f"The passphrase of the keys is the first line of FILE. Else it is ${PASSPHRASE}, or asked for on a terminal.",
)
folder = click.option(
    "--folder",
    type=PATH,
    metavar="DIR",
    help="Where keys are kept. Default: $EDGEKIT_KEYS, or edgekit/keys in ~/.config.",
)


def folder_of(path: Path | None) -> KeyFolder:
    from edgekit.keys import KeyFolder, default_folder

    return KeyFolder(path or default_folder())


def signing_of(keys: tuple[str, ...], signer: str | None, passphrase_file: Path | None) -> SigningOptions:
    """What --sign, --signer and --passphrase-file say together."""
    from edgekit.keys import SigningOptions

    if signer is not None and not keys:
        raise click.UsageError("--signer signs for a public key: name that with --sign.")
    return SigningOptions(keys, signer, lambda key: passphrase(passphrase_file, f"passphrase of {key}"), warn_open)


def warn_open(key: Path) -> None:
    """On stderr, where it spoils no --json."""
    click.echo(f"warning: other users can read {key}. Run: chmod 600 {key}", err=True)


def passphrase(file: Path | None, prompt: str, *, twice: bool = False) -> bytes | None:
    """From the file, the environment or a person, in this order.
    None where there is none of them. Raises KeysError."""
    if file is not None:
        from edgekit.keys import KeysError

        try:
            with file.open("rb") as stream:
                line = stream.readline(4096).rstrip(b"\r\n")
        except OSError as error:
            raise KeysError(f"the passphrase cannot be read: {error.strerror or error}", where=str(file)) from error
        if not line:
            raise KeysError("the first line is empty, and should be a passphrase", where=str(file))
        return line
    if given := os.environ.get(PASSPHRASE):
        return given.encode()
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return str(click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)).encode()
