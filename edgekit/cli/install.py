"""edgekit install, status and rollback; edgekit agent, which follows a fleet's roll-outs."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_result
from edgekit_runtime.system.errors import EdgekitError, InstallError, TelemetryError, WindowError

if TYPE_CHECKING:
    from edgekit_runtime.install import BoardIdentity, Generation, InstallResult, Status

trial = opt.shared(
    "--trial",
    type=click.Choice(["here", "app"]),
    default="here",
    show_default=True,
    help="Run the trial before activation, or in the live application.",
)


@click.command()
@click.argument("place", type=opt.PATH, metavar="[ROOT]", required=False)
@opt.root(required=False, help="The same as ROOT.")
@opt.as_json
def status(place: Path | None, root: Path | None, as_json: bool) -> None:
    """Show the active version of an install ROOT, the rollback target and the last install.

    Recovers from a power cut and removes unused versions, as install and rollback do. It keeps the active and the
    previous version, the one on trial, what an application has open, and the download of an interrupted install.
    Exits 0 if the root can be read.

    \b
    edgekit status /var/lib/edgekit/camera
    """
    from edgekit_runtime.install import status as found_in

    named = place or root
    if named is None or (place and root):
        raise click.UsageError("Name one install root: ROOT, or --root DIR.")
    found = found_in(named)
    print_result(found.as_json(), _status_lines(found), as_json)


def _status_lines(found: Status) -> Iterator[str]:
    from edgekit_runtime.install.root_objects import in_words
    from edgekit_runtime.install.trial_verdict import TrialTerms

    yield str(found.root)
    if found.current is None and found.refusal is None:
        yield "  nothing is installed here yet"
    elif found.current is None:
        yield "  no version is active"
    else:
        yield f"  active     {_label(found.current, found.recipe)}, {found.state}"
        yield f"  trust      {found.current.signature_text}"
    if found.refusal is not None:
        yield f"  problem    {'it does not open: ' if found.current is not None else ''}{found.refusal}"
    if found.seen is not None:
        failed = f", {found.failed_starts} failed start{'s' * (found.failed_starts > 1)}" if found.failed_starts else ""
        asked, seen = TrialTerms(), found.seen
        counted = f"{seen.answers} of {asked.answers} answers, {seen.seconds:.0f} of {asked.seconds:.0f} s"
        yield f"  trial      {counted}{failed}"
    if found.previous is not None:
        unsigned = ", UNSIGNED" if found.previous.unsigned else ""
        yield f"  rollback   to {_label(found.previous, found.previous_recipe)}{unsigned}"
        if found.previous_refusal is not None:
            yield f"  problem    it does not open: {found.previous_refusal}"
    if found.rollout_seq is not None:
        yield f"  accepts    rollout_seq {found.rollout_seq + 1} and higher"
    for file in found.trust:
        yield f"  trusts     {in_words(file)}"
    if found.profile is not None:
        yield f"  board      {found.profile}, as `edgekit install --profile` said"
    if found.unfinished is not None:
        doing = "is running" if found.busy else "is unfinished: the same install resumes it, another one removes it"
        yield f"  install    of {found.unfinished.source}: {found.unfinished.state}; it {doing}"
    if found.in_use:
        yield f"  in use     {', '.join(found.in_use)}: removed once the application that has it open closes it"
    if found.freed is not None:
        yield f"  freed      {found.freed['removed']} removed, {found.freed['bytes']:,} bytes, at {found.freed['at']}"
    if found.failure is not None:
        yield f"  refused    {found.failure.at}: {found.failure.what} ({found.failure.code})"


def _label(made: Generation, recipe: str | None) -> str:
    what = ", ".join(filter(None, (recipe, made.bundle[:12])))
    return f"generation {made.number}: {made.name} version {made.version} ({what})"


@click.command()
@opt.root()
@click.option(
    "--to",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Switch to generation N, as `edgekit status` numbers them. Default: the previous one.",
)
@opt.trust()
@opt.as_json
def rollback(root: Path, number: int | None, trust: tuple[Path, ...], as_json: bool) -> None:
    """Go back to the previous generation, or give up the one on trial.

    With --to, go to any generation that is still stored.

    \b
    edgekit rollback --root /var/lib/edgekit/camera
    edgekit rollback --root /var/lib/edgekit/camera --to 4
    """
    from edgekit_runtime.install import activate
    from edgekit_runtime.install import rollback as switch_back

    if number is not None:
        print_switch(as_json, "activated", activate(root, number, trust=trust), "is active")
    else:
        print_switch(as_json, "rolled-back", switch_back(root, trust=trust), "is active again")


def print_switch(as_json: bool, event: str, made: Generation | None, does: str) -> None:
    """Print which generation is active from now on, None for none."""
    lines = ["nothing is active: there was no previous generation"]
    if made is not None:
        lines = [f"generation {made.number} {does}: {made.name} version {made.version}", made.signature_text]
    print_result({"event": event, "generation": made.as_json() if made else None}, lines, as_json)


@click.command()
@click.argument("bundle", metavar="BUNDLE|URL", required=False)
@opt.root(help="An existing install root or a new directory.")
@opt.trust()
@opt.allow_unsigned
@opt.profile(
    help="This board's profile, remembered by this root. Default: the remembered one, else what `edgekit "
    "profiles detect` finds.",
)
@trial()
@click.option("--commit", is_flag=True, help="Commit the generation on trial instead of installing a BUNDLE.")
@opt.secret
@opt.as_json
def install(bundle: str | None, root: Path, as_json: bool, profile: str | None, commit: bool, **options: Any) -> None:
    """Install BUNDLE, a file or a URL, in the install root DIR.

    It is downloaded, verified, staged, self-tested, tried, and activated in one atomic switch.

    If anything fails, the active bundle stays active. Run the same command again to resume an interrupted download or
    install.

    \b
    edgekit install net.ekb --root /var/lib/edgekit/camera --trust key.pub.pem
    edgekit install https://models.example/net.ekb --root /var/lib/edgekit/camera --trial app
    edgekit install --commit --root /var/lib/edgekit/camera       # ends that trial; `edgekit rollback` gives it up
    """
    if commit:
        from edgekit_runtime.install import activate

        if idle := opt.options_given("bundle", "profile", "allow_unsigned", "trial", "secret"):
            raise click.UsageError(f"--commit installs nothing: leave out {', '.join(idle)}.")
        print_switch(as_json, "activated", activate(root, trust=options["trust"]), "is active")
        return
    if bundle is None:
        raise click.UsageError("Missing argument 'BUNDLE|URL'.")
    for name, value in {"BUNDLE": bundle, "--profile": profile}.items():
        if value == "":
            raise click.UsageError(f"{name} is an empty name.")
    from edgekit.cli.progress import console_progress
    from edgekit_runtime.install import FetchOptions, InstallOptions
    from edgekit_runtime.install import install as put

    before = remembered_profile(root)
    with console_progress() as progress:
        asked = InstallOptions(
            trust=tuple(options["trust"]),
            profile=profile,
            board=board_of(profile or before),
            allow_unsigned=options["allow_unsigned"],
            trial=options["trial"],
            secret=options["secret"],
            fetching=FetchOptions(progress=_Bar(progress)),
            waiting=lambda: click.echo("another install is running in this root; waiting", err=True),
        )
        if profile is None and before is not None:
            # An SD card moved to another board keeps its install root
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
    print_result(_json(done), [*_lines(done, before, options["trust"]), *_key_lines(done, options["secret"])], as_json)


class _Bar:
    """Progress of an install, in whole stages and megabytes (1e6 bytes)."""

    def __init__(self, progress: Any) -> None:
        self._progress, self._last = progress, -1

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage != "fetch":
            click.echo(f"{_STAGES[stage]} ...", err=True)
            return
        if total is None:
            return
        whole, here = max(1, round(total / 1e6)), done // 1_000_000
        here = whole if done == total else min(here, whole - 1)
        if here != self._last:
            self._last = here
            self._progress("fetch (MB)", here, whole)


_STAGES = {"verify": "verifying", "selftest": "self-test", "trial": "trial"}


def board_of(profile: str | None, *, quiet: bool = False) -> BoardIdentity:
    """The given or the detected profile; a note on stderr if there is none, unless quiet."""
    from edgekit_runtime.install import BoardIdentity

    name, why = (profile, "") if profile is not None else _detected()
    if name is None:
        if not quiet:
            unknown = f"unknown board ({why}); only the bundle's architecture is checked."
            click.echo(f"{unknown} Name it with --profile", err=True)
        return BoardIdentity()
    return BoardIdentity((name, *_hosts_like(name)))


def _hosts_like(name: str) -> list[str]:
    """Profiles of hosts that a machine may be which shows nothing but its architecture."""
    from edgekit_profiles import open_catalogue

    catalogue = open_catalogue(())
    every = {one.name: one for one in map(catalogue.load, catalogue.boards())}
    if name not in every or every[name].kind != "generic":
        return []
    return [one.name for one in every.values() if one.kind == "host" and one.arch == every[name].arch]


def with_profile_hint(error: EdgekitError, profile: str | None) -> EdgekitError:
    """The error, with the nearest names if it refuses an unknown profile."""
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
    """Where the application looks for the key, if it would not find the given one."""
    from edgekit_runtime.bundle.secrets import find_secret

    if given is None or done.encrypted_with is None:
        return []
    with contextlib.suppress(EdgekitError):
        found = find_secret()
        if found is not None and found.only(done.encrypted_with):
            return []
    places = "as /etc/edgekit/secret, by EDGEKIT_SECRET=file:PATH, or open_bundle(..., secret='file:PATH')"
    return [f"{'key':<10} not remembered: the application needs it too, {places}"]


def _lines(done: InstallResult, before: str | None, trust: tuple[Path, ...]) -> list[str]:
    """before: the profile that the root remembered. trust: of --trust."""
    from edgekit_runtime.install import Root
    from edgekit_runtime.install.root_objects import in_words

    made = done.generation
    tried = done.trial or done.selftest  # its recipe answers
    named = f"{made.name} version {made.version} ({f'{tried.recipe}, ' if tried else ''}{made.size / 1e6:,.1f} MB)"
    lines = []
    if trust:
        with contextlib.suppress(EdgekitError):  # it is installed, whatever the disk says now
            lines += [f"{'trusts':<10} {in_words(name)}" for name in Root(done.root).slot().trust]
    if done.profile != before:
        was = "; before, it was " + before if before else ""
        lines.append(f"{'board':<10} {done.profile}, which this root remembers{was}")
    lines.append(made.signature_text)
    if done.already:
        return [*lines, f"generation {made.number} is already active: {named}"]
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
        lines.append(f"generation {made.number} is active{again}: {named}")
    return lines


@click.command()
@opt.root(help="The install root to keep up to date.")
@opt.broker(help="The fleet's MQTT broker: mqtts://user:password@host:8883, or file:PATH with the URL.")
@click.option("--hawkbit", metavar="URL", help="Follow a hawkBit server instead: https://hawkbit.example/DEFAULT.")
@click.option("--hawkbit-token", "token", metavar="SOURCE", help="The hawkBit target token: env:NAME or file:PATH.")
@opt.device(required=True, help="This board's id, the same as in its telemetry.")
@opt.trust()
@opt.secret
@opt.profile(help="This board's profile, as for `install`.")
@trial()
@click.option("--then", metavar="COMMAND", help="Run after each switch, without a shell: 'systemctl restart camera'.")
@click.option(
    "--spread", type=click.FloatRange(0, 86400), default=60.0, show_default=True, metavar="SECONDS",
    help="Delay each download by a random time up to this, to spread a fleet's load.",
)  # fmt: skip
@opt.as_json
def agent(
    root: Path, broker: str | None, hawkbit: str | None, token: str | None, device: str, profile: str | None,
    then: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Install what the fleet server orders and report the result, until Ctrl-C.

    Every bundle must be signed as this root or machine requires; an order alone is not enough.

    \b
    edgekit agent --root /var/lib/edgekit/camera --broker mqtts://porch-1:secret@broker:8883 --device porch-1
    """
    if (broker is None) == (hawkbit is None) or (hawkbit is None) != (token is None):
        raise click.UsageError("Pass either --broker, or --hawkbit with --hawkbit-token.")
    import logging

    from edgekit.cli.progress import until_signalled
    from edgekit_runtime.install import InstallOptions
    from edgekit_runtime.install.agent import Agent, AgentOptions

    asked = InstallOptions(
        trust=tuple(options["trust"]),
        profile=profile,
        board=board_of(profile or remembered_profile(root)),
        trial=options["trial"],
        secret=options["secret"],
    )
    given = AgentOptions(
        broker or "", device, root, asked, tuple(shlex.split(then or "")), options["spread"], hawkbit=hawkbit or "",
        token=opt.read_source(token, "--hawkbit-token", "the token") if token else "",
    )  # fmt: skip
    try:
        running = Agent(given)
    except WindowError as error:
        raise TelemetryError(error.what, do="Pass something like --device porch-1") from error
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    with until_signalled(running.link.wake) as stop:
        line = f"agent of {device}: {root} follows {running.link.broker}   (Ctrl-C stops it)"
        print_result({"device": device, "root": str(root), "broker": str(running.link.broker)}, [line], as_json)
        running.run(stop)
