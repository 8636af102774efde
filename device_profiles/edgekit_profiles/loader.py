"""Profiles by name, or by the path of a user's own file.

Rules: every figure in a profile has a source, by its dotted key or by its table's; a key the format does not know is
an error; a profile's name is its file's name. Adding a board is adding a file. `measured_here` is for the profiles that
come with edgekit: a user's file that was copied from one of them must not pass this machine's times off as the board's.

    load("raspberry-pi-4").title            # "Raspberry Pi 4 Model B"
    load("boards/our-gateway.toml")         # a name that ends with .toml is a path
"""

from __future__ import annotations

import difflib
import importlib.resources
import re
import tomllib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, cast

from edgekit_profiles.errors import ProfileError, UnknownProfileError
from edgekit_profiles.profile import Anchor, Caches, Core, Memory, Profile, System, Thermal
from edgekit_profiles.schema import Table

__all__ = ["load", "names", "parse"]

ARCHITECTURES = ("aarch64", "armv7l", "armv6l", "x86_64")


def names() -> tuple[str, ...]:
    """The names of the profiles that come with edgekit, sorted."""
    files = (item.name for item in _boards().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def load(name: str) -> Profile:
    """The profile of that name, or of that file when the name ends with `.toml`.

    Raises UnknownProfileError (with the near misses and all names) and ProfileError (naming file and key).
    """
    if name.endswith(".toml"):
        path = Path(name)
        profile = parse(_read(path, name), name, path.stem)
        if profile.measured_here:
            raise ProfileError(
                "'measured_here' is for the profiles that come with edgekit: times on this machine are not those of the board",
                where=name,
                do="Remove the line, or build with --profile x86-64",
            )
        return profile
    known = names()
    if name not in known:
        raise _unknown(name, known)
    file = f"boards/{name}.toml"
    return parse(_read(_boards() / f"{name}.toml", file), file, name)


def parse(text: str, file: str, name: str) -> Profile:
    """A profile from TOML text. file: what errors call it. name: what its `name` key must be."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, and integers of thousands of digits
        raise ProfileError(f"is not TOML: {error}", where=file) from error
    top = Table(data, file)
    if top.text("name") != name:
        raise top.error("name", f"is '{top.text('name')}', and the file is called '{name}.toml'", "Make the two agree")
    profile = Profile(
        name=name,
        title=top.text("title"),
        arch=top.text("arch", choices=ARCHITECTURES),
        soc=top.text("soc"),
        core=_core(top.table("core")),
        memory=_memory(top.table("memory")),
        caches=_caches(top.table("caches", {})),
        os=_system(top.table("os")),
        threads=top.integer("threads"),
        anchors=tuple(_anchor(table) for table in top.tables("anchors")),
        thermal=_thermal(top.table("thermal", {})),
        power_mode=top.text("power_mode", ""),
        notes=top.text("notes", ""),
        measured_here=top.flag("measured_here"),
        pins=top.mapping("pins"),
        sources=top.mapping("sources"),
    )
    top.done()
    if profile.threads > profile.core.count:
        raise top.error("threads", f"is {profile.threads}, more than the {profile.core.count} cores")
    _check_sources(top, data)
    return profile


def _core(table: Table) -> Core:
    core = Core(table.text("type"), table.integer("count"), table.number("clock_ghz"), table.texts("simd", ()))
    table.done()
    return core


def _memory(table: Table) -> Memory:
    memory = Memory(
        table.integer("ram_mb"), table.optional_number("bandwidth_gbps"), table.optional_number("copy_gbps")
    )
    table.done()
    return memory


def _caches(table: Table) -> Caches:
    caches = Caches(*(table.optional_integer(key) for key in ("l1d_kb", "l2_kb", "l3_kb")))
    table.done()
    return caches


def _system(table: Table) -> System:
    system = System(table.text("name"), _version(table, "python"), _version(table, "glibc"))
    table.done()
    return system


def _thermal(table: Table) -> Thermal:
    thermal = Thermal(table.optional_number("throttle_c"), table.text("notes", ""))
    table.done()
    return thermal


def _anchor(table: Table) -> Anchor:
    found = {precision: table.optional_number(f"{precision}_ms") for precision in ("float32", "int8")}
    ms = {precision: value for precision, value in found.items() if value is not None}
    if not ms:
        raise table.error("float32_ms", "is missing, and so is int8_ms", "Give at least one of the two")
    anchor = Anchor(
        framework=table.text("framework"),
        model=table.text("model"),
        threads=table.integer("threads"),
        clock_ghz=table.number("clock_ghz"),
        ms=ms,
        grade=cast(Literal["published", "derived"], table.text("grade", choices=("published", "derived"))),
        source=table.text("source"),
    )
    table.done()
    return anchor


def _version(table: Table, key: str) -> str:
    value = table.text(key)
    parts = value.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        raise table.error(key, f"is '{value}', not a version such as 3.11")
    return value


def _check_sources(top: Table, data: dict[str, object]) -> None:
    """Every figure is covered by a source under its own key or its table's, and every source covers something."""
    figures = {
        f"{name}.{key}"
        for name in ("core", "caches", "memory", "os", "thermal")
        for key, value in cast(dict[str, object], data.get(name, {})).items()
        if isinstance(value, int | float) or key in ("python", "glibc")
    }
    sources = cast(dict[str, str], data.get("sources", {}))
    for figure in sorted(figures):
        if figure not in sources and figure.split(".")[0] not in sources:
            raise top.error(figure, "has no source", f"Add a line for '{figure}' to [sources]")
    for source in sources:
        if not any(figure == source or figure.startswith(f"{source}.") for figure in figures):
            raise top.error(f"sources.{source}", "is the source of no figure in this file")


def _unknown(name: str, known: tuple[str, ...]) -> UnknownProfileError:
    words = _words(name)
    near = [profile for profile in known if words and words <= _words(profile)]
    near = near or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    asked = f"Did you mean {' or '.join(near)}? " if near else ""
    return UnknownProfileError(f"there is no profile '{name}'", do=f"{asked}Profiles: {', '.join(known)}")


def _words(name: str) -> set[str]:
    """`Pi4` and `pi-4` are the words pi and 4."""
    return set(re.findall(r"[a-z]+|[0-9]+", name.lower()))


def _read(source: Traversable | Path, file: str) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ProfileError("there is no such file", where=file, do=f"Profiles by name: {', '.join(names())}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot be read: {error}", where=file) from error


def _boards() -> Traversable:
    return importlib.resources.files("edgekit_profiles") / "boards"
