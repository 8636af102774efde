"""`edgekit export`: what a bundle holds, as plain files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import BUNDLE, PATH, allow_unsigned, as_json, print_json, secret, trust


@click.command()
@click.argument("bundle", type=BUNDLE, metavar="BUNDLE|ROOT")
@click.option(
    "--for",
    "kind",
    type=click.Choice(("files",)),
    default="files",
    show_default=True,
    help="Plain files. The repositories of other servers: edgekit host export.",
)
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="A new folder.")
@click.option("--recipe", metavar="NAME", help="Of the artifact. Default: the primary one.")
@trust
@allow_unsigned
@secret
@as_json
def export(bundle: Path, kind: str, output: Path, recipe: str | None, as_json: bool, **options: Any) -> int:
    """Write a bundle as plain files, which run without edgekit.

    The argument is a BUNDLE, or an install ROOT for its active one.

    DIR gets the model file, labels.txt, contract.json, golden.npz and run.py, which prepares an input and gives the
    golden answers. An encrypted bundle's artifact is written in clear.

    \b
    edgekit export net.ekb --for files -o net
    python net/run.py
    """
    from edgekit.model_file import bundle_file
    from edgekit.shipping.files import export_files
    from edgekit_runtime.bundle.reader import read_verified
    from edgekit_runtime.bundle.secrets import find_secret

    bundle = click.get_current_context().with_resource(bundle_file(bundle))
    read = read_verified(
        bundle, options["trust"], secret=options["secret"] or find_secret, allow_unsigned=options["allow_unsigned"]
    )
    made = export_files(read, output, recipe)
    if as_json:
        files = [str(path.relative_to(output)) for path in made.files]
        print_json({"recipe": made.recipe, "files": files, "packages": list(made.packages)})
        return 0
    for path in made.files:
        click.echo(str(path))
    if read.secret is not None:
        click.echo("note: the artifact lies there in clear", err=True)
    if made.packages:
        click.echo(f"it needs no edgekit: pip install {' '.join(made.packages)}; python {output / 'run.py'}")
    else:
        click.echo("note: no run.py, because the model keeps a state from frame to frame", err=True)
    return 0
