"""`edgekit verify`: is a bundle to be trusted, and does it give its golden answers on this machine?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.options import (
    BUNDLE,
    PATH,
    allow_unsigned,
    as_json,
    engine,
    options_given,
    print_json,
    threads,
    trust,
)
from edgekit.cli.secret_options import secret

if TYPE_CHECKING:
    from edgekit.verifying import Verification

__all__ = ["verify"]


@click.command()
@click.argument("bundle", type=BUNDLE, metavar="[BUNDLE|ROOT]", required=False)
@click.option(
    "--replay",
    is_flag=True,
    help="Also load it, in a child within limits of memory and time, and replay its golden examples; then choose how "
    "to run it, replay and warm up as an application does.",
)
@engine
@threads
@trust
@allow_unsigned
@secret
@click.option(
    "--profile",
    shell_complete=completion.profiles,
    metavar="NAME",
    help="A board that the bundle must be for. Default: what the ROOT was told, else what is found here, as a remark.",
)
@click.option("-o", "--output", type=PATH, metavar="RECORD", help="Write what --json prints there, too.")
@as_json
def verify(bundle: Path | None, as_json: bool, output: Path | None, **options: Any) -> int:
    """Check everything in BUNDLE, or in the active bundle of an install ROOT, and print each check: digests, who signed
    it, dates and by which clock, the board, the structure of every model file and its operators, the golden examples.

    Without BUNDLE it is the install root that this folder is, or the only *.ekb in it, and a line says which.
    Exits 1 with the first reason against it, and where --replay finds an answer out of tolerance. A machine without
    trusted keys says so, and goes on only with --allow-unsigned.

    \b
    edgekit verify net.ekb --trust key.pub.pem
    edgekit verify /var/lib/edgekit/camera --replay
    """
    from edgekit import verifying
    from edgekit.cli.install import board_of, remembered

    if not options["replay"] and (idle := options_given("engine", "threads")):
        raise click.UsageError(f"Pass --replay with {' and '.join(idle)}: nothing is loaded without it.")
    bundle, profile = bundle or _here(), options["profile"]
    asked = verifying.Asked(
        trust=options["trust"],
        allow_unsigned=options["allow_unsigned"],
        board=board_of(profile or remembered(bundle), quiet=True),
        named=profile is not None,
        secret=options["secret"],
        replay=options["replay"],
    )
    verification = verifying.Verification(bundle, asked)
    for check in verification:
        if not as_json:
            mark = {True: "ok", False: "REFUSED", None: "-"}[check.ok]
            click.echo(f"{mark:<8} {check.name:<18} {check.told}")
    replayed = _replayed(verification, options) if options["replay"] and verification.error is None else {}
    record = _record(verification, replayed)
    if output is not None:
        _write(output, record)
    if as_json:
        print_json(record)
        return 0 if verification.error is None else 1
    if verification.error is not None:
        raise verification.error
    for line in _replay_lines(verification, replayed):
        click.echo(line)
    click.echo(_verdict(verification))
    return 0


def _replayed(verification: Verification, options: dict[str, Any]) -> dict[str, Any]:
    """What an application would find; a refusal becomes the verification's error.

    Raises SecretError for a missing key.
    """
    from edgekit_runtime.errors import EdgekitError, SecretError

    try:
        return verification.open_as_application(options["engine"], options["threads"])
    except SecretError:
        raise
    except EdgekitError as error:
        verification.error = error
        return {}


def _record(verification: Verification, replayed: dict[str, Any]) -> dict[str, Any]:
    record = verification.as_json() | replayed
    if verification.generation is not None:
        made = verification.generation
        record |= {"generation": made.number, "state": verification.state}
        record |= {"unsigned": made.unsigned, "vouched": made.vouched}
    return record


def _replay_lines(verification: Verification, replayed: dict[str, Any]) -> list[str]:
    made = verification.generation
    lines = []
    if replayed and verification.manifest is not None:
        examples = "1 golden example" if replayed["examples"] == 1 else f"{replayed['examples']} golden examples"
        by = "which made them" if replayed["same_engine"] else "another than made them"
        engine, manifest = replayed["engine"], verification.manifest
        same = "" if engine["arithmetic"] == "exact" else " with the same bits on the golden examples"
        where = "" if made is None else f"generation {made.number}, {verification.state}: "
        lines.append(
            f"{where}{manifest.name} version {manifest.version}: {replayed['recipe']} gives its {examples} on "
            f"{engine['name']} {engine['version']}, {by}: at most {replayed['worst_steps']:.3g} steps apart, cosine "
            f"{replayed['worst_cosine']:.5f}, {engine['arithmetic']} arithmetic{same}"
        )
    return lines if made is None else [*lines, made.vouched]


def _verdict(verification: Verification) -> str:
    rest = [one.name for one in verification.checks if one.ok is None and one.name != "signature"]
    aside = f"; see the lines marked - ({', '.join(rest)})" if rest else ""
    if verification.trusted and verification.vouched is not None:
        by = ", by what this root was told; --trust asks somebody else" if verification.vouched.by_the_root else ""
        return f"trusted{by}{aside}"
    return f"not trusted: nobody vouches for it, and --allow-unsigned let it pass; all else was checked{aside}"


def _here() -> Path:
    """This folder, if it is an install root, else its only bundle."""
    from edgekit_runtime.install import is_root

    folder = Path.cwd()
    found = [folder] if is_root(folder) else [one for one in sorted(folder.glob("*.ekb")) if one.is_file()]
    if len(found) != 1:
        there = f"it holds {len(found)} of them" if found else "it is no root and holds none"
        raise click.UsageError(
            f"Name a BUNDLE or a ROOT. Without it, {folder} must be an install root or hold one *.ekb, and {there}."
        )
    click.echo(f"verifying {found[0]}", err=True)
    return found[0]


def _write(output: Path, record: dict[str, Any]) -> None:
    from edgekit.errors import OutputError

    try:
        output.write_text(json.dumps(record) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
