"""edgekit keys: making keys, saying whom to trust, signing what is there already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.cli.key_openssf import openssf
from edgekit.cli.key_options import folder, folder_of, passphrase, passphrase_file, sign, signer, signing_of, warn_open
from edgekit.cli.key_roots import renew, revoke, rotate, trust
from edgekit.cli.key_secret import print_secrets, secret
from edgekit.cli.key_text import key_json, print_keys, print_store, say_written, store_json
from edgekit.cli.options import PATH, as_json, print_json

if TYPE_CHECKING:
    from edgekit.keys import KeyFolder
    from edgekit_runtime.errors import SignatureError
    from edgekit_runtime.trust import TrustStore

__all__ = ["keys"]


@click.group()
def keys() -> None:
    """Keys, and whom a machine trusts.

    \b
    edgekit keys new alice                        a key pair of your own
    edgekit keys trust alice                      root.json: bundles must be signed by alice
    edgekit build ... --sign alice                sign what you build
    edgekit keys update root.json                 on a board: trust what this root.json says
    """


for _command in (trust, rotate, revoke, renew, openssf, secret):
    keys.add_command(_command)


@keys.command()
@click.argument("name")
@click.option("--passphrase", "ask", is_flag=True, help="Ask for a passphrase, without which the key cannot be used.")
@passphrase_file
@folder
@as_json
def new(name: str, ask: bool, passphrase_file: Path | None, folder: Path | None, as_json: bool) -> None:
    """Make the Ed25519 key pair NAME: NAME.pem signs and stays with you, NAME.pub.pem goes to who should trust it.

    \b
    edgekit keys new alice
    """
    secret = passphrase(passphrase_file, f"passphrase for {name}", twice=True) if ask or passphrase_file else None
    if ask and secret is None:
        raise click.UsageError(
            "--passphrase asks on a terminal, and there is none: use --passphrase-file or $EDGEKIT_PASSPHRASE."
        )
    made = folder_of(folder).create(name, secret)
    if as_json:
        print_json(key_json(made))
        return
    state = "needs its passphrase to sign" if made.encrypted else "has no passphrase: who copies it can sign"
    click.echo(f"key '{name}' {made.keyid[:8]}")
    click.echo(f"  private  {made.private}   {state}")
    click.echo(f"  public   {made.public}   for those who should trust it")
    key, trusted = (name, name) if folder is None else (made.private, made.public)
    click.echo(f"next: edgekit keys trust {trusted}; then edgekit build ... --sign {key}")


@keys.command("list")
@folder
@click.option(
    "--root-json", "root", type=PATH, metavar="FILE", help="Show this root.json. Default: the one this machine trusts."
)
@as_json
def list_(folder: Path | None, root: Path | None, as_json: bool) -> None:
    """Your keys, and whom this machine trusts.

    Exits 1 where a private key can be read by other users of this machine, and where whom it trusts cannot be told.

    \b
    edgekit keys list
    """
    from edgekit.keys.secret import secrets_in

    own = folder_of(folder)
    entries, (store, untold) = own.entries(), _trusted(root)
    if as_json:
        print_json(
            {
                "folder": str(own.path),
                "keys": [key_json(e) for e in entries],
                "secrets": [{"name": one.name, "id": one.id or None, "file": str(one.path)} for one in secrets_in(own)],
                "trust": store_json(store),
                **({"error": untold.as_json()} if untold is not None else {}),
            }
        )
    else:
        print_keys(own, entries)
        print_secrets(secrets_in(own))
        if untold is None:
            print_store(store)
    if loose := [entry.private for entry in entries if entry.private is not None and entry.open_to_others]:
        for private in loose:
            warn_open(private)
    if untold is not None and not as_json:
        raise untold
    if loose or untold is not None:
        raise click.exceptions.Exit(1)


def _trusted(root: Path | None) -> tuple[TrustStore | None, SignatureError | None]:
    """Whom this machine trusts, or why that cannot be told: one's own keys are listed all the same."""
    from edgekit_runtime.errors import SignatureError
    from edgekit_runtime.trust import find_trust, parse_root, read_trusted

    try:
        return parse_root(read_trusted(root), str(root)) if root else find_trust(), None
    except SignatureError as error:
        return None, error


