"""edgekit fleet samples: inputs that boards sent for the next build."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from edgekit.cli.options import PATH, as_json, device, output, print_json, private_key, store


@click.group(no_args_is_help=True)
def samples() -> None:
    """Collect the low-confidence inputs that boards send (`samples=`)."""


@samples.command("new-key")
@click.argument("file", type=PATH)
@as_json
def new_key(file: Path, as_json: bool) -> int:
    """Write a private key to FILE, and its public key.

    \b
    edgekit fleet samples new-key builder.key
    """
    from edgekit.fleet.samples import new_key

    public = new_key(file)
    if as_json:
        print_json({"private": str(file), "public": str(public)})
    else:
        click.echo(f"{file} decrypts what boards encrypt with {public}; give boards only the public key")
    return 0


@samples.command()
@output("DIR", "A folder for each model is made there.", required=True)
@private_key(required=True, help="The private key of `new-key`.")
@device(help="Only this board.")
@store()
@as_json
def pull(output: Path, key: Path, device: str | None, store: str, as_json: bool) -> int:
    """Decrypt the samples and write them for `build --calibration`.

    \b
    edgekit fleet samples pull --key builder.key -o field
    edgekit build net.keras --profile raspberry-pi-4 --calibration field/net
    """
    from edgekit.fleet.samples import pull, read_key
    from edgekit.fleet.serve import open_store

    with closing(open_store(store, make=False)) as opened:
        done = pull(opened, read_key(key), output, device)
    if as_json:
        print_json({"folders": {str(output / model): n for model, n in done.folders.items()}, "new": done.new,
                    "left_out": dict(done.left_out)})  # fmt: skip
        return 0
    for model, n in done.folders.items():
        click.echo(f"{output / model}: {n} samples")
    click.echo(f"{done.new} new" + "".join(f"; {n} left out: {why}" for why, n in done.left_out.items()))
    return 0


@samples.command()
@device(help="Only this board.")
@store()
@as_json
def delete(device: str | None, store: str, as_json: bool) -> int:
    """Delete the samples in the store; boards keep theirs.

    \b
    edgekit fleet samples delete --device porch-1
    """
    from edgekit.fleet.serve import open_store

    with closing(open_store(store, make=False)) as opened:
        gone = opened.delete_samples(device)
    if as_json:
        print_json({"parts": gone})
    else:
        click.echo(f"deleted {gone} sample parts")
    return 0
