"""Every profile there is to choose from: those that come with edgekit, those of installed packages, the user's own.

Rules:
- a profile is a file NAME.toml: in edgekit itself, in a package that an entry point of the group `edgekit.profiles`
  names, in a folder of `--profile-path` or of the variable EDGEKIT_PROFILE_PATH, or named by its path;
- two files for one board are an error when that board is asked for, which names both: none hides the other, because
  bundles and fleets know a board by its name;
- a broken file spoils its own profiles and no others;
- `measured_here` is for the profiles that come with edgekit: a user's file that was copied from one of them must not pass
  this machine's times off as the board's.

    catalogue = open_catalogue([Path("boards")])
    catalogue.load("raspberry-pi-4-32bit"), catalogue.load("jetson-nano@5w"), catalogue.load("boards/our-gateway.toml")
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import importlib.resources
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_profiles.errors import ProfileError, UnknownProfileError
from edgekit_profiles.profile import Profile, in_mode
from edgekit_profiles.reading import read
from edgekit_profiles.regular import read_regular

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable  # of Python 3.11

__all__ = ["GROUP", "MOST_BYTES", "VARIABLE", "Catalogue", "Source", "built_in", "open_catalogue"]

GROUP = "edgekit.profiles"
VARIABLE = "EDGEKIT_PROFILE_PATH"
MOST_BYTES = 1 << 20
"""Of a profile: a hundred times the largest there is."""
_OWN = "edgekit"


@dataclass(frozen=True)
class Source:
    """One file. where: what errors call it. origin: `edgekit`, the entry point's name, or the folder."""

    board: str
    where: str
    origin: str
    file: Traversable

    def profiles(self) -> tuple[Profile, ...]:
        """Of every image, the board's first image first. Raises ProfileError."""
        found = _built_in_profiles(self.board) if self.origin == _OWN else read(_text(self), self.where, self.board)
        if self.origin != _OWN and found[0].measured_here:
            raise ProfileError(
                "'measured_here' is for the profiles that come with edgekit: times on this machine are not those of the board",
                where=self.where,
                do="Remove the line, or build with --profile x86-64",
                key="measured_here",
            )
        return found

    def text(self) -> str:
        """Raises ProfileError."""
        return _text(self)


@dataclass(frozen=True)
class Catalogue:
    """sources: one a file, in the order in which they were looked for."""

    sources: tuple[Source, ...]

    def boards(self) -> tuple[str, ...]:
        """The names without images and modes, sorted."""
        return tuple(sorted({source.board for source in self.sources}))

    def names(self) -> tuple[str, ...]:
        """Everything `load` takes, less the modes, sorted by board. A file that cannot be read has no names here."""
        return tuple(profile.name for board in self.boards() for profile in self.readable(board))

    def broken(self) -> tuple[ProfileError, ...]:
        """What is wrong with files that `names` leaves out."""
        errors = []
        for board in self.boards():
            try:
                self.of(board)
            except ProfileError as error:
                errors.append(error)
        return tuple(errors)

    def load(self, name: str) -> Profile:
        """The profile of that name. A name that ends with `.toml` or `.toml@MODE` is the path of a file.

        Raises UnknownProfileError (with the near misses) and ProfileError (naming file and key).
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
        raise self._unknown(name)

    def text(self, name: str) -> str:
        """The file of the profile that `load` would give. Raises as `load` does."""
        board = self.load(name).board
        file = _file_named(name)[0]
        return (file or next(source for source in self.sources if source.board == board)).text()

    def images(self, name: str) -> tuple[Profile, ...]:
        """All profiles of the file that `load` would read, its first image first. Raises as `load` does."""
        profile = self.load(name)
        file = _file_named(name)[0]
        return self.of(profile.board) if file is None else file.profiles()

    def origin(self, profile: Profile) -> str:
        """Where a profile of this catalogue comes from: `edgekit`, an entry point, a folder."""
        return next((source.origin for source in self.sources if source.board == profile.board), "")

    def of(self, board: str) -> tuple[Profile, ...]:
        """A board's profiles, its first image first. Raises ProfileError where the file is broken or not the only one."""
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
            return UnknownProfileError(f"'{name}' is a folder, and no profile", do=do)
        known = self.names()
        words = _words(name)
        within = [found for found in known if words and words <= _words(found)]
        near = [found for found in within if found in self.boards()][:3] or within[
            :3
        ]  # a board before its other images
        near = near or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        asked = f"Did you mean {' or '.join(near)}? " if near else ""
        do = f"{asked}`edgekit profiles list` shows them all"
        return UnknownProfileError(f"there is no profile '{name}'", do=do)


