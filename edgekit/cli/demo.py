"""edgekit demo: the main job on real input; the demo is also the tutorial."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from edgekit.cli.options import PATH, as_json, print_json
from edgekit.cli.progress import shown

__all__ = ["demo"]


@click.command()
@click.option("--folder", type=PATH, default=Path("demo"), show_default=True, help="Where its files go.")
@as_json
def demo(folder: Path, as_json: bool) -> int:
    """Rebuild EfficientNet-Lite0 with its ImageNet weights, make checked bundles of it for two Raspberry Pis, and ask one
    of them about real photos. Every command is printed before it runs: type them yourself on your own model.
    """
    from edgekit.demo import make_assets, steps

    with shown() as progress:
        make_assets(folder, progress)
    ran = []
    for step in steps(folder):
        click.echo(f"\n{step.why}\n\n    {_written(step.arguments)}\n", err=as_json)
        code = _edgekit(step.arguments, quiet=as_json)
        ran.append({"command": ["edgekit", *step.arguments], "exit_code": code})
        if code:
            break
    failed = ran[-1]["exit_code"] != 0
    if as_json:
        print_json({"folder": str(folder), "steps": ran})
    elif not failed:
        click.echo(f"\nDone. Everything is in {folder}/. In an application:\n\n{_application(folder)}")
    return 1 if failed else 0


def _edgekit(arguments: Sequence[str], *, quiet: bool) -> int:
    """In a process of its own, as a person would start it; its output is ours unless `quiet`."""
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *arguments]
    sys.stdout.flush()
    return subprocess.run(command, check=False, stdout=sys.stderr if quiet else None).returncode


def _written(arguments: Sequence[str]) -> str:
    """As a person would write it, broken before each option group where it is long."""
    text = shlex.join(["edgekit", *arguments])
    return text if len(text) <= 110 else text.replace(" --", " \\\n        --").replace(" -o ", " \\\n        -o ")


def _application(folder: Path) -> str:
    bundle = folder / "bundles" / "efficientnet_lite0-raspberry-pi-4.ekb"
    return (
        "    from edgekit_runtime import open_bundle\n"
        f'    with open_bundle("{bundle.as_posix()}") as model:\n'
        f'        print(model.predict("{(folder / "chelsea.png").as_posix()}", budget_ms=100).top(3))\n'
    )
