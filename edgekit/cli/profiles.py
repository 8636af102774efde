"""edgekit profiles: the boards edgekit knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgekit.cli.options import as_json, print_json

if TYPE_CHECKING:
    from edgekit_profiles import Profile, RuntimeSupport

__all__ = ["profiles"]


@click.group()
def profiles() -> None:
    """The boards edgekit knows, as data with sources."""


@profiles.command("list")
@as_json
def list_(as_json: bool) -> None:
    """One line a board."""
    from edgekit_profiles import installable, load, names

    boards = [(profile, installable(profile)) for profile in map(load, names())]
    if as_json:
        print_json(
            {
                "profiles": [
                    {"name": p.name, "title": p.title, "arch": p.arch, "engines": [s.engine for s in support if s.ok]}
                    for p, support in boards
                ]
            }
        )
        return
    width = max(len(p.name) for p, _ in boards)
    for profile, support in boards:
        engines = ", ".join(s.engine for s in support if s.ok) or "no engine installs there"
        click.echo(f"{profile.name:<{width}}  {profile.title}: {engines}")


@profiles.command()
@click.argument("name")
@as_json
def show(name: str, as_json: bool) -> None:
    """Everything known of board NAME (or a profile.toml), and what installs there."""
    from edgekit_profiles import installable, load

    profile = load(name)
    support = installable(profile)
    if as_json:
        print_json({"profile": asdict(profile), "engines": [asdict(s) for s in support]})
        return
    for line in _lines(profile, support):
        click.echo(line)


def _lines(profile: Profile, support: tuple[RuntimeSupport, ...]) -> Iterator[str]:
    core, memory, system = profile.core, profile.memory, profile.os
    simd = f", {', '.join(core.simd)}" if core.simd else ""
    yield f"{profile.name}: {profile.title}"
    yield f"  soc      {profile.soc}, {profile.arch}"
    yield f"  cores    {core.count} x {core.type} at {core.clock_ghz:g} GHz{simd}; engines get {profile.threads} threads"
    speed = f", {memory.bandwidth_gbps:g} GB/s" if memory.bandwidth_gbps else ""
    yield f"  memory   {memory.ram_mb:,} MB{speed}"
    yield f"  system   {system.name}: Python {system.python}, glibc {system.glibc}"
    if profile.thermal.throttle_c is not None:
        yield f"  thermal  slows down from {profile.thermal.throttle_c:g} C"
    for anchor in profile.anchors:
        times = ", ".join(f"{precision} {ms:g} ms" for precision, ms in anchor.ms.items())
        yield f"  anchor   {anchor.model}, {anchor.framework}, {anchor.threads} threads: {times} ({anchor.grade})"
    for s in support:
        yield f"  {'yes' if s.ok else 'no ':<8} {s.engine}: {s.reason}"
    if profile.notes:
        yield f"  note     {profile.notes}"
    for key, source in profile.sources.items():
        yield f"  source   {key}: {source}"
