"""edgekit install: put a bundle where an application opens it, checked, tried out, in one switch."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.generations import tell_switch
from edgekit.cli.options import PATH, as_json, options_given, print_json, trust
from edgekit.cli.secret_options import secret

if TYPE_CHECKING:
    from edgekit_runtime.install import Board, Installed

__all__ = ["board_of", "install", "remembered"]


@click.command()
@click.argument("bundle", metavar="BUNDLE|URL", required=False)
@click.option(
    "--root", type=PATH, required=True, metavar="DIR", help="Where it is installed: a root of before, or a new folder."
)
@trust
@click.option(
    "--allow-unsigned", is_flag=True, help="Take a bundle that nobody vouches for; every report then says so."
)
@click.option(
    "--profile",
    shell_complete=completion.profiles,
    metavar="NAME",
    help="What this board is, from now on for this root. Default: what the root was told, else what `edgekit "
    "profiles detect` finds.",
)
@click.option(
    "--trial",
    type=click.Choice(["here", "app"]),
    default="here",
    show_default=True,
    help="Who tries it out: this command, before anything answers with it, or the application, in use.",
)
@click.option("--commit", is_flag=True, help="Instead of BUNDLE: keep the generation that is on trial, now.")
@secret
@as_json
def install(bundle: str | None, root: Path, as_json: bool, profile: str | None, commit: bool, **options: Any) -> None:
    """Install BUNDLE, or what a URL leads to, in the root DIR: fetched, verified, staged, self-tested, tried out, and
    switched to at once.

    Whatever goes wrong, what answered before answers on. A cut download goes on where it stopped, and an install that
    was cut off is finished by the same command.

    \b
    edgekit install net.ekb --root /var/lib/edgekit/camera --trust key.pub.pem
    edgekit install https://models.example/net.ekb --root /var/lib/edgekit/camera --trial app
    edgekit install --commit --root /var/lib/edgekit/camera       # ends that trial; `edgekit rollback` gives it up
    """
    if commit:
        _commit(root, options["trust"], as_json)
        return
    if bundle is None:
        raise click.UsageError("Missing argument 'BUNDLE|URL'.")
    for name, value in {"BUNDLE": bundle, "--profile": profile}.items():
        if value == "":
            raise click.UsageError(f"{name} is an empty name.")
    from edgekit.cli.progress import shown
    from edgekit_runtime.install import Asked, Fetching
    from edgekit_runtime.install import install as put

    before = remembered(root)
    with shown() as progress:
        bar = _Bar(progress)
        asked = Asked(
            trust=tuple(options["trust"]),
            profile=profile,
            board=board_of(profile or before),
            allow_unsigned=options["allow_unsigned"],
            trial=options["trial"],
            secret=options["secret"],
            fetching=Fetching(progress=bar),
            waiting=lambda: click.echo("another install works in this root; waiting for it", err=True),
        )
        if profile is None and before is not None:
            _compare(before)
        try:
            done = put(bundle, root, asked)
        except KeyboardInterrupt:
            answers = "what answered before answers on" if (root / "current").is_symlink() else "nothing answers yet"
            click.echo(f"\n{answers}; the same command goes on where this one stopped", err=True)
            raise
        bar.end()
    if as_json:
        print_json(_json(done))
        return
    for line in [*_trust(done, options["trust"]), *_lines(done, before), *_key(done, options["secret"])]:
        click.echo(line)


def _commit(root: Path, trust: tuple[Path, ...], as_json: bool) -> None:
    """Keep the generation on trial. Raises InstallError (no-generation) where there is none."""
    from edgekit_runtime.install import activate

    if idle := options_given("bundle", "profile", "allow_unsigned", "trial", "secret"):
        raise click.UsageError(f"--commit installs nothing: leave out {', '.join(idle)}.")
    tell_switch(as_json, "activated", activate(root, trust=trust), "answers")


class _Bar:
    """What an install tells of itself, in whole stages and megabytes."""

    def __init__(self, progress: Any) -> None:
        self._progress, self._stage, self._last = progress, "", -1

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage != "fetch":
            self.end()
            click.echo(f"{_STAGES[stage]} ...", err=True)
            return
        if total is None:
            return
        self._stage = "fetch (MB)"
        whole, here = max(1, -(-total // 1_000_000)), done // 1_000_000
        here = whole if done == total else min(here, whole - 1)
        if here != self._last:
            self._last = here
            self._progress(self._stage, here, whole)

    def end(self) -> None:
        self._stage = ""


_STAGES = {"verify": "verifying", "selftest": "self-test", "trial": "trial"}


def board_of(profile: str | None, *, quiet: bool = False) -> Board:
    """The names that this board answers to: given, or found; none where nothing certain is known, which is told unless
    quiet.
    """
    from edgekit_runtime.install import Board

    if profile is not None:
        return Board((profile,))
    name, why = _found()
    if name is None and not quiet:
        told = f"this board is not known ({why}); the bundle's architecture alone is compared."
        click.echo(f"{told} Name it with --profile", err=True)
    return Board() if name is None else Board((name,))


def remembered(root: Path) -> str | None:
    """What a root was told that the board is."""
    from edgekit_runtime.errors import EdgekitError
    from edgekit_runtime.install import Root, is_root

    try:
        return Root.open(root).slot().profile if is_root(root) else None
    except EdgekitError:  # who opens it next says what is amiss
        return None


def _found() -> tuple[str | None, str]:
    """The name of this board, where it is sure enough; and by what."""
    from edgekit_profiles import open_catalogue
    from edgekit_profiles.detect import detect
    from edgekit_profiles.facts import read_facts

    found = detect(read_facts(None), open_catalogue(()))
    sure = found.profile is not None and found.sure in ("certain", "likely")
    return (found.profile.name if found.profile is not None and sure else None), found.why


def _compare(before: str) -> None:
    """A card that was moved to another board brings its root along."""
    name, why = _found()
    if name not in (None, before):
        told = f"this root was told that the board is {before}, and goes by that; it looks like {name} ({why})."
        click.echo(f"{told} --profile {name} changes it", err=True)


def _json(done: Installed) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "root": str(done.root),
        "state": done.state,
        "already": done.already,
        "repaired": done.repaired,
        "profile": done.profile,
        "encrypted_with": done.encrypted_with,
        "generation": done.generation.as_json(),
        "selftest": asdict(done.selftest) if done.selftest else None,
        "trial": asdict(done.trial) if done.trial else None,
    }


def _key(done: Installed, given: str | None) -> list[str]:
    """Where the application looks for the key, if it would not find the one that was given here."""
    from edgekit_runtime.bundle.secrets import find_secret
    from edgekit_runtime.errors import EdgekitError

    if given is None or done.encrypted_with is None:
        return []
    with contextlib.suppress(EdgekitError):
        found = find_secret()
        if found is not None and found.only(done.encrypted_with):
            return []
    places = "as /etc/edgekit/secret, by EDGEKIT_SECRET=file:PATH, or open_bundle(..., secret='file:PATH')"
    return [f"{'key':<10} not remembered: the application needs it too, {places}"]


def _trust(done: Installed, said: tuple[Path, ...]) -> list[str]:
    """What the root remembers of --trust."""
    from contextlib import suppress

    from edgekit_runtime.errors import EdgekitError
    from edgekit_runtime.install import Root
    from edgekit_runtime.install.reading import in_words

    with suppress(EdgekitError):  # it is installed, whatever the disk says now
        return [f"{'trusts':<10} {in_words(name)}" for name in Root(done.root).slot().trust] if said else []
    return []


def _lines(done: Installed, before: str | None) -> list[str]:
    """before: what the root was told of the board until now."""
    made = done.generation
    named = f"{made.name} version {made.version} ({made.recipe}, {made.size:,} bytes)"
    lines = []
    if done.profile != before:
        was = "; before, it was told " + before if before else ""
        lines.append(f"{'board':<10} {done.profile}, which this root remembers{was}")
    if done.already:
        return [*lines, made.vouched, f"generation {made.number} already answers: {named}"]
    lines.append(made.vouched)
    if done.selftest is not None:
        lines.append(f"{'self-test':<10} {done.selftest.recipe} on {done.selftest.engine} {done.selftest.told}")
    if done.trial is not None:
        lines.append(f"{'trial':<10} {done.trial.recipe} on {done.trial.engine}: {done.trial.told}")
    if done.state == "trial":
        lines.append(f"generation {made.number} is on trial: {named}")
        lines += [
            f"  next     open_bundle({str(done.root)!r}) tries it out; to decide now:",
            f"           edgekit install --commit --root {done.root}",
            f"           edgekit rollback --root {done.root}",
        ]
    else:
        again = " again; its file was damaged or lost, and was put back" if done.repaired else ""
        lines.append(f"generation {made.number} answers{again}: {named}")
    return lines
