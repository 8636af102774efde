"""edgekit profiles: the known boards, which one this is, and its speed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, print_result, refuse_unwritable, write_json
from edgekit_runtime.system.errors import sentences

if TYPE_CHECKING:
    from edgekit_profiles import Core, Profile, RuntimeSupport
    from edgekit_profiles.detect import DetectedBoard

toml = opt.shared("--toml", "as_toml", is_flag=True, help="Print only a profile, as a template.")


@click.group()
def profiles() -> None:
    """Show, check and measure board profiles."""


@profiles.command("list")
@click.argument("words", nargs=-1)
@opt.profile_path
@opt.as_json
def list_(words: tuple[str, ...], profile_paths: tuple[Path, ...], as_json: bool) -> int:
    """List all profiles, or those that match WORDS.

    Each WORD must be in the name or the description.

    Exits 1 if none matches or a profile file is invalid; the others are still listed.

    \b
    edgekit profiles list raspberry 64-bit
    """
    from edgekit_profiles import installable

    catalogue = opt.catalogue_of(profile_paths)
    found = [profile for name in catalogue.names() if _has(profile := catalogue.load(name), words)]
    boards = [(profile, installable(profile)) for profile in found]
    broken = catalogue.broken()
    if as_json:
        listed = [
            {
                "name": profile.name,
                "title": profile.title,
                "kind": profile.kind,
                "arch": profile.arch,
                "os": profile.os.name,
                "engines": [s.engine for s in support if s.ok],
                "modes": [mode.name for mode in profile.modes],
                "origin": catalogue.origin(profile),
            }
            for profile, support in boards
        ]
        print_json({"profiles": listed, "broken": [error.as_json() for error in broken]})
        return 1 if broken or not boards else 0
    width = max((len(profile.name) for profile, _ in boards), default=0)
    for profile, support in boards:
        engines = ", ".join(s.engine for s in support if s.ok) or "no engine installs there"
        click.echo(f"{profile.name:<{width}}  {profile.title}, {profile.os.name}: {engines}")
    if not boards:
        click.echo("no profile matches all of these words; `edgekit profiles list` shows every profile", err=True)
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


@profiles.command()
@click.argument("name", shell_complete=opt.COMPLETE["profiles"])
@opt.profile_path
@toml(help="Print the profile's file, as a template for your own.")
@opt.as_json
def show(name: str, profile_paths: tuple[Path, ...], as_toml: bool, as_json: bool) -> None:
    """Show a board, its sources and its engines.

    NAME is a profile from `edgekit profiles list`, or a profile.toml.

    \b
    edgekit profiles show raspberry-pi-4
    """
    from edgekit_profiles import installable

    if as_toml and as_json:
        raise click.UsageError("--toml and --json exclude each other.")
    catalogue = opt.catalogue_of(profile_paths)
    profile = catalogue.load(name)
    if as_toml:
        click.echo(catalogue.text(name), nl=False)
        return
    support = installable(profile)
    images = [other.name for other in catalogue.images(name) if other.image != profile.image]
    lines = [*_lines(profile, support), *([f"  images   {', '.join(images)}"] if images else [])]
    print_result({"profile": asdict(profile), "engines": [asdict(s) for s in support]}, lines, as_json)


def _lines(profile: Profile, support: tuple[RuntimeSupport, ...]) -> Iterator[str]:
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
        package = accelerator.debian.get(system.debian)
        tried = f"tried first, through {accelerator.library}{f' of {package}' if package else ''}"
        yield f"  {accelerator.kind:<8} {accelerator.name}; {accelerator.unusable(system) or tried}"
    sizes = {"L1d": profile.caches.l1d_kb, "L2": profile.caches.l2_kb, "L3": profile.caches.l3_kb}
    if any(sizes.values()):
        yield f"  caches   {', '.join(f'{name} {kb:,} KB' for name, kb in sizes.items() if kb)}"
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
    known = [f"{what} {celsius:g} C" for what, celsius in steps.items() if celsius is not None]
    if known:
        yield f"  thermal  {', '.join(known)}"
    watts = [f"{value:g} W {when}" for value, when in ((power.idle_w, "idle"), (power.load_w, "under load")) if value]
    if watts or power.supply:
        yield f"  power    {', '.join([*watts, *([f'supply {power.supply}'] if power.supply else [])])}"
    for anchor in profile.anchors:
        times = ", ".join(f"{precision} {ms:g} ms" for precision, ms in anchor.ms.items())
        setting = f"{anchor.framework}, {anchor.threads} thread{'s' * (anchor.threads != 1)}, {anchor.clock_ghz:g} GHz"
        yield f"  anchor   {anchor.model}, {setting}: {times} ({anchor.grade}: {anchor.source})"
    for s in support:
        yield f"  {'yes' if s.ok else 'no ':<8} {s.engine}: {s.reason}"
    for note in filter(None, (profile.notes, profile.thermal.notes)):
        yield f"  note     {note}"
    for key, source in profile.sources.items():
        yield f"  source   {key}: {source}"


def _core(core: Core) -> str:
    simd = f", {', '.join(core.simd)}" if core.simd else ""
    return f"{core.count} x {core.type} at {core.clock_ghz:g} GHz{simd}"


@profiles.command()
@click.argument("files", nargs=-1, required=True, type=opt.PATH, metavar="FILE...")
@opt.as_json
def validate(files: tuple[Path, ...], as_json: bool) -> int:
    """Check profile files or folders, and print every error.

    Exits 1 if there is one.

    \b
    edgekit profiles validate our-board.toml
    """
    from edgekit_profiles.catalogue import validate as check

    results = [result for file in files for result in check(file)]
    shown, lines = [], []
    for result in results:
        errors = [{"key": error.key, "what": error.what, "do": error.do} for error in result.errors]
        shown.append({"file": result.file, "errors": errors, "warnings": list(result.warnings)})
        lines += [f"{result.file}: {sentences(error.what, error.do)}" for error in result.errors]
        lines += [f"{result.file}: warning: {warning}" for warning in result.warnings]
        lines += [] if result.errors else [f"{result.file}: a profile ({', '.join(result.names)})"]
    ok = not any(result.errors for result in results)
    print_result({"ok": ok, "files": shown}, lines, as_json)
    return 0 if ok else 1


@profiles.command()
@click.argument("first", shell_complete=opt.COMPLETE["profiles"])
@click.argument("second", shell_complete=opt.COMPLETE["profiles"])
@opt.profile_path
@opt.as_json
def diff(first: str, second: str, profile_paths: tuple[Path, ...], as_json: bool) -> None:
    """Show what differs between two profiles.

    Each figure has its source. Equal values are left out.

    \b
    edgekit profiles diff raspberry-pi-4 raspberry-pi-5
    """
    from edgekit_profiles.catalogue import difference

    catalogue = opt.catalogue_of(profile_paths)
    one, other = catalogue.load(first), catalogue.load(second)
    found = difference(one, other)
    lines = [] if found else [f"{one.name} and {other.name} are identical"]
    width = max((len(item.key) for item in found), default=0)
    printed = ("", "")
    for item in found:
        lines.append(f"{item.key:<{width}}  {_text_of(item.first)} -> {_text_of(item.second)}")
        sources = (item.first_source, item.second_source)
        if sources != printed and sources[0] != sources[1]:  # one source may stand for several figures in a row
            signed = zip("-+", sources, strict=True)
            lines += [f"{'':<{width}}  {sign} {source}" for sign, source in signed if source]
        printed = sources
    record = {"first": one.name, "second": other.name, "differences": [asdict(item) for item in found]}
    print_result(record, lines, as_json)


def _text_of(value: Any) -> str:
    if value is None:
        return "nothing"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@profiles.command()
@click.option(
    "--anchors",
    "folder",
    type=opt.PATH,
    metavar="DIR",
    help="Folder with the network's files, from the board's package. Default: generated, with LiteRT or onnx.",
)
@opt.threads(type=click.IntRange(1, 64), multiple=True, help="Threads to time; repeatable. Default: 1 and up to 4.")
@opt.profile(help="The board's profile. Default: what `edgekit profiles detect` finds.")
@opt.output("FILE", "Write the anchor file there.")
@opt.profile_path
@opt.as_json
def measure(
    folder: Path | None,
    threads: tuple[int, ...],
    profile: str | None,
    output: Path | None,
    profile_paths: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Time MobileNetV1 here, for `estimate --anchor`.

    It runs in float32 and int8 with every installed engine, and takes a few seconds.

    \b
    edgekit profiles measure -o our-pi.json                       # on the board
    edgekit estimate net.ekb --anchor our-pi.json                 # on the workstation

    Exits 1 if the board was throttled or busy during the run: such times are not reliable.
    """
    from edgekit.boards.anchoring import MeasurePlan, default_threads, measure_anchors
    from edgekit_profiles.detect import detect
    from edgekit_profiles.facts import read_facts

    if output is not None:
        refuse_unwritable(output)
    facts = read_facts()
    catalogue = opt.catalogue_of(profile_paths)
    if profile is None:
        board = detect(facts, catalogue)
        known = board.profile if board.sure in ("certain", "likely") else None
    else:
        known = catalogue.load(profile)
    name = known.name if known else ""
    plan = MeasurePlan(threads=threads or default_threads(), profile=name, model=facts.model)
    found = measure_anchors(folder, plan, lambda line: click.echo(f"timing {line}", err=True))
    if output is not None:
        write_json(output, found)
    print_result(found, measure_lines(found, output, known), as_json)
    return 0 if found["steady"] else 1


