"""Which recipes a build makes where nobody names any, and which artifacts are meant for which board.

Rules: `--recipe` decides for every board; else a profile's own `recipes` are what is made for it, and nothing else is
offered to it; what is made for such a profile alone is not offered to the other boards.

    wanted = Wanted(request.recipes, profiles)
    wanted.names()                       # what to make, each once
    wanted.of(profile, made)             # what `choose` is to choose from
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.building.making import Made
from edgekit_converters import targets
from edgekit_profiles import Profile

__all__ = ["Wanted"]


@dataclass(frozen=True)
class Wanted:
    """asked: the recipes of the request. profiles: of every board of the build."""

    asked: tuple[str, ...]
    profiles: tuple[Profile, ...]

    def names(self) -> tuple[str, ...]:
        if self.asked:
            return tuple(dict.fromkeys(self.asked))
        return tuple(dict.fromkeys(name for profile in self.profiles for name in _of(profile)))

    def of(self, profile: Profile, made: Sequence[Made]) -> list[Made]:
        if self.asked:
            return list(made)
        if profile.recipes:
            return [one for one in made if one.recipe.name in profile.recipes]
        foreign = {name for other in self.profiles for name in other.recipes} - {*targets.default_recipes()}
        return [one for one in made if one.recipe.name not in foreign]


def _of(profile: Profile) -> tuple[str, ...]:
    return profile.recipes or tuple(targets.default_recipes())
