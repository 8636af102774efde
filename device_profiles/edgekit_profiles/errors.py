"""The profiles' error tree."""

from __future__ import annotations

from edgekit_runtime.system.errors import EdgekitError


class ProfileError(EdgekitError):
    """A profile file that breaks the format; `where` is the file, `key` the dotted key or ""."""

    code = "profile"
    key = ""

    def __init__(self, what: str, *, where: str = "", do: str = "", key: str = "") -> None:
        super().__init__(what, where=where, do=do)
        self.key = key


class UnknownProfileError(ProfileError):
    """No profile has this name; `do` names the near misses, or the command that lists all."""

    code = "profile-unknown"


class CannotEstimateError(EdgekitError):
    """A latency that edgekit cannot predict: measure on the board."""

    code = "estimate"


class AnchorError(EdgekitError):
    """An anchor file that cannot be read, is not one, or is of another board."""

    code = "anchor"