def measure_lines(found: dict[str, Any], output: Path | None, known: Profile | None) -> Iterator[str]:
    from edgekit_profiles import has_rates

    board, now = found["board"], found["conditions"]
    yield (
        f"MobileNetV1 1.0 224 on {board['model'] or board['machine']}: "
        f"{board['profile'] or 'no profile for this board'}"
    )
    yield f"  {'engine':<24} {'precision':<10} {'threads':>7} {'best':>9} {'median':>9} {'p95':>9}  ms"
    for one in found["times"]:
        engine = f"{one['engine']} {one['engine_version']}"
        yield (
            f"  {engine:<24} {one['precision']:<10} {one['threads']:>7} {one['min_ms']:>9.2f} {one['p50_ms']:>9.2f} "
            f"{one['p95_ms']:>9.2f}"
        )
    for line in found["failed"]:
        yield f"  not timed  {line}"
    during = now["during"]
    clock, heat = during["frequency_mhz"], during["temperature_c"]
    ran = f"{clock['min']} to {clock['max']} MHz" if clock else "unknown"
    yield f"  clock      {ran}, governor {now['governor'] or 'unknown'}"
    warmed = f"{heat['before']:g} to {heat['after']:g} C" if heat else "unknown"
    yield f"  heat       {warmed}"
    slowed = {True: ", ".join(during["throttled_by"]), False: "no", None: "unknown"}[during["throttled"]]
    yield f"  throttled  {slowed}"
    if now["after"]["power_mode"] is not None:
        yield f"  mode       {now['after']['power_mode']}"
    for reason in found["changed"]:
        yield f"  not steady {reason}"
    if found["changed"]:
        yield "  next       fix that and measure again: the workstation rejects this file"
    elif known is not None and not has_rates(known):  # no anchor is ever asked for there
        yield (
            f"  next       no estimates exist for {known.core.type} cores: measure the bundle itself here, "
            "and use that:"
        )
        yield (
            f"             edgekit bench BUNDLE -o RECORD.json; edgekit estimate BUNDLE --profile {known.name} "
            "--record RECORD.json"
        )
    elif output is not None:
        name = board["profile"] or "NAME"
        yield f"  next       on the workstation: edgekit estimate BUNDLE --profile {name} --anchor {output.name}"


