"""Whether a file is a profile: every mistake at once, and what is allowed and yet worth a second look.

result, = validate(Path("boards/our-gateway.toml"))
result.errors, result.warnings, result.names
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgekit_profiles.catalogue import built_in
from edgekit_profiles.cores import known_types
from edgekit_profiles.errors import ProfileError
from edgekit_profiles.profile import Profile
from edgekit_profiles.reading import mistakes_of, read
from edgekit_profiles.roofline import constants
from edgekit_profiles.wheels import installable

__all__ = ["Validated", "validate"]


@dataclass(frozen=True)
class Validated:
    """One file. names: of the profiles in it, where it has no errors."""

    file: str
    errors: tuple[ProfileError, ...]
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def validate(path: Path) -> tuple[Validated, ...]:
    """A file, or every .toml of a folder. What cannot be read is an error of that file."""
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.suffix == ".toml")
        if files:
            return tuple(result for file in files for result in validate(file))
        return (Validated(str(path), (ProfileError("no .toml file is in this folder", where=str(path)),)),)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return (Validated(str(path), (ProfileError(f"cannot be read: {why}", where=str(path)),)),)
    errors = list(mistakes_of(text, str(path), path.stem))
    if errors:
        return (Validated(str(path), tuple(errors)),)
    found = read(text, str(path), path.stem)
    if found[0].measured_here:
        what = "'measured_here' is for the profiles that come with edgekit"
        do = "Remove it: times on the machine that builds are not those of the board"
        return (Validated(str(path), (ProfileError(what, where=str(path), do=do, key="measured_here"),)),)
    return (Validated(str(path), (), tuple(_warnings(found)), tuple(profile.name for profile in found)),)


def _warnings(found: tuple[Profile, ...]) -> Iterator[str]:
    first = found[0]
    if first.name in built_in().boards():
        yield f"edgekit comes with a profile '{first.name}': in a folder of --profile-path the two exclude each other"
    if first.core.type not in constants()["rates"]:
        known = (*constants()["rates"], *known_types())
        near = difflib.get_close_matches(first.core.type, known, n=1)
        meant = f" (did you mean '{near[0]}'?)" if near and near[0] != first.core.type else ""
        yield f"no latency can be estimated for '{first.core.type}' cores{meant}; an anchor does not change that"
    elif first.memory.bandwidth_gbps is None:
        yield "without memory.bandwidth_gbps no latency can be estimated"
    for profile in found:
        verdicts = installable(profile)
        if not any(verdict.ok for verdict in verdicts):
            yield f"no engine installs on {profile.name}: {verdicts[0].reason}"
