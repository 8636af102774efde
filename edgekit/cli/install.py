"""edgekit install: put a bundle where an application opens it, checked and tried out."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.generations import print_switch
from edgekit.cli.options import PATH, as_json, options_given, print_json, secret, trust

if TYPE_CHECKING:
    from edgekit_runtime.errors import EdgekitError
    from edgekit_runtime.install import BoardIdentity, InstallResult


@click.command()
@click.argument("bundle", metavar="BUNDLE|URL", required=False)
@click.option(
    "--root", type=PATH, required=True, metavar="DIR", help="Where it is installed: a root of before, or a new folder."
)
@trust
@click.option(
    "--allow-unsigned", is_flag=True, help="Accept a bundle that no trusted key has signed; every report then says so."
)
@click.option(
    "--profile",
    shell_complete=completion.profiles,
    metavar="NAME",
    help="What this board is, from now on for this root. Default: what the root remembers, else what `edgekit "
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
    """Install BUNDLE, a file or a URL, in the install root DIR.

    It is fetched, verified, staged, self-tested, put on trial, and activated in one switch.

    If anything fails, the active bundle stays active. A cut download resumes where it stopped, and an install that
    was cut off is finished by the same command.

    \b
    edgekit install net.ekb --root /var/lib/edgekit/camera --trust key.pub.pem
    edgekit install https://models.example/net.ekb --root /var/lib/edgekit/camera --trial app
    edgekit install --commit --root /var/lib/edgekit/camera       # ends that trial; `edgekit rollback` gives it up
    """
    if commit:
        from edgekit_runtime.install import activate

        if idle := options_given("bundle", "profile", "allow_unsigned", "trial", "secret"):
            raise click.UsageError(f"--commit installs nothing: leave out {', '.join(idle)}.")
        print_switch(as_json, "activated", activate(root, trust=options["trust"]), "answers")
        return
    if bundle is None:
        raise click.UsageError("Missing argument 'BUNDLE|URL'.")
    for name, value in {"BUNDLE": bundle, "--profile": profile}.items():
        if value == "":
            raise click.UsageError(f"{name} is an empty name.")
    from edgekit.cli.progress import console_progress
    from edgekit_runtime.errors import InstallError
    from edgekit_runtime.install import FetchOptions, InstallOptions
    from edgekit_runtime.install import install as put

    before = remembered_profile(root)
    with console_progress() as progress:
        bar = _Bar(progress)
        asked = InstallOptions(
            trust=tuple(options["trust"]),
            profile=profile,
            board=board_of(profile or before),
            allow_unsigned=options["allow_unsigned"],
            trial=options["trial"],
            secret=options["secret"],
            fetching=FetchOptions(progress=bar),
            waiting=lambda: click.echo("another install works in this root; waiting for it", err=True),
        )
        if profile is None and before is not None:
            # An SD card that was moved to another board keeps its install root.
            found, why = _detected()
            if found not in (None, before):
                differs = f"this root remembers the board as {before}, and goes by that; it looks like {found} ({why})."
                click.echo(f"{differs} --profile {found} changes it", err=True)
        try:
            done = put(bundle, root, asked)
        except InstallError as error:
            raise with_profile_hint(error, profile) from None
        except KeyboardInterrupt:
            active = "the active bundle stays active" if (root / "current").is_symlink() else "no bundle is active yet"
            click.echo(f"\n{active}; the same command continues where this one stopped", err=True)
            raise
        bar.end()
    if as_json:
        print_json(_json(done))
        return
    for line in [*_lines(done, before, options["trust"]), *_key_lines(done, options["secret"])]:
        click.echo(line)


class _Bar:
    """Progress of an install, in whole stages and megabytes."""

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


def board_of(profile: str | None, *, quiet: bool = False) -> BoardIdentity:
    """The board's profile: the given one, else the detected one.
    None is a note on stderr unless quiet."""
    from edgekit_runtime.install import BoardIdentity

    if profile is not None:
        return BoardIdentity((profile,))
    name, why = _detected()
    if name is None and not quiet:
        unknown = f"this board is not known ({why}); the bundle's architecture alone is compared."
        click.echo(f"{unknown} Name it with --profile", err=True)
    return BoardIdentity() if name is None else BoardIdentity((name,))


def with_profile_hint(error: EdgekitError, profile: str | None) -> EdgekitError:
    """The error, with the nearest names where it refuses an unknown profile name."""
    from edgekit_profiles import UnknownProfileError, open_catalogue

    if profile is not None and error.code == "incompatible":
        try:
            known = open_catalogue(()).load(profile).name
            if known != profile:
                error.do = f"Did you mean --profile {known}?"
        except UnknownProfileError as unknown:
            error.do = f"{unknown.what[:1].upper()}{unknown.what[1:]}. {unknown.do}"
    return error


def remembered_profile(root: Path) -> str | None:
    """The profile that a root remembers for its board."""
    from edgekit_runtime.errors import EdgekitError
    from edgekit_runtime.install import Root, is_root

    try:
        return Root.open(root).slot().profile if is_root(root) else None
    except EdgekitError:  # the next step that opens it says what is wrong
        return None


def _detected() -> tuple[str | None, str]:
    """The name of this board, if detection is certain enough; and the reason."""
    from edgekit_profiles import open_catalogue
    from edgekit_profiles.detect import detect
    from edgekit_profiles.facts import read_facts

    found = detect(read_facts(None), open_catalogue(()))
    sure = found.profile is not None and found.sure in ("certain", "likely")
    return (found.profile.name if found.profile is not None and sure else None), found.why


def _json(done: InstallResult) -> dict[str, Any]:
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


def _key_lines(done: InstallResult, given: str | None) -> list[str]:
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


def _lines(done: InstallResult, before: str | None, trust: tuple[Path, ...]) -> list[str]:
    """before: the profile that the root remembered until now.
    trust: of --trust, which the root remembers."""
    from edgekit_runtime.errors import EdgekitError
    from edgekit_runtime.install import Root
    from edgekit_runtime.install.reading import in_words

    made = done.generation
    recipe = (done.trial or done.selftest or made).recipe  # what answers, where it was tried
    named = f"{made.name} version {made.version} ({recipe}, {made.size:,} bytes)"
    lines = []
    if trust:
        with contextlib.suppress(EdgekitError):  # it is installed, whatever the disk says now
            lines += [f"{'trusts':<10} {in_words(name)}" for name in Root(done.root).slot().trust]
    if done.profile != before:
        was = "; before, it was " + before if before else ""
        lines.append(f"{'board':<10} {done.profile}, which this root remembers{was}")
    lines.append(made.signature_text)
    if done.already:
        return [*lines, f"generation {made.number} already answers: {named}"]
    if done.selftest is not None:
        lines.append(f"{'self-test':<10} {done.selftest.recipe} on {done.selftest.engine} {done.selftest.text}")
    if done.trial is not None:
        lines.append(f"{'trial':<10} {done.trial.recipe} on {done.trial.engine}: {done.trial.text}")
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
