"""edgekit keys openssf: a signature that verifiers of OpenSSF Model Signing check."""

from __future__ import annotations

from pathlib import Path

import click

from edgekit.cli import completion
from edgekit.cli.key_options import folder, folder_of, passphrase_file, signer, signing_of
from edgekit.cli.options import PATH, as_json, print_json

__all__ = ["openssf"]


@click.command()
@click.argument("bundle", type=PATH)
@click.option(
    "--sign",
    shell_complete=completion.keys,
    required=True,
    metavar="KEY",
    help="The PEM file of a P-256, P-384 or P-521 key, or its name where it lies among the others; edgekit's own keys are "
    "of another kind, which that format does not know.",
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
    """Write an OpenSSF Model Signing signature of BUNDLE beside it, and the public key to check it with.

    \b
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out release.pem
    edgekit keys openssf net.ekb --sign release.pem

    A board asks for the signatures in the bundle itself (`edgekit keys sign`); this one is for registries and archives.
    """
    from edgekit.keys.elliptic import open_elliptic
    from edgekit.keys.openssf import model_signature
    from edgekit.packaging import write_whole
    from edgekit_runtime.bundle import read_bundle

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
