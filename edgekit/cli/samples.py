"""edgekit fleet samples: inputs that boards sent for the next build."""

from __future__ import annotations

from pathlib import Path

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_result


@click.group(no_args_is_help=True)
def samples() -> None:
    """Collect the low-confidence inputs that boards send."""


@samples.command("new-key")
@click.argument("file", type=opt.PATH)
@opt.as_json
def new_key(file: Path, as_json: bool) -> None:
    """Write a private key to FILE, and its public key.

    \b
    edgekit fleet samples new-key builder.key
    """
    from edgekit.fleet.samples import new_key

    public = new_key(file)
    line = f"{file} decrypts what boards encrypt with {public}; give boards only the public key"
    print_result({"private": str(file), "public": str(public)}, [line], as_json)


@samples.command()
@opt.output("DIR", "A folder for each model is made there.", required=True)
@opt.private_key(required=True, help="The private key of `new-key`.")
@opt.device(help="Only this board.")
@opt.store()
@opt.as_json
def pull(output: Path, key: Path, device: str | None, store: str, as_json: bool) -> None:
    """Decrypt samples and write them for `build --calibration`.

    \b
    edgekit fleet samples pull --key builder.key -o field
    edgekit build net.keras --profile raspberry-pi-4 --calibration field/net
    """
    from edgekit.fleet.samples import pull, read_key

    with opt.opened_store(store) as opened:
        done = pull(opened, read_key(key), output, device)
    folders = {str(output / model): n for model, n in done.folders.items()}
    lines = [f"{folder}: {n} samples" for folder, n in folders.items()]
    lines.append(f"{done.new} new" + "".join(f"; {n} left out: {why}" for why, n in done.left_out.items()))
    print_result({"folders": folders, "new": done.new, "left_out": dict(done.left_out)}, lines, as_json)


@samples.command()
@opt.device(help="Only this board.")
@opt.store()
@opt.as_json
def delete(device: str | None, store: str, as_json: bool) -> None:
    """Delete the samples in the store; boards keep theirs.

    \b
    edgekit fleet samples delete --device porch-1
    """

    with opt.opened_store(store) as opened:
        gone = opened.delete_samples(device)
    print_result({"parts": gone}, [f"deleted {gone} sample parts"], as_json)
