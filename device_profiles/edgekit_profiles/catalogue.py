"""Find, compare and validate profiles: edgekit's own, those of packages and the user's.

    catalogue = open_catalogue([Path("boards")])
    catalogue.load("raspberry-pi-4-32bit"), catalogue.load("jetson-nano@5w"), catalogue.load("boards/our-gateway.toml")
    difference(load("raspberry-pi-4"), load("raspberry-pi-5"))[0].key       # "core.clock_ghz"
    validate(Path("boards/our-gateway.toml"))[0].errors

Rules:
- a profile is a file NAME.toml: in edgekit, in a package that an entry point of the group `edgekit.profiles` names, in
  a folder of `--profile-path` or EDGEKIT_PROFILE_PATH, or named by its path;
- two files for one board are an error when that board is loaded, because bundles and fleets know it by its name;
- a broken file affects only its own profiles; `validate` reports every mistake at once;
- `measured_here` is only for edgekit's own profiles: in a copy, this machine's times would pass as the board's.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import importlib.resources
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgekit_profiles.errors import CannotEstimateError, ProfileError, UnknownProfileError
from edgekit_profiles.estimate import estimate
from edgekit_profiles.profile import Profile, in_mode, known_types
from edgekit_profiles.reading import read
from edgekit_profiles.wheels import installable
from edgekit_profiles.workload import Precision, mobilenet_v1
from edgekit_runtime.system.files import read_regular

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

GROUP = "edgekit.profiles"
VARIABLE = "EDGEKIT_PROFILE_PATH"
MOST_BYTES = 1 << 20
"""Of a profile: a hundred times the largest."""


@dataclass(frozen=True)
class ProfileSource:
    """One profile file.

    where: its name in errors.
    origin: `edgekit`, the entry point's name, or the folder.
    """

    board: str
    where: str
    origin: str
    file: Traversable
    built_in: bool = False

    def profiles(self) -> tuple[Profile, ...]:
        """Return the profiles of all images, the board's first image first. Raises ProfileError."""
        found = _read_once(self) if self.built_in else read(self.text(), self.where, self.board)
        if found[0].measured_here and not self.built_in:
            raise ProfileError(
                "'measured_here' is for the profiles that come with edgekit: times on this machine are not those of "
                "the board",
                where=self.where,
                do="Remove the line, or build with --profile x86-64",
                key="measured_here",
            )
        return found

    def text(self) -> str:
        """Raises ProfileError."""
        try:
            if isinstance(self.file, Path):
                return read_regular(self.file, MOST_BYTES).decode("utf-8")
            return self.file.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            do = "`edgekit profiles list` shows the profiles there are by name"
            raise ProfileError("there is no such file", where=self.where, do=do) from error
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8"
            raise ProfileError(f"cannot be read: {why}", where=self.where) from error


@dataclass(frozen=True)
class Catalogue:
    """All profiles that can be loaded by name.
    sources: one per file, in search order."""

    sources: tuple[ProfileSource, ...]

    def boards(self) -> tuple[str, ...]:
        """Return the board names, sorted."""
        return tuple(sorted({source.board for source in self.sources}))

    def names(self) -> tuple[str, ...]:
        """Return every name that `load` takes, without modes, of readable files."""
        return tuple(profile.name for board in self.boards() for profile in self.readable(board))

    def broken(self) -> tuple[ProfileError, ...]:
        """Return the errors of unreadable files."""
        errors = []
        for board in self.boards():
            try:
                self.of(board)
            except ProfileError as error:
                errors.append(error)
        return tuple(errors)

    def load(self, name: str) -> Profile:
        """Return the profile of that name or short form (rpi4, pi5, orin-nano).

        A name that ends with `.toml` or `.toml@MODE` is the path of a file. Raises UnknownProfileError with near
        misses, and ProfileError with file and key.
        """
        file, mode = _file_named(name)
        if file is not None:
            first = file.profiles()[0]
            return first if mode is None else _in_mode(first, mode)
        plain, _, mode = name.partition("@")
        boards = [board for board in self.boards() if plain == board or plain.startswith(f"{board}-")]
        for board in sorted(boards, key=len, reverse=True):
            for profile in self.of(board):
                if profile.name == plain:
                    return _in_mode(profile, mode) if "@" in name else profile
        called = [known for known in self.names() if _spelt(known) == _spelt(plain)]
        if len(called) == 1:
            return self.load(called[0] + name[len(plain) :])
        raise self._unknown(name)

    def text(self, name: str) -> str:
        """Return the text of the file that `load` would read. Raises as `load` does."""
        board = self.load(name).board
        file = _file_named(name)[0]
        return (file or next(source for source in self.sources if source.board == board)).text()

    def images(self, name: str) -> tuple[Profile, ...]:
        """Return all profiles of the file that `load` would read. Raises as `load` does."""
        profile = self.load(name)
        file = _file_named(name)[0]
        return self.of(profile.board) if file is None else file.profiles()

    def origin(self, profile: Profile) -> str:
        """Return a profile's origin: `edgekit`, an entry point, or a folder."""
        return next((source.origin for source in self.sources if source.board == profile.board), "")

    def of(self, board: str) -> tuple[Profile, ...]:
        """Return a board's profiles, first image first. Raises ProfileError, also for two files."""
        found = [source for source in self.sources if source.board == board]
        if not found:
            raise self._unknown(board)
        if len(found) > 1:
            files = ", ".join(source.where for source in found)
            do = "Give one of them another name, in the file's name and in its `name` key"
            raise ProfileError(f"there are {len(found)} profiles called '{board}': {files}", do=do)
        return found[0].profiles()

    def readable(self, board: str) -> tuple[Profile, ...]:
        try:
            return self.of(board)
        except ProfileError:
            return ()

    def _unknown(self, name: str) -> UnknownProfileError:
        if Path(name).is_dir():
            do = f"Name a file in it, or let its profiles be found by name: --profile-path {name}"
            return UnknownProfileError(f"'{name}' is a folder, not a profile", do=do)
        known = self.names()
        words = _words(name)
        within = [found for found in known if words and words <= _words(found)]
        near = [found for found in within if found in self.boards()][:3] or within[:3]  # boards before other images
        spelt = _spelt(name)
        near = near or [found for found in self.boards() if spelt and _spelt(found).startswith(spelt)][:3]
        near = near or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        guess = f"Did you mean {' or '.join(near)}? " if near else ""
        do = f"{guess}`edgekit profiles list` shows them all"
        return UnknownProfileError(f"unknown profile '{name}'", do=do)


