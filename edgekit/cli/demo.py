"""edgekit demo: the main job on real input; the demo is also the tutorial."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, say
from edgekit.cli.progress import console_progress, until_signalled
from edgekit.packaging.output_errors import DemoError
from edgekit_runtime.system.errors import sentences
from edgekit_runtime.system.strict_json import load_json

if TYPE_CHECKING:
    from edgekit.demo.story import Check

_BUNDLE = "bundles/efficientnet_lite0-raspberry-pi-4.ekb"


@click.command()
@click.option(
    "--folder", type=opt.PATH, default=Path("demo"), show_default=True, help="Directory for the demo's files."
)
@click.option("--fleet", is_flag=True, help="Then serve a fleet page with this machine and simulated boards.")
@click.option(
    "--fallback", is_flag=True, help="Then throttle a device, so that its requests fall back to a host and return."
)
@opt.as_json
def demo(folder: Path, as_json: bool, fleet: bool, fallback: bool) -> int:
    """Run build and inference on real data: EfficientNet-Lite0, two Raspberry Pis, photos.

    It rebuilds the network with its ImageNet weights, makes checked bundles, and runs one on real photos. A second
    network, which plain INT8 breaks, is built beside it. Each command is printed before it runs, and its main figures
    after.

    \b
    edgekit demo
    edgekit demo --fleet
    """
    from edgekit.demo.assets import make_assets, steps
    from edgekit_runtime.bundle.trust_finding import trust_paths

    if fleet or fallback:
        from edgekit.fleet.serve import check_broker

        check_broker()  # before minutes of building
    with console_progress() as progress:
        make_assets(folder, progress)
    ran = []
    if fallback:
        return _fallback(folder, as_json)
    accept = ("--allow-unsigned",) if any(map(os.path.lexists, trust_paths())) else ()  # what the demo has built
    for step in () if fleet and (folder / _BUNDLE).exists() else steps(folder):
        step = (*step, *accept) if step[0] in ("run", "bench") else step
        code, _ = _show(step, as_json)
        ran.append({"command": ["edgekit", *step], "exit_code": code})
        if code:
            break
    failed = bool(ran and ran[-1]["exit_code"])
    if fleet and not failed:
        return _fleet(folder, as_json)
    if as_json:
        print_json({"folder": str(folder), "steps": ran})
    elif not failed:
        click.echo(
            f"\nDone: everything is in {folder}/. A fleet page with this machine on it: edgekit demo --fleet\n"
            "Next, your own model: edgekit try YOUR_MODEL --like FOLDER_OF_INPUTS"
        )
    return 1 if failed else 0


def _show(step: Sequence[str], as_json: bool) -> tuple[int, dict[str, Any]]:
    """Print a command, run it, and print its main figures."""
    from edgekit.demo.assets import digest

    click.echo(f"\n{_command_line(step)}", err=as_json)
    code, found = _figures(step)
    for line in () if code else digest(step, found):
        say(f"    {line}", err=as_json)
    return code, found


def run_step(step: Sequence[str], as_json: bool = False) -> dict[str, Any]:
    """As `_show`. Raises DemoError if it fails."""
    code, found = _show(step, as_json)
    if code:
        raise DemoError(f"edgekit {' '.join(step[:2])} failed", do="Its own error is above")
    return found


def _tell(checks: Iterable[Check], url: str, as_json: bool) -> int:
    """Print each, and with --json all of them. The exit code."""
    shown = []
    for check in checks:
        shown.append(check)
        click.echo(f"no      {check.what}: {check.problem}" if check.problem else f"yes     {check.what}", err=as_json)
    if as_json:
        print_json({"url": url, "checks": [asdict(check) for check in shown]})
    return int(any(check.problem for check in shown))


def _fleet(folder: Path, as_json: bool) -> int:
    """Its own checks, an alert and a roll-out; then until Ctrl-C, but with --json."""
    from edgekit.demo.fallback import fleet_demo

    photos = [folder / "chelsea.png", folder / "coffee.png"]
    with fleet_demo(folder / _BUNDLE, photos, folder) as running:
        url = running.server.url
        here = "A broker, a fleet page and eight devices run here; one of them is this machine."
        click.echo(f"{here}\n\n    {url}\n", err=as_json)
        story = running.story(partial(run_step, as_json=as_json), lambda line: click.echo(line, err=as_json))
        code = _tell(itertools.chain(running.checks(), story), url, as_json)
        click.echo("\nThe checks are done: --json ends here." if as_json else "\nCtrl-C stops it.", err=as_json)
        if not as_json:
            with until_signalled() as ended:
                ended.wait()
            click.echo("The fleet ends: its page, its broker and its boards.")
    return code


def _fallback(folder: Path, as_json: bool) -> int:
    """On a terminal: round and round until Ctrl-C. Elsewhere: once, and its own checks."""
    from edgekit.demo.fallback import build_step, fallback_demo

    if not (folder / "fallback" / "efficientnet_lite0-host-cpu.ekb").exists():
        click.echo("\nTwo bundles of one build:", err=as_json)
        run_step(build_step(folder), as_json)
    with fallback_demo(folder) as running:
        click.echo(
            "\nA device, a host that answers when the device would need more than "
            f"{running.budget_ms:.0f} ms, and the fleet page:\n\n    {running.url}\n",
            err=as_json,
        )
        if sys.stdout.isatty() and not as_json:
            click.echo("Ctrl-C stops it.")
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    running.walk(click.echo)
            return 0
        return _tell(running.checks(lambda line: click.echo(line, err=as_json)), running.url, as_json)


def _figures(arguments: Sequence[str], every_s: float = 10.0) -> tuple[int, dict[str, Any]]:
    """(exit code, `--json` object) of a command in its own process.

    A terminal shows the last line of its progress, a log the latest every `every_s`; a failing command's output is
    shown in full.
    """
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *arguments, "--json"]
    wide = shutil.get_terminal_size().columns - 1
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        out: list[str] = []
        reading = threading.Thread(target=lambda stream: out.append(stream.read()), args=(child.stdout,))
        reading.start()
        ended = threading.Event()
        if not sys.stderr.isatty():
            threading.Thread(target=_tell_latest, args=(said, ended, every_s), daemon=True).start()
        for line in child.stderr:
            said.append(line.rstrip("\n"))
            if sys.stderr.isatty():
                click.echo(f"\r\x1b[K{said[-1][:wide]}", nl=False, err=True)
        reading.join()
        ended.set()
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    found = load_json(out[0]) if out[0].strip() else {}
    if child.returncode:
        for line in (*said, *_failed(found)):
            say(line, err=True)
    return child.returncode, found


def _tell_latest(said: Sequence[str], ended: threading.Event, every_s: float) -> None:
    """The latest line, again and again until the end."""
    for waited in itertools.count(1):
        if ended.wait(every_s):
            return
        click.echo(f"    {waited * every_s:.0f} s: {said[-1] if said else 'starting'}", err=True)


def _failed(found: dict[str, Any]) -> Iterator[str]:
    """What the JSON of a failed command says of it."""
    if "error" in found:
        error = found["error"]
        what = ": ".join(part for part in (error["where"], error["what"]) if part)
        yield f"error: {sentences(what, error['do'])} [{error['code']}]"
    for bundle in found.get("bundles", ()):
        for one in bundle["refused"]:
            yield f"{bundle['profile']}: not {one['recipe']} ({one['code']}): {sentences(one['reason'], one['do'])}"


def _command_line(arguments: Sequence[str]) -> str:
    """As a person would write it, in lines of at most 110 columns that break before an option."""
    lines = [""]
    for part in re.split(r"(?= --?[a-z])", shlex.join(["edgekit", *arguments])):
        if len(lines[-1]) + len(part) > 110:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += part
    return "\n".join(lines)
