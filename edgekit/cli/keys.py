"""edgekit keys: keys and secrets, the trusted keys, and signing."""

from __future__ import annotations

import os
from pathlib import Path

import click

from edgekit.cli import options as completion
from edgekit.cli.key_roots import (
    folder,
    folder_of,
    key_json,
    passphrase,
    passphrase_file,
    print_keys,
    print_store,
    print_written,
    renew,
    revoke,
    rotate,
    sign,
    signer,
    signing_of,
    store_json,
    trust,
    warn_open,
)
from edgekit.cli.options import PATH, as_json, print_json


@click.command()
@click.argument("name")
@folder
@as_json
def secret(name: str, folder: Path | None, as_json: bool) -> None:
    """Make NAME.secret, a key to encrypt bundles with.

    Boards that run these bundles need the same file.

    With it anyone can read those bundles, and without it no one can, you included: keep a copy where it is safe.

    \b
    edgekit keys secret camera
    """
    from edgekit.packaging.key_folder import create_secret

    made = create_secret(folder_of(folder), name)
    if as_json:
        print_json({"name": made.name, "id": made.id, "file": str(made.path)})
        return
    click.echo(f"secret '{name}' {made.id:.12}")
    click.echo(f"  file     {made.path}   anyone with it can read the bundles; keep a copy")
    click.echo(f"next: edgekit build ... --encrypt {made.path}")
    click.echo("      on each board: the same file as /etc/edgekit/secret or ~/.config/edgekit/secret, mode 0600")


@click.command()
@click.argument("bundle", type=PATH)
@click.option(
    "--sign",
    shell_complete=completion.keys,
    required=True,
    metavar="KEY",
    help="The PEM file of a P-256, P-384 or P-521 key, or its name where it lies among the others; edgekit's own "
    "keys are of another kind, which that format does not know.",
)
@signer
@passphrase_file
@folder
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Default: BUNDLE.sig.")
@as_json
def openssf(
    bundle: Path, sign: str, signer: str | None, passphrase_file: Path | None, folder: Path | None,
    output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Sign BUNDLE in the format of OpenSSF Model Signing.

    Writes the signature beside it, and the public key to verify it with.

    \b
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out release.pem
    edgekit keys openssf net.ekb --sign release.pem

    A board asks for the signatures in the bundle itself (`edgekit keys sign`); this one is for registries and archives.
    """
    from edgekit.packaging.openssf import model_signature, open_elliptic
    from edgekit.packaging.writer import write_whole
    from edgekit_runtime.bundle.reader import read_bundle

    by = open_elliptic(sign, signing_of((sign,), signer, passphrase_file), folder_of(folder))
    read_bundle(bundle)  # what is damaged is not signed
    beside = output or bundle.with_name(f"{bundle.name}.sig")
    key = beside.with_name(f"{Path(sign).name.removesuffix('.pem').removesuffix('.pub')}.openssf.pub.pem")
    write_whole(beside, model_signature(bundle.name, bundle.read_bytes(), by).encode(), "the signature")
    write_whole(key, by.public_pem, "the public key")
    if as_json:
        print_json({"signature": str(beside), "public": str(key)})
        return
    click.echo(f"{beside}: {bundle.name}")
    click.echo(
        f"check it with: model_signing verify key {bundle.absolute().parent} --signature {beside} --public_key {key} "
        "--ignore_unsigned_files"
    )


@click.group()
def keys() -> None:
    """Keys, and which of them a machine trusts.

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
    """Make the Ed25519 key pair NAME.

    NAME.pem signs and stays with you, NAME.pub.pem is for those who trust it.

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
    """List your keys, and the keys that this machine trusts.

    Exits 1 if other users of this machine can read a private key, or if the trusted keys cannot be read.

    \b
    edgekit keys list
    """
    from edgekit.packaging.key_folder import secrets_in
    from edgekit_runtime.bundle.trust_finding import find_trust, read_trusted
    from edgekit_runtime.bundle.trust_root import parse_root
    from edgekit_runtime.system.errors import SignatureError

    own = folder_of(folder)
    entries, secrets = own.entries(), secrets_in(own)
    store, unreadable = None, None
    try:
        store = parse_root(read_trusted(root), str(root)) if root else find_trust()
    except SignatureError as error:  # the user's own keys are listed all the same
        unreadable = error
    if as_json:
        print_json(
            {
                "folder": str(own.path),
                "keys": [key_json(e) for e in entries],
                "secrets": [{"name": one.name, "id": one.id or None, "file": str(one.path)} for one in secrets],
                "trust": store_json(store),
                **({"error": unreadable.as_json()} if unreadable is not None else {}),
            }
        )
    else:
        print_keys(own, entries)
        if secrets:
            click.echo("secrets, which encrypt bundles")
        width = max((len(one.name) for one in secrets), default=0)
        for one in secrets:
            click.echo(f"  {one.name:<{width}}  {one.id[:16] or one.trouble}")
        if unreadable is None:
            print_store(store)
    if loose := [entry.private for entry in entries if entry.private is not None and entry.open_to_others]:
        for private in loose:
            warn_open(private)
    if unreadable is not None and not as_json:
        raise unreadable
    if loose or unreadable is not None:
        raise click.exceptions.Exit(1)


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
    """Add signatures to FILE, a bundle or a root.json.

    Its other signatures stay.

    \b
    edgekit keys sign net-raspberry-pi-4.ekb --sign bob
    edgekit keys sign root-4.json --sign bob
    """
    from edgekit.packaging.roots import add_signatures, is_root
    from edgekit.packaging.signers import endorse, open_signers

    if not sign:
        raise click.UsageError("Name who signs: --sign KEY.")
    own = folder_of(folder)
    if is_root(file):
        if output is not None:
            raise click.UsageError("-o is for bundles; a version of root.json keeps its name.")
        return print_written(
            add_signatures(file, open_signers(signing_of(sign, signer, passphrase_file), own)), as_json
        )
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
    added = [(own.of(keyid), keyid) for keyid in done.added]
    new = ", ".join(f"{entry.name} ({keyid[:8]})" if entry else keyid[:16] for entry, keyid in added)
    by = new or "no new key: these keys had signed it"
    click.echo(f"{done.path}: {what}, digest {done.digest[:16]}, signed by {by}; {len(done.signed_by)} in all")
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
    """Trust the keys of ROOT.json on this machine.

    The first one is taken on your word: compare its fingerprint with its author's. Every later one must be the next
    version, signed by the one in force; bring all that came in between.

    \b
    edgekit keys update root.json
    """
    from edgekit.packaging.roots import take_over
    from edgekit_runtime.bundle.trust_finding import trust_paths

    paths = trust_paths()
    there = (path for path in paths if os.path.exists(path))  # noqa: PTH110 - False, too, where it may not be looked at
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0 and not os.environ.get("EDGEKIT_TRUST")
    place = to or next(there, paths[-1] if is_root else paths[0])
    taken = take_over(files, place, expect=expect)
    if as_json:
        print_json({"root": str(taken.path), "before": taken.before, "trust": store_json(taken.store)})
        return
    if taken.before == taken.store.version:
        click.echo(f"{taken.path}: version {taken.before} was in force already")
        return
    after = f"follows version {taken.before}" if taken.before else "is the first here, taken on your word"
    click.echo(f"{taken.path}: version {taken.store.version} {after}")
    print_store(taken.store)
