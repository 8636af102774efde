"""edgekit package: everything that a board needs for a bundle, in one folder or one .deb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.approval import approver
from edgekit.cli.options import BUNDLE, PATH, as_json, load_profile, print_json, profile_path
from edgekit.cli.output import say
from edgekit.cli.package_options import board, packed_options

if TYPE_CHECKING:
    from edgekit.shipping import Packed

__all__ = ["package"]


@click.command()
@click.argument("bundle", type=BUNDLE)
@board("the one that the bundle was built for")
@profile_path
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    metavar="DIR",
    help="The folder to make or to fill; with --deb, where the .deb goes.",
)
@click.option("--deb", is_flag=True, help="A Debian package instead of a folder.")
@packed_options("Add a systemd unit that runs CMD")
@click.option("--anchors", is_flag=True, help="Also the network that `edgekit profiles measure` times there, 21 MB.")
@as_json
def package(
    bundle: Path, profile: str | None, profile_paths: tuple[Path, ...], as_json: bool, deb: bool, **asked: Any
) -> None:
    """Pack BUNDLE with edgekit, its engine and all they need for a board: exact wheels with hashes, licences, an installer.

    The board needs Python, and no network and no compiler: copy the folder there (a USB stick will do) and run
    `sh install.sh`. What has no wheel for it is named, and comes from Debian.

    \b
    edgekit package net.ekb --profile raspberry-pi-4 -o usb/
    edgekit package net.ekb --profile raspberry-pi-4 -o . --deb --service "python3 /home/pi/app.py {bundle}"
    """
    from edgekit.shipping import PackageRequest, pack, pack_deb
    from edgekit_runtime.bundle import read_bundle

    asked["approve"] = approver(bundle, skip=asked.pop("no_check"))
    to = load_profile(profile or read_bundle(bundle).manifest.target.profile, profile_paths)
    packed = (pack_deb if deb else pack)(PackageRequest(bundle, to, **asked))
    if as_json:
        print_json(packed.as_json())
        return
    for line in _lines(packed, deb):
        say(line)


def _lines(packed: Packed, deb: bool) -> Iterator[str]:
    yield f"{packed.path}: {packed.name} for {packed.profile}, {packed.bytes / 1e6:,.1f} MB"
    yield f"  engine     {packed.engine} {packed.engine_version}, Python {packed.python}, {packed.arch}"
    yield f"  wheels     {len(packed.wheels)}, each with its SHA-256"
    if packed.debian:
        yield f"  Debian     brings {', '.join(packed.debian)}"
    if packed.service:
        yield f"  service    {packed.service}"
    for note in packed.notes:
        yield f"  note       {note}"
    if deb:
        yield f"copy it to the board and run: sudo apt-get install ./{packed.path.name}"
    else:
        yield "copy the folder to the board and run there: sh install.sh"
