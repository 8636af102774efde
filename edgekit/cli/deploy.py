"""edgekit deploy (all that a board needs, over ssh, in a folder or a .deb) and export.

Rule: what deploy ships has passed `edgekit check` before anything is copied.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.bench_text import bench_lines
from edgekit.cli.printing import print_json, print_result, refuse_unwritable, say, write_json
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.system.errors import EdgekitError, SecretError

if TYPE_CHECKING:
    from edgekit.shipping.package import Approve, PackageResult
    from edgekit.shipping.push import PushResult
    from edgekit.shipping.ssh import Address
    from edgekit_profiles import Profile

port = click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Port of sshd. Default: ssh's own.")
identity = click.option("--identity", type=opt.PATH, metavar="FILE", help="A private key for ssh. Default: ssh's own.")
prefix = opt.shared(
    "--prefix",
    default="",
    metavar="DIR",
    help="Directory on the board. Default: the user's data directory; /opt/edgekit for root.",
)
_OF_A_PACKAGE = ("deb", "anchors")
_OF_A_BOARD = ("port", "identity", "prefix", "no_bench", "anchor_file")


@click.command()
@click.argument("bundle", type=opt.BUNDLE, metavar="BUNDLE|ROOT")
@click.argument("address", metavar="[USER@HOST]", required=False)
@opt.output("DIR", "Instead of USER@HOST: write a package into this folder; with --deb, the .deb into it.")
@click.option("--deb", is_flag=True, help="With -o: a Debian package instead of a folder.")
@opt.profile(
    multiple=True,
    default=None,
    help="The board. Default: the one detected at USER@HOST; for a package, the bundle's own.",
)
@opt.profile_path
@click.option(
    "--service",
    metavar="CMD",
    help="Run CMD as a systemd unit on the board; {bundle}, {python} and {prefix} become the installed paths.",
)
@opt.engine(
    type=click.Choice(opt.BOARD_ENGINES), metavar=None, shell_complete=None, help="Default: the board's first choice."
)
@click.option(
    "--extra",
    "extras",
    type=click.Choice(["image", "telemetry"]),
    multiple=True,
    help="An extra to install, too; repeatable.",
)
@click.option("--wheel", type=opt.PATH, metavar="WHL", help="The edgekit wheel to ship. Default: this installation.")
@opt.trust(
    help="A root.json, or a public key (PEM; repeatable), to ship; the board trusts it for this model. "
    "Default: the board's trusted keys.",
)
@opt.allow_unsigned
@opt.secret
@click.option("--no-check", is_flag=True, help="Skip `edgekit check` before shipping.")
@click.option(
    "--anchors", is_flag=True, help="With -o: include the network that `edgekit profiles measure` times, 21 MB."
)
@port
@identity
@prefix()
@click.option("--no-bench", is_flag=True, help="Do not measure it on the board.")
@click.option(
    "--measure",
    "anchor_file",
    type=opt.PATH,
    metavar="FILE",
    help="Also time MobileNetV1 on the board, and write FILE for `edgekit estimate --anchor`.",
)
@opt.as_json
def deploy(bundle: Path, address: str | None, output: Path | None, as_json: bool, **asked: Any) -> None:
    """Ship BUNDLE, or the active one of an install ROOT, to a board.

    Ships edgekit, an engine and all dependencies with it: pinned wheels with hashes, licences, an installer.

    USER@HOST is reached by the system's ssh, which never prompts: detect the board, copy what changed, install,
    self-test and time it. The active bundle stays active until the new one has reproduced its golden answers there.
    With -o it is a package for a board without a network: copy the folder there (a USB stick will do) and run `sh
    install.sh`.

    \b
    edgekit deploy net.ekb pi@raspberrypi
    edgekit deploy net.ekb --profile raspberry-pi-4 -o usb/
    edgekit deploy net.ekb --profile raspberry-pi-4 -o . --deb --service "python3 /home/pi/app.py {bundle}"
    """
    if len(asked["profile"]) > 1:
        what = f"a package is for one board, and this names {len(asked['profile'])}: run it once for each"
        raise click.BadParameter(what, param_hint="'--profile'")
    asked["profile"] = next(iter(asked["profile"]), None)
    if (address is None) == (output is None):
        raise click.UsageError("Pass either USER@HOST, or -o DIR for a package.")
    if address is None and (idle := opt.options_given(*_OF_A_BOARD)):
        raise click.UsageError(
            f"A package is written locally: leave out {', '.join(idle)}, or name USER@HOST instead of -o."
        )
    if output is None and (idle := opt.options_given(*_OF_A_PACKAGE)):
        raise click.UsageError(f"{', '.join(idle)} is for a package: name -o DIR instead of USER@HOST.")
    for_board = {name: asked.pop(name) for name in _OF_A_BOARD}
    for_package = {name: asked.pop(name) for name in _OF_A_PACKAGE}
    bundle = opt.held_bundle(bundle)
    if address is not None:
        _push(bundle, address, as_json, for_board, asked)
    elif output is not None:
        _pack(bundle, output, as_json, for_package, asked)


def _pack(bundle: Path, output: Path, as_json: bool, of_it: dict[str, Any], options: dict[str, Any]) -> None:
    from edgekit.shipping.deb import pack_deb
    from edgekit.shipping.package import PackageRequest, pack
    from edgekit_runtime.bundle.reader import read_bundle

    profile, paths = options.pop("profile"), options.pop("profile_paths")
    options["approve"] = approver(bundle, options.pop("secret"), skip=options.pop("no_check"))
    to = opt.load_profile(profile or read_bundle(bundle).manifest.target.profile, paths)
    request = PackageRequest(bundle, to, output, anchors=of_it["anchors"], **options)
    packed = (pack_deb if of_it["deb"] else pack)(request)
    print_result(packed.as_json(), _packed_lines(packed, of_it["deb"]), as_json)


def _packed_lines(packed: PackageResult, deb: bool) -> Iterator[str]:
    yield f"{packed.path}: {packed.name} for {packed.profile}, {packed.bytes / 1e6:,.1f} MB"
    yield f"  engine     {packed.engine} {packed.engine_version}, Python {packed.python}, {packed.arch}"
    yield f"  wheels     {len(packed.wheels)}, each with its SHA-256"
    if packed.debian:
        yield f"  Debian     brings {', '.join(packed.debian)}"
    if packed.service:
        yield f"  service    {packed.service}"
    for note in packed.notes:
        yield f"  note       {note}"
    by_apt = f"copy it to the board and run: sudo apt-get install ./{packed.path.name}"
    yield by_apt if deb else "copy the folder to the board and run there: sh install.sh"


def _push(bundle: Path, address: str, as_json: bool, of_it: dict[str, Any], options: dict[str, Any]) -> None:
    from edgekit.shipping.push import PushRequest, push
    from edgekit.shipping.ssh import Address, answered_by

    anchor_file = of_it["anchor_file"]
    if anchor_file is not None:
        refuse_unwritable(anchor_file, "--measure")
    catalogue = opt.catalogue_of(options.pop("profile_paths"))
    profile = options.pop("profile")
    to = Address(address, of_it["port"], of_it["identity"])
    options["approve"] = approver(bundle, options.pop("secret"), skip=options.pop("no_check"))
    options |= {
        "bench": None if of_it["no_bench"] else (),
        "prefix": of_it["prefix"],
        "measure": anchor_file is not None,
    }
    request = PushRequest(bundle, to, catalogue.load(profile) if profile else None, **options)
    done = push(request, catalogue, lambda sentence: say(sentence, err=True))
    if anchor_file is not None:
        write_json(anchor_file, done.anchors or {})
    if not as_json:
        with answered_by(address):
            lines = list(_pushed_lines(done, to))
        for line in lines:
            say(line)
        return
    board = done.board.detected
    print_json(
        {
            "on": address,
            "profile": done.packed.profile,
            "board": {
                "profile": board.profile.name if board.profile else None,
                "sure": board.sure,
                "why": board.why,
                "model": done.board.facts.model,
                "differences": [asdict(one) for one in board.differences],
            },
            "prefix": done.prefix,
            "package": done.packed.as_json(),
            "sent": {"files": done.sent, "bytes": done.sent_bytes, "kept": done.kept},
            "selftest": done.selftest,
            "bench": done.bench,
            "anchors": done.anchors,
        }
    )


def _pushed_lines(done: PushResult, address: Address) -> Iterator[str]:
    packed, tested = done.packed, done.selftest
    yield f"{packed.name} is installed on {address.to}, in {done.prefix}"
    yield f"  for      {packed.profile}: {packed.arch}, Python {packed.python}, {packed.engine} {packed.engine_version}"
    yield f"  sent     {done.sent} files, {done.sent_bytes / 1e6:,.1f} MB; {done.kept} already there"
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


class CheckFailedError(EdgekitError):
    """The check found that the bundle will not load on the board, or answers differently."""

    code = "check-failed"


def approver(bundle: Path, secret: str | None = None, *, skip: bool) -> Approve | None:
    """`approve`, or None if it is skipped.

    Raises SecretError (secret-missing) if an encrypted bundle's key is missing, before wheels are fetched."""
    if skip:
        return None
    from edgekit_runtime.bundle.reader import read_bundle
    from edgekit_runtime.bundle.secrets import find_secret

    try:
        read_bundle(bundle, secret=secret or find_secret)
    except SecretError as error:
        if error.code != "secret-missing":
            raise
        do = (
            "Pass --secret or set EDGEKIT_SECRET=file:PATH, so that it can be checked; "
            "or ship it unchecked with --no-check"
        )
        raise SecretError(error.what, where=error.where, do=do, code="secret-missing") from None
    return partial(approve, secret=secret)


