"""Whether a file is a profile: every mistake at once, and what is allowed and yet worth a second look.

result, = validate(Path("boards/our-gateway.toml"))
result.errors, result.warnings, result.names
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgekit_profiles.catalogue import MOST_BYTES, built_in
from edgekit_profiles.cores import known_types
from edgekit_profiles.errors import CannotEstimateError, ProfileError
from edgekit_profiles.estimate import estimate
from edgekit_profiles.profile import Profile
from edgekit_profiles.reading import mistakes_of, read
from edgekit_profiles.regular import read_regular
from edgekit_profiles.wheels import installable
from edgekit_profiles.workload import Precision, mobilenet_v1

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
        text = read_regular(path, MOST_BYTES).decode("utf-8")
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
    yield from _estimates(first)
    for profile in found:
        verdicts = installable(profile)
        if not any(verdict.ok for verdict in verdicts):
            yield f"no engine installs on {profile.name}: {verdicts[0].reason}"


def _estimates(profile: Profile) -> Iterator[str]:
    """By asking for one, with the engine that an INT8 or float network would get there."""
    tflite = [verdict.engine for verdict in installable(profile) if verdict.ok and verdict.format == "tflite"]
    precisions: tuple[Precision, ...] = ("float32", "int8")
    for precision in precisions:
        try:
            estimate(profile, mobilenet_v1(precision), tflite[0] if tflite else "litert")
        except CannotEstimateError as error:
            near = difflib.get_close_matches(profile.core.type, known_types(), n=1)
            typo = bool(near) and profile.core.type not in known_types()
            meant = f" (is core.type meant to be '{near[0]}'?)" if typo else ""
            yield f"no latency of {precision} can be estimated: {error.what}{meant}"
