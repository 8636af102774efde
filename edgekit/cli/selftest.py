"""edgekit selftest: does a bundle give its golden answers on this machine?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import BUNDLE, PATH, allow_unsigned, as_json, engine, print_json, threads, trust
from edgekit.cli.secret_options import secret

__all__ = ["selftest"]


@click.command()
@click.argument("bundle", type=BUNDLE, metavar="[BUNDLE|ROOT]", required=False)
@engine
@threads
@trust
@allow_unsigned
@secret
@click.option("-o", "--output", type=PATH, metavar="RECORD", help="Write what --json prints there, too.")
@as_json
def selftest(bundle: Path | None, as_json: bool, output: Path | None, **options: Any) -> None:
    """Open BUNDLE, or what answers in an install ROOT, as an application does: verify it, choose how to run it, replay its
    golden examples, warm up.

    Without BUNDLE it is the install root that this folder is, or the only *.ekb in it, and a line says which.

    Exits 1 where an answer is out of tolerance. A crash of the engine is told as a sentence, because the first replay on a
    machine runs in a process of its own (EDGEKIT_SELFTEST=in-process runs it in this one).
    """
    from edgekit_runtime import open_bundle

    bundle = bundle or _here()
    with open_bundle(bundle, **options) as model:
        told = model.describe()
    tested, engine = told["selftest"], told["engine"]
    record = {"bundle": str(bundle), "ok": True, "recipe": told["recipe"], "engine": engine, **tested}
    installed = told["installed"]
    if installed is not None:
        record |= {key: installed[key] for key in ("generation", "state", "unsigned", "vouched")}
    if output is not None:
        _write(output, record)
    if as_json:
        print_json(record)
        return
    examples = "1 golden example" if tested["examples"] == 1 else f"{tested['examples']} golden examples"
    by = "which made them" if tested["same_engine"] else "another than made them"
    where = "" if installed is None else f"generation {installed['generation']}, {installed['state']}: "
    same = "" if engine["arithmetic"] == "exact" else " with the same bits on the golden examples"
    click.echo(
        f"{where}{told['name']} version {told['version']}: {told['recipe']} gives its {examples} on {engine['name']} "
        f"{engine['version']}, {by}: at most {tested['worst_steps']:.3g} steps apart, cosine {tested['worst_cosine']:.5f}, "
        f"{engine['arithmetic']} arithmetic{same}"
    )
    if installed is not None:
        click.echo(installed["vouched"])


def _here() -> Path:
    """What this folder has to be tested: itself, as an install root, or its only bundle."""
    from edgekit_runtime.install import is_root

    folder = Path.cwd()
    found = [folder] if is_root(folder) else [one for one in sorted(folder.glob("*.ekb")) if one.is_file()]
    if len(found) != 1:
        there = f"it holds {len(found)} of them" if found else "it is no root and holds none"
        raise click.UsageError(
            f"Name a BUNDLE or a ROOT. Without it, {folder} must be an install root or hold one *.ekb, and {there}."
        )
    click.echo(f"testing {found[0]}", err=True)
    return found[0]


def _write(output: Path, record: dict[str, Any]) -> None:
    from edgekit.errors import OutputError

    try:
        output.write_text(json.dumps(record) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
