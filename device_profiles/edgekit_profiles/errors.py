"""The profiles' error tree."""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError

__all__ = ["CannotEstimateError", "ProfileError", "UnknownProfileError"]


class ProfileError(EdgekitError):
    """A profile file that breaks the format; `where` names the file and, after a colon, the key."""

    code = "profile"


class UnknownProfileError(ProfileError):
    """No profile has this name; `do` names the near misses and all the names there are."""

    code = "profile-unknown"


class CannotEstimateError(EdgekitError):
    """A latency that nothing edgekit knows can predict. It is refused rather than extrapolated: measure on the board."""

    code = "estimate"