def built_in() -> Catalogue:
    """What comes with edgekit, and nothing else."""
    return Catalogue(tuple(Source(board, f"boards/{board}.toml", _OWN, _file(board)) for board in _built_in_boards()))


def open_catalogue(
    paths: Sequence[Path] = (),
    *,
    environ: Mapping[str, str] | None = None,
    plugins: Sequence[importlib.metadata.EntryPoint] | None = None,
) -> Catalogue:
    """What comes with edgekit, what installed packages bring, and the files of folders.

    paths: folders of `--profile-path`; those of EDGEKIT_PROFILE_PATH come after them. plugins: default the installed
    entry points of the group. Raises ProfileError for a folder or a package that is not there.
    """
    environ = os.environ if environ is None else environ
    given = [Path(item) for item in environ.get(VARIABLE, "").split(os.pathsep) if item]
    plugins = tuple(importlib.metadata.entry_points(group=GROUP)) if plugins is None else plugins
    found = list(built_in().sources)
    for plugin in plugins:
        found += _of_package(plugin)
    seen: set[Path] = set()
    for folder in (*paths, *given):
        if (real := folder.resolve()) not in seen:
            found += _of_folder(folder, VARIABLE if folder in given and folder not in paths else "--profile-path")
        seen.add(real)
    return Catalogue(tuple(found))


def _of_folder(folder: Path, option: str) -> list[Source]:
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except OSError as error:
        why = error.strerror or str(error)
        raise ProfileError(f"{option}: the folder of profiles cannot be read: {why}", where=str(folder)) from error
    return [Source(path.stem, str(path), str(folder), path) for path in files]


def _of_package(plugin: importlib.metadata.EntryPoint) -> list[Source]:
    try:
        folder = importlib.resources.files(plugin.value)
        files = sorted(item.name for item in folder.iterdir() if item.name.endswith(".toml"))
    except Exception as error:  # another package's code runs here
        what = f"the profiles of the entry point '{plugin.name}' cannot be found: {type(error).__name__}: {error}"
        raise ProfileError(what, where=plugin.value, do="Update or uninstall the package that brings it") from error
    return [Source(name.removesuffix(".toml"), f"{plugin.value}/{name}", plugin.name, folder / name) for name in files]


def _file_named(name: str) -> tuple[Source | None, str | None]:
    """(the file that a name ending with `.toml` or `.toml@MODE` is the path of, the mode); (None, None) for other names."""
    found = re.fullmatch(r"(?s)(.*\.toml)(?:@([^@/\\]*))?", name)
    if found is None:
        return None, None
    path = Path(found[1])
    return Source(path.stem, found[1], str(path.parent), path), found[2]


def _in_mode(profile: Profile, mode: str) -> Profile:
    modes = [item.name for item in profile.modes]
    if mode not in modes:
        do = f"Modes: {', '.join(modes)}" if modes else f"Use --profile {profile.name}"
        raise UnknownProfileError(f"{profile.name} has no mode '{mode}'", do=do)
    return in_mode(profile, mode)


def _words(name: str) -> set[str]:
    """`Pi4` and `pi-4` are the words pi and 4."""
    return set(re.findall(r"[a-z]+|[0-9]+", name.lower()))


def _text(source: Source) -> str:
    try:
        if isinstance(source.file, Path):
            return read_regular(source.file, MOST_BYTES).decode("utf-8")
        return source.file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        do = "`edgekit profiles list` shows the profiles there are by name"
        raise ProfileError("there is no such file", where=source.where, do=do) from error
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8"
        raise ProfileError(f"cannot be read: {why}", where=source.where) from error


def _file(board: str) -> Traversable:
    return importlib.resources.files("edgekit_profiles") / "boards" / f"{board}.toml"


@functools.cache
def _built_in_boards() -> tuple[str, ...]:
    folder = importlib.resources.files("edgekit_profiles") / "boards"
    files = (item.name for item in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


@functools.cache
def _built_in_profiles(board: str) -> tuple[Profile, ...]:
    """They do not change while a process runs, and are many."""
    file = f"boards/{board}.toml"
    return read(_text(Source(board, file, _OWN, _file(board))), file, board)
