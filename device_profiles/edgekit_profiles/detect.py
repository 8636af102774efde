"""Which profile a machine has, how sure that is and what differs; a profile for a new board.

    found = detect(read_facts(), open_catalogue())
    found.profile, found.sure, found.differences
    Path("my-board.toml").write_text(starting_toml(read_facts(), load("cortex-a72")))

Rules:
- the board's own name decides (`certain`), then the chip in its device tree (`likely`), then the type of its cores,
  which has a generic profile (`guess`); other machines are `unknown`;
- the user land, cores and clock decide on image and mode; every difference says what follows from it;
- a starting profile is valid; each source says whether the figure was read, is another profile's, or must be looked up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from edgekit_profiles.catalogue import Catalogue
from edgekit_profiles.facts import BoardFacts, Cluster
from edgekit_profiles.profile import Profile, in_mode
from edgekit_profiles.reading import ARCHITECTURES
from edgekit_profiles.wheels import installable, version_parts

_FALLBACK = ("aarch64", "3.11", "2.36")


def starting_name(facts: BoardFacts) -> str:
    """Return the file's name without `.toml`."""
    return re.sub(r"[^a-z0-9]+", "-", facts.model.lower()).strip("-") or "my-board"


def starting_toml(facts: BoardFacts, base: Profile | None) -> str:
    """Write a starting profile. base: the profile that stands for the board, or None."""
    read, other = "read on the board", f"as in the profile {base.name}" if base else "a placeholder: look it up"
    fast = facts.clusters[0] if facts.clusters else None
    base_core = base.core if base else None
    kind = fast.type if fast else base_core.type if base_core else "unknown"
    clock = fast.clock_ghz if fast and fast.clock_ghz else base_core.clock_ghz if base_core else 1.0
    count = fast.count if fast else base_core.count if base_core else 1
    ram = facts.ram_mb or (base.memory.ram_mb if base else 512)
    bandwidth = base.memory.bandwidth_gbps if base else None
    machine = facts.machine or (base.arch if base else _FALLBACK[0])
    python = ".".join(facts.python.split(".")[:2]) or (base.os.python if base else _FALLBACK[1])
    glibc = facts.glibc or (base.os.glibc if base else _FALLBACK[2])
    lines = [
        f"name = {_quoted(starting_name(facts))}            # the file must be called so, with .toml",
        f"title = {_quoted(facts.model or 'My board')}",
        f"arch = {_quoted(machine)}",
        f"soc = {_quoted(facts.compatible[-1] if facts.compatible else 'unknown')}",
        f"threads = {count}",
        "",
        "[core]",
        f"type = {_quoted(kind)}",
        f"count = {count}",
        f"clock_ghz = {clock:g}",
        *([f"simd = {json.dumps(list(facts.simd))}"] if facts.simd else []),
        "",
        "[memory]",
        f"ram_mb = {ram}",
        *(
            [f"bandwidth_gbps = {bandwidth:g}            # look it up: transfers a second times the bus's bytes"]
            if bandwidth
            else ["# bandwidth_gbps = 12.8          # look it up: without it no latency can be estimated"]
        ),
        "",
        "[os]",
        f"name = {_quoted(facts.system or 'Linux')}",
        f"python = {_quoted(python)}",
        f"glibc = {_quoted(glibc)}",
        *([f"debian = {_quoted(facts.codename)}"] if facts.codename in ("bullseye", "bookworm", "trixie") else []),
        "",
        *(["[detect]"] if facts.model or facts.compatible else []),
        *([f"models = {json.dumps([facts.model])}"] if facts.model else []),
        *([f"compatible = {json.dumps([facts.compatible[0]])}"] if facts.compatible else []),
        *([""] if facts.model or facts.compatible else []),
        "[sources]",
        f"core = {_quoted(read if fast and fast.clock_ghz else f'{read}; clock {other}')}",
        f'"memory.ram_mb" = {_quoted(read if facts.ram_mb else other)}',
        *([f'"memory.bandwidth_gbps" = {_quoted(other)}'] if bandwidth else []),
        f"os = {_quoted(read if facts.python and facts.glibc else other)}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML string: JSON's escapes are TOML's, once control characters are replaced."""
    return json.dumps(re.sub(r"[\x00-\x1f\x7f]", " ", text), ensure_ascii=False)


Sure = Literal["certain", "likely", "guess", "unknown"]
_SIZES_MB = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 65536)
_CLOCK = 0.03
"""Clocks with at most this relative difference are the same."""


