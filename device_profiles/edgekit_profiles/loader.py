"""Profiles by name, or by the path of a user's own file: the short way to a catalogue.

load("raspberry-pi-4").title            # "Raspberry Pi 4 Model B"
load("boards/our-gateway.toml")         # a name that ends with .toml is a path
"""

from __future__ import annotations

from edgekit_profiles.catalogue import built_in
from edgekit_profiles.profile import Profile
from edgekit_profiles.reading import read

__all__ = ["load", "names", "parse"]


def names() -> tuple[str, ...]:
    """The names of the profiles that come with edgekit, of every image, sorted by board."""
    return built_in().names()


def load(name: str) -> Profile:
    """The profile of that name among those that come with edgekit, or of that file when the name ends with `.toml`.

    Raises UnknownProfileError (with the near misses) and ProfileError (naming file and key). `open_catalogue` knows
    the user's own folders besides.
    """
    return built_in().load(name)


def parse(text: str, file: str, name: str) -> Profile:
    """A profile from TOML text, of the board's first image. file: what errors call it. name: what its `name` key must be."""
    return read(text, file, name)[0]
