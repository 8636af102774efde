"""edgekit push: a bundle onto a board over ssh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.approval import approver
from edgekit.cli.bench_text import bench_lines
from edgekit.cli.options import BUNDLE, PATH, as_json, catalogue_of, print_json, profile_path
from edgekit.cli.output import refuse_unwritable, say
from edgekit.cli.package_options import board, packed_options

if TYPE_CHECKING:
    from edgekit.shipping import Address, Pushed

__all__ = ["identity", "port", "push"]

port = click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Of sshd there. Default: ssh's own.")
identity = click.option("--identity", type=PATH, metavar="FILE", help="A private key. Default: ssh's own.")


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("address", metavar="USER@HOST")
@board("what is found there")
@profile_path
@port
@identity
@click.option(
    "--prefix",
    default="",
    metavar="DIR",
    help="Where on the board. Default: the login's own data folder, for root /opt/edgekit.",
)
@click.option("--no-bench", is_flag=True, help="Do not time it there.")
@packed_options("Run CMD as a systemd unit there")
@click.option(
    "--measure",
    "anchor_file",
    type=PATH,
    metavar="FILE",
    help="Time MobileNetV1 there, too, and write FILE, which `edgekit estimate --anchor` takes.",
)
@as_json
def push(bundle: Path, address: str, as_json: bool, anchor_file: Path | None, **asked: Any) -> None:
    """Look what board USER@HOST is, pack BUNDLE for it, copy, install, self-test and time it there.

    The system's own ssh is used, with its configuration and keys; passwords are never asked for. A second push sends only
    the files that changed. What was installed before stays in use until the new bundle has given its golden answers there.

    \b
    edgekit push net.ekb pi@raspberrypi
    edgekit push net.ekb pi@raspberrypi --profile raspberry-pi-4 --no-bench --json
    """
    from edgekit.shipping import Address, PushRequest
    from edgekit.shipping import push as pushed

    if anchor_file is not None:
        refuse_unwritable(anchor_file, "--measure")
    catalogue = catalogue_of(asked.pop("profile_paths"))
    profile = asked.pop("profile")
    to = Address(address, asked.pop("port"), asked.pop("identity"))
    asked["approve"] = approver(bundle, skip=asked.pop("no_check"))
    asked["bench"] = None if asked.pop("no_bench") else ()
    request = PushRequest(
        bundle, to, catalogue.load(profile) if profile else None, measure=anchor_file is not None, **asked
    )
    done = pushed(request, catalogue, lambda sentence: say(sentence, err=True))
    if anchor_file is not None:
        _write(anchor_file, done.anchors)
    if as_json:
        print_json(_json(done, address))
        return
    for line in _lines(done, to):
        say(line)


def _write(path: Path, anchors: dict[str, Any] | None) -> None:
    from edgekit.errors import OutputError

    try:
        path.write_text(json.dumps(anchors, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(path)) from error


def _json(done: Pushed, address: str) -> dict[str, Any]:
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


def _lines(done: Pushed, address: Address) -> Iterator[str]:
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