@dataclass(frozen=True)
class Deviation:
    """One way in which a machine differs from its profile.
    what: `memory`, `clock`, `cores`, `features`, `machine`, `python`, `glibc`.
    here, profile: the two values, in words.
    means: what follows from it.
    """

    what: str
    here: str
    profile: str
    means: str


@dataclass(frozen=True)
class DetectedBoard:
    """The profile that fits a machine.
    profile: None if none fits.
    why: the evidence.
    toml: a starting profile, "" for a machine that cannot have one.
    """

    profile: Profile | None
    sure: Sure
    why: str
    differences: tuple[Deviation, ...]
    facts: BoardFacts
    toml: str


def detect(facts: BoardFacts, catalogue: Catalogue) -> DetectedBoard:
    """Match facts with the catalogue; its broken files are skipped."""
    boards = [profiles for board in catalogue.boards() if (profiles := catalogue.readable(board))]
    family, sure, why = _family(facts, boards)
    if family is None:
        known = facts.machine in ("", *ARCHITECTURES)
        return DetectedBoard(None, sure, why, (), facts, starting_toml(facts, None) if known else "")

    def agreement(image: Profile) -> tuple[bool, bool, bool]:
        """Rank how well an image agrees, the machine first."""
        same_release = bool(facts.codename) and image.os.debian == facts.codename
        return image.arch == facts.machine, same_release, _minor(image.os.python) == _minor(facts.python)

    profile = _mode(max(family, key=agreement), facts)
    return DetectedBoard(profile, sure, why, tuple(_differences(profile, facts)), facts, starting_toml(facts, profile))


def stands_for(profile: Profile, facts: BoardFacts, catalogue: Catalogue) -> bool:
    """Whether the machine is the profile's board, in its mode and architecture.

    A profile that the catalogue does not list, a file named by its path, is tried before those that it does.
    """
    boards = [found for board in catalogue.boards() if board != profile.board and (found := catalogue.readable(board))]
    listed = catalogue.readable(profile.board)
    own = listed if profile in listed else (profile,)
    family, _, _ = _family(facts, [own, *boards])
    if family is not own or facts.machine not in ("", profile.arch):
        return False
    return not profile.power_mode or _mode(profile, facts).power_mode == profile.power_mode


def _family(facts: BoardFacts, boards: list[tuple[Profile, ...]]) -> tuple[tuple[Profile, ...] | None, Sure, str]:
    """Find the board. `compatible` lists the board first, then its parts."""
    marked = {entry: board for board in reversed(boards) for entry in board[0].marks.compatible}
    named = f"; the board calls itself '{facts.model}'" if facts.model else ""
    found = [(place, entry) for place, entry in enumerate(facts.compatible) if entry in marked]
    if found and found[0][0] == 0:
        return marked[found[0][1]], "certain", f"its device tree says '{found[0][1]}'{named}"
    # at the end of a word: `Raspberry Pi 4` is not the beginning of `Raspberry Pi 400`
    marks = ((mark, board) for board in boards for mark in board[0].marks.models)
    matching = [(len(mark), board) for mark, board in marks if f"{facts.model} ".startswith(f"{mark} ")]
    if matching:
        best = max(matching, key=lambda item: item[0])[1]
        return best, "certain", f"the board calls itself '{facts.model}'"
    if found:
        why = f"its device tree says '{found[0][1]}', which is the chip{named}"
        return marked[found[0][1]], "likely", why
    if facts.machine == "x86_64":
        return _named("x86-64", boards), "likely", "it is an x86-64 machine"
    called = f"no profile matches '{facts.model}'" if facts.model else "the board has no name"
    if facts.machine and facts.machine not in ARCHITECTURES:
        return None, "unknown", f"{called}, and no engine has a wheel for {facts.machine}"
    for cluster in facts.clusters:
        board = _named(cluster.generic, boards)
        if board is not None:
            return board, "guess", f"{called}; its fast cores are {cluster.type}, for which '{cluster.generic}' stands"
    types = ", ".join(cluster.type for cluster in facts.clusters) or "unknown cores"
    return None, "unknown", f"{called}, and no profile stands for {types}"


