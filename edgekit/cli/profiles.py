"""edgekit profiles: the boards edgekit knows, and those of the user's own folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.detect import detect
from edgekit.cli.measure import measure
from edgekit.cli.options import PATH, as_json, catalogue_of, print_json, profile_path
from edgekit_runtime.errors import sentences

if TYPE_CHECKING:
    from edgekit_profiles import Catalogue, Core, Profile, ProfileError, RuntimeSupport
    from edgekit_profiles.catalogue import Difference

__all__ = ["profiles"]


@click.group()
def profiles() -> None:
    """The boards edgekit knows, as data with sources."""


profiles.add_command(detect)
profiles.add_command(measure)


@profiles.command("list")
@click.argument("words", nargs=-1)
@profile_path
@as_json
def list_(words: tuple[str, ...], profile_paths: tuple[Path, ...], as_json: bool) -> int:
    """One line a profile; with WORDS those whose name or description has them all.

    Exits 1 when no profile has them, or when a file of the folders given is broken; the others are listed all the same.

    \b
    edgekit profiles list raspberry 64-bit
    """
    from edgekit_profiles import installable

    catalogue = catalogue_of(profile_paths)
    found = [profile for name in catalogue.names() if _has(profile := catalogue.load(name), words)]
    boards = [(profile, installable(profile)) for profile in found]
    broken = catalogue.broken()
    if as_json:
        listed = [_brief(profile, support, catalogue) for profile, support in boards]
        print_json({"profiles": listed, "broken": [error.as_json() for error in broken]})
        return 1 if broken or not boards else 0
    width = max((len(profile.name) for profile, _ in boards), default=0)
    for profile, support in boards:
        engines = ", ".join(s.engine for s in support if s.ok) or "no engine installs there"
        click.echo(f"{profile.name:<{width}}  {profile.title}, {profile.os.name}: {engines}")
    if not boards:
        click.echo("no profile has all of these words; `edgekit profiles list` shows every profile", err=True)
    for error in broken:
        click.echo(f"broken: {error}", err=True)
    return 1 if broken or not boards else 0


def _has(profile: Profile, words: tuple[str, ...]) -> bool:
    """`pi4` is the words pi and 4; three letters of a word are enough for it."""
    described = f"{profile.name} {profile.title} {profile.soc} {profile.core.type} {profile.os.name}"
    known = _words(described)
    return all(
        word in known or (len(word) >= 3 and any(other.startswith(word) for other in known))
        for word in _words(" ".join(words))
    )


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+|[0-9]+", text.lower()))


def _brief(profile: Profile, support: tuple[RuntimeSupport, ...], catalogue: Catalogue) -> dict[str, Any]:
    return {
        "name": profile.name,
        "title": profile.title,
        "kind": profile.kind,
        "arch": profile.arch,
        "os": profile.os.name,
        "engines": [s.engine for s in support if s.ok],
        "modes": [mode.name for mode in profile.modes],
        "origin": catalogue.origin(profile),
    }


@profiles.command()
@click.argument("name", shell_complete=completion.profiles)
@profile_path
@click.option("--toml", "as_toml", is_flag=True, help="Print the profile's file, to begin one of your own with.")
@as_json
def show(name: str, profile_paths: tuple[Path, ...], as_toml: bool, as_json: bool) -> None:
    """Everything known of board NAME (or a profile.toml), and what installs there.

    \b
    edgekit profiles show raspberry-pi-4
    """
    from edgekit_profiles import installable

    if as_toml and as_json:
        raise click.UsageError("--toml and --json exclude each other.")
    catalogue = catalogue_of(profile_paths)
    profile = catalogue.load(name)
    if as_toml:
        click.echo(catalogue.text(name), nl=False)
        return
    support = installable(profile)
    if as_json:
        print_json({"profile": asdict(profile), "engines": [asdict(s) for s in support]})
        return
    images = [other.name for other in catalogue.images(name) if other.image != profile.image]
    for line in (*_lines(profile), *_origins(profile, support)):
        click.echo(line)
    if images:
        click.echo(f"  images   {', '.join(images)}")


def _lines(profile: Profile) -> Iterator[str]:
    memory, system, thermal, power = profile.memory, profile.os, profile.thermal, profile.power
    yield f"{profile.name}: {profile.title}"
    yield f"  soc      {profile.soc}, {profile.arch}"
    yield f"  cores    {_core(profile.core)}; engines get {profile.threads} thread{'s' * (profile.threads != 1)}"
    if profile.little is not None:
        yield f"  slower   {_core(profile.little)}"
    for mode in profile.modes:
        now = ", set" if mode.name == profile.power_mode else ""
        yield f"  mode     {mode.name}: {mode.cores} cores at {mode.clock_ghz:g} GHz{now}"
    for accelerator in profile.accelerators:
        yield f"  {accelerator.kind:<8} {accelerator.name}; edgekit's engines run on the cores"
    caches = [f"{name} {kb:,} KB" for name, kb in zip(("L1d", "L2", "L3"), _caches(profile), strict=True) if kb]
    if caches:
        yield f"  caches   {', '.join(caches)}"
    speed = f", {memory.bandwidth_gbps:g} GB/s" if memory.bandwidth_gbps else ""
    sold = f" (sold with {', '.join(f'{mb:,}' for mb in memory.sold_mb)})" if len(memory.sold_mb) > 1 else ""
    yield f"  memory   {memory.ram_mb:,} MB{sold}{speed}"
    versions = f": Python {system.python}, glibc {system.glibc}" if system.glibc else ""
    yield f"  system   {system.name}{versions}"
    steps = {
        f"held to {thermal.soft_limit_ghz} GHz from": thermal.soft_limit_c,
        "slows down from": thermal.throttle_c,
        "stays below": thermal.limit_c,
        "turns off at": thermal.shutdown_c,
    }
    told = [f"{what} {celsius:g} C" for what, celsius in steps.items() if celsius is not None]
    if told:
        yield f"  thermal  {', '.join(told)}"
    watts = [f"{value:g} W {when}" for value, when in ((power.idle_w, "idle"), (power.load_w, "under load")) if value]
    if watts or power.supply:
        yield f"  power    {', '.join([*watts, *([f'supply {power.supply}'] if power.supply else [])])}"


def _origins(profile: Profile, support: tuple[RuntimeSupport, ...]) -> Iterator[str]:
    for anchor in profile.anchors:
        times = ", ".join(f"{precision} {ms:g} ms" for precision, ms in anchor.ms.items())
        setting = f"{anchor.framework}, {anchor.threads} thread{'s' * (anchor.threads != 1)}, {anchor.clock_ghz:g} GHz"
        yield f"  anchor   {anchor.model}, {setting}: {times} ({anchor.grade}: {anchor.source})"
    for s in support:
        yield f"  {'yes' if s.ok else 'no ':<8} {s.engine}: {s.reason}"
    for note in (profile.notes, profile.thermal.notes):
        if note:
            yield f"  note     {note}"
    for key, source in profile.sources.items():
        yield f"  source   {key}: {source}"


def _core(core: Core) -> str:
    simd = f", {', '.join(core.simd)}" if core.simd else ""
    return f"{core.count} x {core.type} at {core.clock_ghz:g} GHz{simd}"


def _caches(profile: Profile) -> tuple[int | None, int | None, int | None]:
    return profile.caches.l1d_kb, profile.caches.l2_kb, profile.caches.l3_kb


@profiles.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
@as_json
def validate(files: tuple[Path, ...], as_json: bool) -> int:
    """Check profile files, or folders of them, and print every mistake at once. Exits 1 when there is one.

    \b
    edgekit profiles validate our-board.toml
    """
    from edgekit_profiles.catalogue import validate as check

    results = [result for file in files for result in check(file)]
    if as_json:
        print_json(
            {
                "ok": all(not result.errors for result in results),
                "files": [
                    {
                        "file": result.file,
                        "errors": [_mistake(error) for error in result.errors],
                        "warnings": list(result.warnings),
                    }
                    for result in results
                ],
            }
        )
    else:
        for result in results:
            for error in result.errors:
                click.echo(f"{result.file}: {sentences(error.what, error.do)}")
            for warning in result.warnings:
                click.echo(f"{result.file}: warning: {warning}")
            if not result.errors:
                click.echo(f"{result.file}: a profile ({', '.join(result.names)})")
    return 1 if any(result.errors for result in results) else 0


def _mistake(error: ProfileError) -> dict[str, str]:
    return {"key": error.key, "what": error.what, "do": error.do}


@profiles.command()
@click.argument("first", shell_complete=completion.profiles)
@click.argument("second", shell_complete=completion.profiles)
@profile_path
@as_json
def diff(first: str, second: str, profile_paths: tuple[Path, ...], as_json: bool) -> None:
    """What differs between two profiles, with the source of each figure. What is the same is left out.

    \b
    edgekit profiles diff raspberry-pi-4 raspberry-pi-5
    """
    from edgekit_profiles.catalogue import difference

    catalogue = catalogue_of(profile_paths)
    one, other = catalogue.load(first), catalogue.load(second)
    found = difference(one, other)
    if as_json:
        print_json({"first": one.name, "second": other.name, "differences": [asdict(item) for item in found]})
        return
    if not found:
        click.echo(f"{one.name} and {other.name} describe the same")
    for line in _differences(found):
        click.echo(line)


def _differences(found: tuple[Difference, ...]) -> Iterator[str]:
    width = max((len(item.key) for item in found), default=0)
    told = ("", "")
    for item in found:
        yield f"{item.key:<{width}}  {_shown(item.first)} -> {_shown(item.second)}"
        sources = (item.first_source, item.second_source)
        if sources != told and sources[0] != sources[1]:  # one source may stand for several figures in a row
            yield from (f"{'':<{width}}  {sign} {source}" for sign, source in zip("-+", sources, strict=True) if source)
        told = sources


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