@functools.cache
def built_in() -> Catalogue:
    """Return the profiles that ship with edgekit."""
    return Catalogue(_sources_in(importlib.resources.files("edgekit_profiles") / "boards", "boards", "edgekit", True))


def _sources_in(folder: Traversable, where: str, origin: str, built_in: bool = False) -> tuple[ProfileSource, ...]:
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".toml"))
    return tuple(
        ProfileSource(name.removesuffix(".toml"), f"{where}/{name}", origin, folder / name, built_in) for name in names
    )


def open_catalogue(
    paths: Sequence[Path] = (),
    *,
    environ: Mapping[str, str] | None = None,
    plugins: Sequence[importlib.metadata.EntryPoint] | None = None,
) -> Catalogue:
    """Combine the profiles of edgekit, installed packages and folders.

    paths: folders of `--profile-path`; those of EDGEKIT_PROFILE_PATH come after them.
    plugins: default the installed entry points of the group.

    Raises ProfileError for a missing folder or package.
    """
    environ = os.environ if environ is None else environ
    given = [Path(item) for item in environ.get(VARIABLE, "").split(os.pathsep) if item]
    plugins = tuple(importlib.metadata.entry_points(group=GROUP)) if plugins is None else plugins
    found = list(built_in().sources)
    for plugin in plugins:
        try:
            found += _sources_in(importlib.resources.files(plugin.value), plugin.value, plugin.name)
        except Exception as error:  # another package's code runs here
            what = f"the profiles of the entry point '{plugin.name}' cannot be found: {type(error).__name__}: {error}"
            do = "Update or uninstall the package that brings it"
            raise ProfileError(what, where=plugin.value, do=do) from error
    seen: set[Path] = set()
    for folder in (*paths, *given):
        if (real := folder.resolve()) in seen:
            continue
        seen.add(real)
        try:
            found += _sources_in(folder, str(folder), str(folder))
        except OSError as error:
            option = VARIABLE if folder in given and folder not in paths else "--profile-path"
            what = f"{option}: the folder of profiles cannot be read: {error.strerror or error}"
            raise ProfileError(what, where=str(folder)) from error
    return Catalogue(tuple(found))


def _file_named(name: str) -> tuple[ProfileSource | None, str | None]:
    """Split the path of a .toml file into (file, mode); (None, None) for other names."""
    found = re.fullmatch(r"(?s)(.*\.toml)(?:@([^@/\\]*))?", name)
    if found is None:
        return None, None
    path = Path(found[1])
    return ProfileSource(path.stem, found[1], str(path.parent), path), found[2]


def _in_mode(profile: Profile, mode: str) -> Profile:
    modes = [item.name for item in profile.modes]
    if mode not in modes:
        do = f"Modes: {', '.join(modes)}" if modes else f"Use --profile {profile.name}"
        raise UnknownProfileError(f"{profile.name} has no mode '{mode}'", do=do)
    return in_mode(profile, mode)


_SHORT = {
    r"\+": "plus",
    r"^(rpi|raspi|pi)(?=\d|zero)": "raspberrypi",
    r"^orin": "jetsonorin",
    r"^(raspberrypi[45])b": r"\1",
}
"""Short forms -> what profiles are called, both without separators."""


def _spelt(name: str) -> str:
    """Normalize capitals, separators and short forms."""
    letters = re.sub(r"[-_. ]", "", name.lower())
    for short, long in _SHORT.items():
        letters = re.sub(short, long, letters)
    return letters


def _words(name: str) -> set[str]:
    """Split a name into words: `Pi4` and `pi-4` are pi and 4."""
    return set(re.findall(r"[a-z]+|[0-9]+", name.lower()))