@keys.command("sign")
@click.argument("file", type=PATH)
@sign
@signer
@passphrase_file
@folder
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write the signed bundle there. Default: FILE itself.")
@as_json
def sign_(
    file: Path, sign: tuple[str, ...], signer: str | None, passphrase_file: Path | None, folder: Path | None,
    output: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Add signatures to FILE, a bundle or a version of root.json; those that are there stay.

    \b
    edgekit keys sign net-raspberry-pi-4.ekb --sign bob
    edgekit keys sign root-4.json --sign bob
    """
    from edgekit.keys import add_signatures, endorse, is_root, open_signers

    if not sign:
        raise click.UsageError("Name who signs: --sign KEY.")
    own = folder_of(folder)
    if is_root(file):
        if output is not None:
            raise click.UsageError("-o is for bundles; a version of root.json keeps its name.")
        return say_written(add_signatures(file, open_signers(signing_of(sign, signer, passphrase_file), own)), as_json)
    signers = open_signers(signing_of(sign, signer, passphrase_file), own)
    done = endorse(file, signers, output)
    if as_json:
        print_json(
            {
                "bundle": str(done.path),
                "digest": done.digest,
                "added": list(done.added),
                "signed_by": list(done.signed_by),
            }
        )
        return 0
    what = f"{done.manifest.name} version {done.manifest.version} for {done.manifest.target.profile}"
    new = ", ".join(_short(own, keyid) for keyid in done.added) or "nobody new: these keys had signed it"
    click.echo(f"{done.path}: {what}, digest {done.digest[:16]}, signed by {new}; {len(done.signed_by)} in all")
    return 0


@keys.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="ROOT.json...")
@click.option(
    "--to",
    type=PATH,
    metavar="FILE",
    help="Where this machine keeps it. Default: where it is now; else /etc/edgekit for root, ~/.config for others.",
)
@click.option(
    "--expect",
    metavar="SHA256",
    help="Of the first one: the fingerprint it must have, as `edgekit keys list` shows it.",
)
@as_json
def update(files: tuple[Path, ...], to: Path | None, expect: str | None, as_json: bool) -> None:
    """Trust what ROOT.json says, on this machine.

    The first one is taken on your word: compare its fingerprint with whoever made it. Every later one must be the next
    version, signed by the one in force; bring all that came in between.

    \b
    edgekit keys update root.json
    """
    from edgekit.keys import take_over

    taken = take_over(files, to or _place(), expect=expect)
    if as_json:
        print_json({"root": str(taken.path), "before": taken.before, "trust": store_json(taken.store)})
        return
    if taken.before == taken.store.version:
        click.echo(f"{taken.path}: version {taken.before} was in force already")
        return
    after = f"follows version {taken.before}" if taken.before else "is the first here, taken on your word"
    click.echo(f"{taken.path}: version {taken.store.version} {after}")
    print_store(taken.store)


def _place() -> Path:
    """Where this machine's root.json is, or should be."""
    from edgekit_runtime.trust import trust_paths

    paths = trust_paths()
    there = next((path for path in paths if os.path.exists(path)), None)  # noqa: PTH110 - False, too, where it may not be looked at
    if there is not None:
        return there
    return (
        paths[-1] if hasattr(os, "geteuid") and os.geteuid() == 0 and not os.environ.get("EDGEKIT_TRUST") else paths[0]
    )


def _short(own: KeyFolder, keyid: str) -> str:
    entry = own.of(keyid)
    return f"{entry.name} ({keyid[:8]})" if entry else keyid[:16]
