"""edgekit profiles detect: which board this is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.options import PATH, as_json, catalogue_of, print_json, profile_path

if TYPE_CHECKING:
    from edgekit_profiles.detect import Detected
    from edgekit_profiles.facts import Cluster, Facts

__all__ = ["detect"]


@click.command()
@click.option(
    "--files",
    "root",
    type=PATH,
    metavar="DIR",
    help="Read copies of a board's files below DIR (proc/cpuinfo, proc/device-tree, etc/os-release, ...) and not "
    "this machine's.",
)
@click.option("--toml", "as_toml", is_flag=True, help="Print a profile to begin with, and nothing else.")
@profile_path
@as_json
def detect(root: Path | None, as_toml: bool, profile_paths: tuple[Path, ...], as_json: bool) -> int:
    """Find the profile of the machine this runs on, say how sure that is, and what is not as in the profile.

    A board without a profile is shown the nearest one, and a file to begin its own with. Exits 1 when no profile stands
    for it.

    \b
    edgekit profiles detect
    """
    from edgekit_profiles.detect import detect as find
    from edgekit_profiles.errors import ProfileError
    from edgekit_profiles.facts import read_facts

    if as_toml and as_json:
        raise click.UsageError("--toml and --json exclude each other.")
    if root is not None and not root.is_dir():
        raise ProfileError("is no folder", where=str(root), do="Pass the folder that holds proc, sys and etc")
    found = find(read_facts(root), catalogue_of(profile_paths))
    if as_toml:
        click.echo(found.toml, nl=False)
    elif as_json:
        print_json(_json(found))
    else:
        for line in _lines(found):
            click.echo(line)
    return 1 if found.profile is None else 0


def _json(found: Detected) -> dict[str, Any]:
    return {
        "profile": found.profile.name if found.profile else None,
        "sure": found.sure,
        "why": found.why,
        "differences": [asdict(item) for item in found.differences],
        "facts": asdict(found.facts),
        "toml": found.toml,
    }


def _lines(found: Detected) -> Iterator[str]:
    profile = found.profile
    yield f"{profile.name}: {profile.title}, {profile.os.name}" if profile else "no profile stands for this machine"
    yield f"  sure     {found.sure}: {found.why}"
    yield f"  here     {', '.join(_here(found.facts))}"
    for item in found.differences:
        yield f"  differs  {item.what}: {item.here} here, {item.profile} in the profile; {item.means}"
    if profile is not None and profile.notes:
        yield f"  note     {profile.notes}"
    if profile is not None and found.sure in ("certain", "likely"):
        yield f"  next     edgekit build MODEL --profile {profile.name} --calibration DATA"
        return
    if not found.toml:
        return
    from edgekit_profiles.detect import starting_name

    name = starting_name(found.facts)
    yield f"  next     edgekit profiles detect --toml > {name}.toml; then edgekit build MODEL --profile {name}.toml"
    yield ""
    yield from found.toml.splitlines()


def _here(facts: Facts) -> Iterator[str]:
    yield from (_cores(cluster) for cluster in facts.clusters)
    if facts.ram_mb is not None:
        yield f"{facts.ram_mb:,} MB"
    yield f"{facts.machine or 'unknown'} user land"
    if facts.system:
        yield facts.system
    if facts.python:
        yield f"Python {facts.python}"
    if facts.glibc:
        yield f"glibc {facts.glibc}"
    if facts.governor and facts.governor != "performance":
        yield f"governor {facts.governor}"


def _cores(cluster: Cluster) -> str:
    clock = f" at {cluster.clock_ghz:g} GHz" if cluster.clock_ghz else ""
    return f"{cluster.count} x {cluster.type}{clock}"