def _named(name: str, boards: list[tuple[Profile, ...]]) -> tuple[Profile, ...] | None:
    return next((board for board in boards if board[0].board == name), None)


def _mode(profile: Profile, facts: BoardFacts) -> Profile:
    """Return the profile in the mode that matches the current cores and clock."""
    fast = _fast(profile, facts)
    if fast is None or fast.clock_ghz is None:
        return profile
    for mode in profile.modes:
        if mode.cores == fast.count and abs(fast.clock_ghz / mode.clock_ghz - 1) <= _CLOCK:
            return in_mode(profile, mode.name)
    return profile


def _fast(profile: Profile, facts: BoardFacts) -> Cluster | None:
    """Return the cores that the profile's `core` describes."""
    same = (cluster for cluster in facts.clusters if cluster.type == profile.core.type)
    return next(same, facts.clusters[0] if facts.clusters else None)


def _differences(profile: Profile, facts: BoardFacts) -> Iterator[Deviation]:
    expected = profile.memory.ram_mb
    fitted = next((size for size in _SIZES_MB if size >= (facts.ram_mb or 0)), facts.ram_mb)
    if facts.ram_mb is not None and fitted is not None and fitted != expected:
        means = (
            "a bundle that was built for the profile may not fit here: copy the profile and set memory.ram_mb"
            if fitted < expected
            else "the profile stands for the smallest version, so what fits there fits here"
        )
        yield Deviation("memory", f"{facts.ram_mb:,} MB", f"{expected:,} MB", means)
    yield from _cores(profile, facts)
    if facts.machine and facts.machine != profile.arch:
        means = "a wheel for the one does not install on the other"
        yield Deviation("machine", facts.machine, profile.arch, means)
    if facts.python and _minor(facts.python) != _minor(profile.os.python):
        # what the system as it is takes, in words
        here = ".".join(map(str, _minor(facts.python)))
        system = replace(profile.os, python=here, glibc=facts.glibc or profile.os.glibc)
        verdicts = installable(replace(profile, os=system, arch=facts.machine or profile.arch))
        engines = [verdict.engine for verdict in verdicts if verdict.ok]
        none = f"no engine installs here: {verdicts[0].reason}"
        means = f"engines that install here: {', '.join(engines)}" if engines else none
        yield Deviation("python", facts.python, profile.os.python or "none", means)
    if facts.glibc and version_parts(facts.glibc) < version_parts(profile.os.glibc):
        means = "wheels that the profile counts on may not install"
        yield Deviation("glibc", facts.glibc, profile.os.glibc or "none", means)


def _cores(profile: Profile, facts: BoardFacts) -> Iterator[Deviation]:
    fast = _fast(profile, facts)
    if fast is None or profile.measured_here:  # what is measured where it is built is of that machine
        return
    core = profile.core
    if (fast.type, fast.count) != (core.type, core.count):
        means = "estimates are for the profile's cores"
        yield Deviation("cores", f"{fast.count} x {fast.type}", f"{core.count} x {core.type}", means)
    if fast.clock_ghz is not None and abs(fast.clock_ghz / core.clock_ghz - 1) > _CLOCK:
        faster = fast.clock_ghz > core.clock_ghz
        means = f"it is {'faster' if faster else 'slower'} than estimated: measure on the board"
        yield Deviation("clock", f"{fast.clock_ghz:g} GHz", f"{core.clock_ghz:g} GHz", means)
    missing = [feature for feature in core.simd if facts.simd and feature not in facts.simd]
    if missing:
        means = "INT8 and float16 are slower than estimated"
        yield Deviation("features", f"no {', '.join(missing)}", ", ".join(core.simd), means)


def _minor(version: str) -> tuple[int, ...]:
    return version_parts(version)[:2]