@profiles.command()
@click.option(
    "--files",
    "root",
    type=opt.PATH,
    metavar="DIR",
    help="Read copies of a board's files in DIR (proc/cpuinfo, proc/device-tree, etc/os-release, ...) instead of this "
    "machine's.",
)
@toml()
@opt.profile_path
@opt.as_json
def detect(root: Path | None, as_toml: bool, profile_paths: tuple[Path, ...], as_json: bool) -> int:
    """Find the profile of this machine.

    Shows how certain the match is and what differs from the profile.

    For a board without a profile, shows the nearest one and a template for your own, and exits 1.

    \b
    edgekit profiles detect
    """
    from edgekit_profiles.detect import detect as find
    from edgekit_profiles.errors import ProfileError
    from edgekit_profiles.facts import read_facts

    if as_toml and as_json:
        raise click.UsageError("--toml and --json exclude each other.")
    if root is not None and not root.is_dir():
        raise ProfileError("not a directory", where=str(root), do="Pass the folder that holds proc, sys and etc")
    found = find(read_facts(root), opt.catalogue_of(profile_paths))
    if as_toml:
        click.echo(found.toml, nl=False)
    else:
        record = {
            "profile": found.profile.name if found.profile else None,
            "sure": found.sure,
            "why": found.why,
            "differences": [asdict(item) for item in found.differences],
            "facts": asdict(found.facts),
            "toml": found.toml,
        }
        print_result(record, _detected_lines(found), as_json)
    return 1 if found.profile is None else 0


def _detected_lines(found: DetectedBoard) -> Iterator[str]:
    profile, facts = found.profile, found.facts
    clocks = (f" at {one.clock_ghz:g} GHz" if one.clock_ghz else "" for one in facts.clusters)
    here = [f"{one.count} x {one.type}{clock}" for one, clock in zip(facts.clusters, clocks, strict=True)]
    here += [f"{facts.ram_mb:,} MB"] if facts.ram_mb is not None else []
    here += [f"{facts.machine or 'unknown'} user land"]
    here += [facts.system] if facts.system else []
    here += [f"Python {facts.python}"] if facts.python else []
    here += [f"glibc {facts.glibc}"] if facts.glibc else []
    here += [f"governor {facts.governor}"] if facts.governor and facts.governor != "performance" else []
    yield f"{profile.name}: {profile.title}, {profile.os.name}" if profile else "no profile matches this machine"
    yield f"  sure     {found.sure}: {found.why}"
    yield f"  here     {', '.join(here)}"
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

    name = starting_name(facts)
    yield f"  next     edgekit profiles detect --toml > {name}.toml; then edgekit build MODEL --profile {name}.toml"
    yield ""
    yield from found.toml.splitlines()
