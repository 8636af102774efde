"""`edgekit deploy`: a bundle and all that a board needs for it, over ssh, as a folder or as a .deb."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.approval import approver
from edgekit.cli.bench_text import bench_lines
from edgekit.cli.options import (
    BUNDLE,
    PATH,
    allow_unsigned,
    as_json,
    catalogue_of,
    load_profile,
    options_given,
    print_json,
    profile_path,
)
from edgekit.cli.output import refuse_unwritable, say
from edgekit.cli.secret_options import secret
from edgekit_runtime.engines import ENGINES

if TYPE_CHECKING:
    from edgekit.shipping import Address, Packed, Pushed

__all__ = ["deploy", "identity", "port"]

port = click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Of sshd there. Default: ssh's own.")
identity = click.option("--identity", type=PATH, metavar="FILE", help="A private key. Default: ssh's own.")
_OF_A_PACKAGE = ("deb", "anchors")
_OF_A_BOARD = ("port", "identity", "prefix", "no_bench", "anchor_file")


def _one(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    if len(given) > 1:
        raise click.BadParameter(
            f"a package is for one board, and this names {len(given)}: run it once for each", context, option
        )
    return given[0] if given else None


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("address", metavar="[USER@HOST]", required=False)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="DIR",
    help="Instead of USER@HOST: write a package into this folder; with --deb, the .deb into it.",
)
@click.option("--deb", is_flag=True, help="With -o: a Debian package instead of a folder.")
@click.option(
    "--profile",
    shell_complete=completion.profiles,
    multiple=True,
    callback=_one,
    metavar="NAME",
    help="The board. Default: what is found at USER@HOST; for a package the one that the bundle was built for.",
)
@profile_path
@click.option(
    "--service",
    metavar="CMD",
    help="Run CMD as a systemd unit there; {bundle}, {python} and {prefix} stand for what is installed.",
)
@click.option("--engine", type=click.Choice(tuple(ENGINES)), help="Default: what installs there.")
@click.option(
    "--extra",
    "extras",
    type=click.Choice(["image", "telemetry"]),
    multiple=True,
    help="Also what this needs; repeatable.",
)
@click.option("--wheel", type=PATH, metavar="WHL", help="edgekit's own wheel. Default: this edgekit.")
@click.option(
    "--trust",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A root.json, or a public key (PEM; repeatable), that comes along and is trusted there for this model. "
    "Default: what the board trusts.",
)
@allow_unsigned
@secret
@click.option("--no-check", is_flag=True, help="Do not ask `edgekit check` first whether it will load there.")
@click.option("--anchors", is_flag=True, help="With -o: also the network that `edgekit profiles measure` times, 21 MB.")
@port
@identity
@click.option(
    "--prefix",
    default="",
    metavar="DIR",
    help="Where on the board. Default: the login's own data folder, for root /opt/edgekit.",
)
@click.option("--no-bench", is_flag=True, help="Do not time it there.")
@click.option(
    "--measure",
    "anchor_file",
    type=PATH,
    metavar="FILE",
    help="Time MobileNetV1 there, too, and write FILE, which `edgekit estimate --anchor` takes.",
)
@as_json
def deploy(bundle: Path, address: str | None, output: Path | None, as_json: bool, **asked: Any) -> None:
    """Bring BUNDLE to a board, with edgekit, its engine and all they need: exact wheels with hashes, licences, an
    installer.

    To USER@HOST it goes over the system's own ssh, which never prompts: look what board that is, copy what changed,
    install, self-test and time it. The active bundle stays active until the new one has given its golden answers there.
    With -o it is a package for a board without a network: copy the folder there (a USB stick will do) and run `sh
    install.sh`.

    \b
    edgekit deploy net.ekb pi@raspberrypi
    edgekit deploy net.ekb --profile raspberry-pi-4 -o usb/
    edgekit deploy net.ekb --profile raspberry-pi-4 -o . --deb --service "python3 /home/pi/app.py {bundle}"
    """
    if (address is None) == (output is None):
        raise click.UsageError("Name one place: USER@HOST over ssh, or -o DIR for a package.")
    if address is None and (idle := options_given(*_OF_A_BOARD)):
        raise click.UsageError(
            f"A package is written here: leave out {', '.join(idle)}, or name USER@HOST instead of -o."
        )
    if output is None and (idle := options_given(*_OF_A_PACKAGE)):
        raise click.UsageError(f"{', '.join(idle)} is for a package: name -o DIR instead of USER@HOST.")
    for_board = {name: asked.pop(name) for name in _OF_A_BOARD}
    for_package = {name: asked.pop(name) for name in _OF_A_PACKAGE}
    if address is not None:
        _push(bundle, address, as_json, for_board, asked)
    elif output is not None:
        _pack(bundle, output, as_json, for_package, asked)


def _pack(bundle: Path, output: Path, as_json: bool, of_it: dict[str, Any], asked: dict[str, Any]) -> None:
    from edgekit.shipping import PackageRequest, pack, pack_deb
    from edgekit_runtime.bundle import read_bundle

    profile, paths = asked.pop("profile"), asked.pop("profile_paths")
    asked["approve"] = approver(bundle, asked.pop("secret"), skip=asked.pop("no_check"))
    to = load_profile(profile or read_bundle(bundle).manifest.target.profile, paths)
    request = PackageRequest(bundle, to, output, anchors=of_it["anchors"], **asked)
    packed = (pack_deb if of_it["deb"] else pack)(request)
    if as_json:
        print_json(packed.as_json())
        return
    for line in _packed_lines(packed, of_it["deb"]):
        say(line)


def _packed_lines(packed: Packed, deb: bool) -> Iterator[str]:
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


def _push(bundle: Path, address: str, as_json: bool, of_it: dict[str, Any], asked: dict[str, Any]) -> None:
    from edgekit.shipping import Address, PushRequest, push

    anchor_file = of_it["anchor_file"]
    if anchor_file is not None:
        refuse_unwritable(anchor_file, "--measure")
    catalogue = catalogue_of(asked.pop("profile_paths"))
    profile = asked.pop("profile")
    to = Address(address, of_it["port"], of_it["identity"])
    asked["approve"] = approver(bundle, asked.pop("secret"), skip=asked.pop("no_check"))
    asked |= {"bench": None if of_it["no_bench"] else (), "prefix": of_it["prefix"], "measure": anchor_file is not None}
    request = PushRequest(bundle, to, catalogue.load(profile) if profile else None, **asked)
    done = push(request, catalogue, lambda sentence: say(sentence, err=True))
    if anchor_file is not None:
        _write(anchor_file, done.anchors)
    if as_json:
        print_json(_pushed_json(done, address))
        return
    for line in _pushed_lines(done, to):
        say(line)


def _write(path: Path, anchors: dict[str, Any] | None) -> None:
    from edgekit.errors import OutputError

    try:
        path.write_text(json.dumps(anchors, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(path)) from error


def _pushed_json(done: Pushed, address: str) -> dict[str, Any]:
    return {
        "on": address,
        "profile": done.packed.profile,
        "board": {
            "profile": done.board.detected.profile.name if done.board.detected.profile else None,
            "sure": done.board.detected.sure,
            "why": done.board.detected.why,
            "model": done.board.facts.model,
            "differences": [asdict(one) for one in done.board.detected.differences],
        },
        "prefix": done.prefix,
        "package": done.packed.as_json(),
        "sent": {"files": done.sent, "bytes": done.sent_bytes, "kept": done.kept},
        "selftest": done.selftest,
        "bench": done.bench,
        "anchors": done.anchors,
    }


def _pushed_lines(done: Pushed, address: Address) -> Iterator[str]:
    packed, tested = done.packed, done.selftest
    yield f"{packed.name} is installed on {address.to}, in {done.prefix}"
    yield f"  for      {packed.profile}: {packed.arch}, Python {packed.python}, {packed.engine} {packed.engine_version}"
    yield f"  sent     {done.sent} files, {done.sent_bytes / 1e6:,.1f} MB; {done.kept} were there"
    yield (
        f"  tested   {tested['examples']} golden examples, at most {tested['worst_steps']:.3g} steps apart, "
        f"cosine {tested['worst_cosine']:.5f}"
    )
    for one in done.board.detected.differences:
        yield f"  differs  {one.what}: {one.here} there, {one.profile} in the profile; {one.means}"
    for note in packed.notes:
        yield f"  note     {note}"
    if done.anchors is not None:
        changed = ", ".join(done.anchors["changed"])
        yield f"  anchors  {f'not steady, measure again: {changed}' if changed else 'steady'}"
    if done.bench is not None:
        yield from bench_lines(done.bench)
    yield f"remove it: {address.by_hand('sh', f'{done.prefix}/uninstall.sh')}"
