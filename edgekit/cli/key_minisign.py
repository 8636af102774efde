"""edgekit keys minisign: a signature that minisign checks."""

from __future__ import annotations

from pathlib import Path

import click

from edgekit.cli.key_options import folder, folder_of, passphrase_file, sign, signer, signing_of
from edgekit.cli.options import PATH, as_json, print_json

__all__ = ["minisign"]


@click.command()
@click.argument("bundle", type=PATH)
@sign
@signer
@passphrase_file
@folder
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Default: BUNDLE.minisig.")
@as_json
def minisign(
    bundle: Path, sign: tuple[str, ...], signer: str | None, passphrase_file: Path | None, folder: Path | None,
    output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a minisign signature of BUNDLE beside it, for those who check files with minisign, and NAME.minisign.pub.

    \b
    edgekit keys minisign net.ekb --sign alice
    minisign -V -m net.ekb -p alice.minisign.pub

    A board asks for the signatures in the bundle itself (`edgekit keys sign`); this one is for download pages and archives.
    """
    if len(sign) != 1:
        raise click.UsageError("Name who signs: --sign KEY, one key.")
    from edgekit.keys import open_signers
    from edgekit.keys.minisign import minisig, public_key
    from edgekit.packaging import write_whole
    from edgekit_runtime.bundle import read_bundle

    (by,) = open_signers(signing_of(sign, signer, passphrase_file), folder_of(folder))
    manifest = read_bundle(bundle).manifest
    comment = f"{bundle.name}: {manifest.name} version {manifest.version} for {manifest.target.profile}"
    beside = output or bundle.with_name(f"{bundle.name}.minisig")
    name = Path(sign[0]).name.removesuffix(".pem").removesuffix(".pub")
    key = beside.with_name(f"{name}.minisign.pub")
    write_whole(beside, minisig(bundle.read_bytes(), by, comment).encode(), "the signature")
    write_whole(key, public_key(by.public, name).encode(), "the public key")
    if as_json:
        print_json({"signature": str(beside), "public": str(key), "comment": comment})
        return
    click.echo(f"{beside}: {comment}")
    click.echo(f"check it with: minisign -V -m {bundle} -x {beside} -p {key}")
