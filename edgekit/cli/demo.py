"""edgekit demo: the main job on real input; the demo is also the tutorial."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from edgekit.cli.options import PATH, as_json, print_json
from edgekit.cli.progress import console_progress

__all__ = ["demo"]


@click.command()
@click.option("--folder", type=PATH, default=Path("demo"), show_default=True, help="Where its files go.")
@click.option(
    "--fleet", is_flag=True, help="Then serve a fleet page: this machine and some simulated boards report to it."
)
@click.option(
    "--fallback", is_flag=True, help="Then throttle a device on purpose: its requests go to a host, and come home."
)
@as_json
def demo(folder: Path, as_json: bool, fleet: bool, fallback: bool) -> int:
    """Rebuild EfficientNet-Lite0 with its ImageNet weights, make checked bundles of it for two Raspberry Pis, and ask
    one of them about real photos. Every command is printed before it runs: type them yourself on your own model.

    \b
    edgekit demo
    edgekit demo --fleet
    """
    from edgekit.demo import make_assets, steps

    if fleet or fallback:
        from edgekit.fleet.serve import check_broker

        check_broker()  # before minutes of building
    with console_progress() as progress:
        make_assets(folder, progress)
    ran = []
    bundle = folder / "bundles" / "efficientnet_lite0-raspberry-pi-4.ekb"
    if fallback:
        return _fallback(folder, as_json)
    if fleet and bundle.exists():
        return _fleet(folder, as_json)
    for step in steps(folder):
        click.echo(f"\n{step.why}\n\n    {_written(step.arguments)}\n", err=as_json)
        code = _edgekit(step.arguments, quiet=as_json)
        ran.append({"command": ["edgekit", *step.arguments], "exit_code": code})
        if code:
            break
    failed = ran[-1]["exit_code"] != 0
    if fleet and not failed:
        return _fleet(folder, as_json)
    if as_json:
        print_json({"folder": str(folder), "steps": ran})
    elif not failed:
        click.echo(f"\nDone. Everything is in {folder}/. In an application:\n")
        click.echo(
            "    from edgekit_runtime import open_bundle\n"
            f'    with open_bundle("{bundle.as_posix()}") as model:\n'
            f'        print(model.predict("{(folder / "chelsea.png").as_posix()}", budget_ms=1000).top(3))\n'
        )
        click.echo(
            "Next: edgekit demo --fleet, edgekit demo --fallback\n"
            "      (both need the extra 'fleet'; in a clone: .venv/bin/pip install -e '.[fleet]')"
        )
    return 1 if failed else 0


def _fleet(folder: Path, as_json: bool) -> int:
    """Its own checks, an alert and a roll-out; then, on a terminal, until Ctrl-C."""
    from edgekit.cli.fleet import wait_for_ctrl_c
    from edgekit.demo.fallback import FleetDemo

    bundle = folder / "bundles" / "efficientnet_lite0-raspberry-pi-4.ekb"
    photos = [folder / "chelsea.png", folder / "coffee.png"]
    with FleetDemo(bundle, photos, folder) as running:
        url = running.server.url
        click.echo(
            f"A broker, a fleet page and eight devices run here; one of them is this machine.\n\n    {url}\n",
            err=as_json,
        )
        checks = []
        for check in itertools.chain(running.checks(), running.story(lambda line: click.echo(line, err=as_json))):
            checks.append({"what": check.what, "problem": check.problem})
            click.echo(f"{'not yet' if check.problem else 'yes':<8}{check.what} {check.problem}".rstrip(), err=as_json)
        if sys.stdout.isatty() and not as_json:
            click.echo("\nCtrl-C ends it.")
            wait_for_ctrl_c()
    if as_json:
        print_json({"url": url, "checks": checks})
    return 1 if any(check["problem"] for check in checks) else 0


def _fallback(folder: Path, as_json: bool) -> int:
    """On a terminal: round and round until Ctrl-C. Elsewhere: once, and its own checks."""
    from edgekit.demo.fallback import BUDGET_MS, FallbackDemo, build_step

    step = build_step(folder)
    bundle = folder / "fallback" / "efficientnet_lite0-host-cpu.ekb"
    if not bundle.exists():
        click.echo(f"\n{step.why}\n\n    {_written(step.arguments)}\n", err=as_json)
        if _edgekit(step.arguments, quiet=as_json):
            return 1
    checks = []
    with FallbackDemo(folder) as running:
        click.echo(
            f"\nA device, a host that answers when the device would need more than {BUDGET_MS:g} ms, and the fleet "
            f"page:\n\n"
            f"    {running.url}\n",
            err=as_json,
        )
        if sys.stdout.isatty() and not as_json:
            click.echo("Ctrl-C ends it.")
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    running.walk(click.echo)
            return 0
        for check in running.checks(lambda line: click.echo(line, err=as_json)):
            checks.append({"what": check.what, "problem": check.problem})
            click.echo(f"{'not yet' if check.problem else 'yes':<8}{check.what} {check.problem}".rstrip(), err=as_json)
    if as_json:
        print_json({"url": running.url, "checks": checks})
    return 1 if any(check["problem"] for check in checks) else 0


def _edgekit(arguments: Sequence[str], *, quiet: bool) -> int:
    """In a process of its own, as a person would start it; its output is ours unless `quiet`."""
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *arguments]
    sys.stdout.flush()
    return subprocess.run(command, check=False, stdout=sys.stderr if quiet else None).returncode


def _written(arguments: Sequence[str]) -> str:
    """As a person would write it, broken before each option group where it is long."""
    text = shlex.join(["edgekit", *arguments])
    return text if len(text) <= 110 else text.replace(" --", " \\\n        --").replace(" -o ", " \\\n        -o ")