@functools.cache
def _read_once(source: ProfileSource) -> tuple[Profile, ...]:
    return read(source.text(), source.where, source.board)


def names() -> tuple[str, ...]:
    """Return the names of edgekit's own profiles, every image, sorted by board."""
    return built_in().names()


def load(name: str) -> Profile:
    """Load one of edgekit's own profiles by name, or a .toml file.

    Raises as `Catalogue.load`. `open_catalogue` also knows the user's folders.
    """
    return built_in().load(name)


def parse(text: str, file: str, name: str) -> Profile:
    """Parse a profile from TOML text, for the board's first image.

    file: its name in errors.
    name: what its `name` key must be.
    """
    return read(text, file, name)[0]


# What names a profile rather than describes it, and what is prose.
_NAMES = {"name", "board", "image", "title", "notes", "sources", "marks", "anchors", "modes", "accelerators"}


@dataclass(frozen=True)
class ProfileDifference:
    """One key in which two profiles differ.
    key: dotted.
    first, second: the values, None if absent.
    first_source, second_source: "" for none.
    """

    key: str
    first: Any
    second: Any
    first_source: str = ""
    second_source: str = ""


def difference(first: Profile, second: Profile) -> tuple[ProfileDifference, ...]:
    """Return what differs, in the order of the keys; installable engines come last."""
    found = []
    left, right = dict(_figures(first)), dict(_figures(second))
    for key in dict.fromkeys((*left, *right)):
        one, other = left.get(key), right.get(key)
        if one != other:
            found.append(ProfileDifference(key, one, other, _source(first, key), _source(second, key)))
    return tuple(found)


def source_of(profile: Profile, key: str) -> str:
    """Return a figure's source, by its own key or its table's; "" if it needs none."""
    return profile.sources.get(key) or profile.sources.get(key.split(".")[0], "")


def _source(profile: Profile, key: str) -> str:
    if key.startswith("anchors "):
        return next((anchor.source for anchor in profile.anchors if _anchor_key(anchor) == key), "")
    return source_of(profile, key)


def _figures(profile: Profile) -> Iterator[tuple[str, Any]]:
    for key, value in asdict(profile).items():
        if key in _NAMES:
            continue
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", item) for name, item in value.items() if not _empty(item))
        elif not _empty(value):
            yield key, value
    for mode in profile.modes:
        yield f"modes.{mode.name}", f"{mode.cores} cores at {mode.clock_ghz:g} GHz"
    for accelerator in profile.accelerators:
        yield f"accelerators.{accelerator.kind}", accelerator.name
    for anchor in profile.anchors:
        yield _anchor_key(anchor), ", ".join(f"{precision} {ms:g} ms" for precision, ms in anchor.ms.items())
    for support in installable(profile):
        yield f"engines.{support.engine}", support.version


def _anchor_key(anchor: Any) -> str:
    threads = f"{anchor.threads} thread{'s' * (anchor.threads != 1)}"
    return f"anchors {anchor.model} {anchor.framework} {threads} {anchor.clock_ghz:g} GHz {anchor.grade}"


def _empty(value: Any) -> bool:
    return value is None or value in ("", (), [], {})


@dataclass(frozen=True)
class ValidatedFile:
    """A file's errors and warnings.
    names: of the profiles in the file, if it has no errors."""

    file: str
    errors: tuple[ProfileError, ...]
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def validate(path: Path) -> tuple[ValidatedFile, ...]:
    """Check a file, or every .toml of a folder; a file that cannot be read has one error."""
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.suffix == ".toml")
        if files:
            return tuple(result for file in files for result in validate(file))
        return (ValidatedFile(str(path), (ProfileError("this folder has no .toml file", where=str(path)),)),)
    source = ProfileSource(path.stem, str(path), str(path.parent), path)
    try:
        found = source.profiles()
    except ProfileError as error:
        return (ValidatedFile(str(path), cast(tuple[ProfileError, ...], error.mistakes) or (error,)),)
    return (ValidatedFile(str(path), (), tuple(_warnings(found)), tuple(profile.name for profile in found)),)


def _warnings(found: tuple[Profile, ...]) -> Iterator[str]:
    first = found[0]
    if first.name in built_in().boards():
        yield f"edgekit comes with a profile '{first.name}': in a folder of --profile-path the two exclude each other"
    # By asking for one, with the engine that an INT8 or float network would get there
    tflite = [verdict.engine for verdict in installable(first) if verdict.ok and verdict.format == "tflite"]
    precisions: tuple[Precision, ...] = ("float32", "int8")
    for precision in precisions:
        try:
            estimate(first, mobilenet_v1(precision), tflite[0] if tflite else "litert")
        except CannotEstimateError as error:
            near = difflib.get_close_matches(first.core.type, known_types(), n=1)
            typo = bool(near) and first.core.type not in known_types()
            meant = f" (is core.type meant to be '{near[0]}'?)" if typo else ""
            yield f"no latency of {precision} can be estimated: {error.what}{meant}"
    for profile in found:
        verdicts = installable(profile)
        if not any(verdict.ok for verdict in verdicts):
            yield f"no engine installs on {profile.name}: {verdicts[0].reason}"