def approve(bundle: Path, profile: Profile, engine: str, version: str, secret: str | None = None) -> None:
    """Check the artifact for that engine and version from the files alone; nothing runs.

    Raises CheckFailedError with the first finding that is an error, and its code.
    """
    from edgekit.boards.checked import CheckRequest, check
    from edgekit_runtime.bundle.reader import read_bundle

    entries = read_bundle(bundle).manifest.artifacts  # the primary one is first
    answers = next((one.recipe for one in entries if one.format in ENGINES[engine].formats), entries[0].recipe)
    checked = check(CheckRequest(bundle, profile, ((engine, version),), replay=False, secret=secret))
    errors = [one for one in checked.findings if one.level == "error" and one.artifact in ("", answers)]
    if errors:
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise CheckFailedError(
            f"{errors[0].what} ({errors[0].code}{more})",
            where=f"{bundle} on {profile.name}",
            do=f"Run: edgekit doctor {errors[0].code}; or ship it anyway with --no-check",
        )


EXPORT_TARGETS = ("files", "web", "node", "c", "mediapipe")


@click.command()
@click.argument("bundle", type=opt.BUNDLE, metavar="BUNDLE|ROOT")
@click.option(
    "--for",
    "target",
    type=click.Choice(EXPORT_TARGETS),
    default="files",
    show_default=True,
    help="Target. For model repositories of other servers: edgekit host export.",
)
@opt.output("DIR", "A new directory.", required=True)
@opt.recipe()
@click.option(
    "--pictures",
    type=opt.PATH,
    metavar="DIR",
    help="With --for mediapipe: compare its answers on these with the bundle's.",
)
@opt.opening
@opt.as_json
def export(
    bundle: Path, target: str, output: Path, recipe: str | None, pictures: Path | None, as_json: bool, **options: Any
) -> int:
    """Write a bundle as plain files, with a program that runs without edgekit.

    The argument is a BUNDLE, or an install ROOT for its active one.

    Writes the model file, labels.txt, contract.json, golden examples, and a program for this contract alone: it
    prepares an input, reads the answer, and reproduces the golden answers. The artifact of an encrypted bundle is
    written decrypted.

    \b
    edgekit export net.ekb -o net && python net/run.py
    """
    if pictures is not None and target != "mediapipe":
        raise click.UsageError("--pictures goes with --for mediapipe.")
    from edgekit.bench.inputs import expand
    from edgekit.shipping.programs.export import export as write

    read = opt.opened_bundle(bundle, options)
    made = write(read, output, target, recipe, tuple(expand([str(pictures)])) if pictures is not None else ())
    if as_json:
        files = [str(path.relative_to(output)) for path in made.files]
        said = {"packages": list(made.packages), "start": list(made.start), "measured": made.measured}
        print_json({"target": target, "recipe": made.recipe, "files": files, **said})
        return 0
    for path in made.files:
        click.echo(str(path))
    if read.secret is not None:
        click.echo("note: the exported artifact is not encrypted", err=True)
    if target == "mediapipe":
        click.echo(_measured(made.measured), err=made.measured is None)
    if made.start:
        needs = f", with Debian's {' and '.join(made.packages)}" if target == "c" else ""
        click.echo(f"it runs without edgekit{needs}: cd {shlex.quote(str(output))}; {'; '.join(made.start)}")
    else:
        click.echo("note: no program, because the model is stateful", err=True)
    return 0


def _measured(found: dict[str, Any] | None) -> str:
    if found is None:
        return "note: not measured: that needs Linux, without network there, and `pip install mediapipe`"
    said = f"MediaPipe {found['mediapipe']} on the golden examples: {found['check']}"
    if found["pictures"]:
        whole, region = (
            f"cosine {found[one]:.3f}" if found["figure"] == "cosine" else f"{found[one]:.1%}"
            for one in ("whole", "region")
        )
        said += f"\nMediaPipe on {found['pictures']} pictures, {found['figure']} as the bundle: {whole}"
        said += f"; of the part that the model is made for {region}" if found["region"] != found["whole"] else ""
    return said
