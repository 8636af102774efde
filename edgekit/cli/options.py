"""Options and shell completions that several commands share, and how a result is printed.

    @click.option("--profile", shell_complete=completion.profiles)

Rules:
- text from a bundle, a model or a folder is printed by `say`, which escapes control and bidirectional characters;
- whether a file can be written is checked before the work whose result goes there;
- --secret and --encrypt name the place of a key; the key itself is refused as an argument;
- a completion imports only what it lists, and lists nothing if that cannot be read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.policy.budget import PRESETS_MS

if TYPE_CHECKING:
    from edgekit_profiles import Catalogue, Profile
    from edgekit_runtime.policy.budget import Use

METRICS = ("top1", "top5", "f1", "map", "map50", "mae", "miou", "pixel-accuracy")
_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(names: Callable[[click.Context], Iterable[str]]) -> _Complete:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from edgekit_runtime.system.errors import EdgekitError

        try:
            return [name for name in names(context) if name.startswith(incomplete)]
        except (EdgekitError, OSError, ImportError):
            return []

    return complete


@_completing
def profiles(context: click.Context) -> Iterable[str]:
    from edgekit_profiles import open_catalogue

    return open_catalogue(context.params.get("profile_paths") or ()).names()


@_completing
def recipes(_context: click.Context) -> Iterable[str]:
    from edgekit_converters.recipe.artifact import RECIPES

    return RECIPES


@_completing
def metrics(_context: click.Context) -> Iterable[str]:
    return METRICS


@_completing
def engines(_context: click.Context) -> Iterable[str]:
    from edgekit_runtime.engines.registry import ENGINES

    return ENGINES


@_completing
def codes(_context: click.Context) -> Iterable[str]:
    from edgekit.boards.catalogue import entries

    return entries()


@_completing
def keys(context: click.Context) -> Iterable[str]:
    from edgekit.packaging.key_folder import KeyFolder, default_folder

    return [entry.name for entry in KeyFolder(context.params.get("folder") or default_folder()).entries()]


class _NonEmptyPath(click.Path):
    """A path that is not "" (an unset variable), which pathlib takes for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty name", param, ctx)
        return super().convert(value, param, ctx)


PATH = BUNDLE = _NonEmptyPath(path_type=Path)

ROOT = click.option("--root", type=PATH, required=True, metavar="DIR", help="The folder that the application opens.")

as_json = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object on stdout.")
trust = click.option(
    "--trust",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A root.json, or a public key (PEM; repeatable), by which the bundle must be signed. Default: what this "
    "machine trusts, as `edgekit keys list` shows it.",
)

allow_unsigned = click.option(
    "--allow-unsigned",
    is_flag=True,
    help="Accept a bundle that no trusted key has signed: unsigned, signed by unknown or too few keys, or on a machine "
    "without trusted keys; every report then says so.",
)

profile_path = click.option(
    "--profile-path",
    "profile_paths",
    type=PATH,
    multiple=True,
    metavar="DIR",
    help="A folder with profiles of your own, NAME.toml each; repeatable. EDGEKIT_PROFILE_PATH may name folders, too.",
)


def catalogue_of(paths: Sequence[Path]) -> Catalogue:
    """All profiles, with those of the --profile-path folders. Raises ProfileError."""
    from edgekit_profiles import open_catalogue

    return open_catalogue(paths)


def load_profile(name: str, paths: Sequence[Path]) -> Profile:
    """The profile of --profile and --profile-path. Raises UnknownProfileError and ProfileError."""
    return catalogue_of(paths).load(name)


class FiniteRange(click.FloatRange):
    """A FloatRange without "nan", which is neither below nor above any bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


budget_ms = click.option(
    "--budget-ms", type=FiniteRange(min=0, min_open=True), metavar="MS", help="Latency budget, milliseconds."
)
use = click.option(
    "--use",
    type=click.Choice(tuple(PRESETS_MS)),
    help="The budget by its purpose: 100, 500, 200, 100, 50 or 10 ms, in this order.",
)


def budget_of(use: Use | None, budget_ms: float | None) -> float | None:
    """The budget, milliseconds. Raises UsageError if both are given."""
    if use is not None and budget_ms is not None:
        raise click.UsageError("--use stands for a budget: pass either --use or --budget-ms.")
    return budget_ms if use is None else PRESETS_MS[use]


def options_given(*names: str) -> list[str]:
    """Those of the parameters `names` that the command line gives, in its spelling."""
    context = click.get_current_context()
    spelt = {
        one.name: one.opts[-1] if isinstance(one, click.Option) else one.make_metavar(context).strip("[]")
        for one in context.command.params
    }
    source = click.core.ParameterSource.COMMANDLINE
    return [spelt[name] for name in names if context.get_parameter_source(name) is source]


BOARD_ENGINES = tuple(name for name, kind in ENGINES.items() if kind.on_boards)
"""Engines with wheels for boards, which `deploy` and `estimate` offer."""

engine = click.option(
    "--engine", shell_complete=engines, metavar="NAME", help=f"{', '.join(ENGINES)}. Default: what is installed."
)
threads = click.option(
    "--threads", type=click.IntRange(1, 256), metavar="N", help="Engine threads. Default: what the bundle says."
)

pin = click.option(
    "--pin",
    type=click.Choice(["primary"]),
    help="Answer with the bundle's primary artifact, the same on every machine. Default: the fastest here.",
)


class _PercentType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`1%` or `0.5 %` -> a fraction. A bare number is refused: 0.01 and 1 are easily confused."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = math.nan
        if not text.endswith("%"):
            meant = text if 0 <= number <= 100 else "1"
            self.fail(f"{value!r} has no per cent sign; write it as {meant}%", param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no percentage; write it as 1%", param, ctx)
        if not 0 <= number <= 100:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return number / 100


PERCENT = _PercentType()


def print_json(value: dict[str, Any]) -> None:
    """Print one line, with null for NaN and infinity."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:  # rare, so that outputs of a million numbers are not walked through for nothing
        text = json.dumps(_without_nan(value), allow_nan=False)
    click.echo(text)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, (list, tuple)) else value


def say(line: str, *, err: bool = False) -> None:
    """Print the line with unsafe characters escaped."""
    from edgekit_runtime.system.errors import visible

    click.echo(visible(line), err=err)


def refuse_unwritable(output: Path, option: str = "-o") -> None:
    """Raises OutputError before the work, not after it."""
    from edgekit.packaging.output_errors import OutputError

    folder = output.parent
    if output.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = "there is no such folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = "its folder may not be written to"
    else:
        return
    raise OutputError(f"cannot be written: {why}", where=str(output), do=f"Name another file with {option}")


def write_json(output: Path, value: dict[str, Any], *, indent: int | None = 2) -> None:
    """Write a record: a file atomically, a pipe or a device directly. Raises OutputError."""
    from edgekit.packaging.output_errors import OutputError
    from edgekit.packaging.writer import write_whole

    text = json.dumps(value, indent=indent) + "\n"
    try:
        if output.exists() and not output.is_file():
            output.write_text(text, encoding="utf-8")
            return
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
    write_whole(output.resolve(), text.encode(), "the record")


class _Source(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`file:PATH`, `env:NAME`, `cmd:COMMAND` or a path. Raises SecretError without the text."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from edgekit_runtime.bundle.secrets import parse_source

        parse_source(value)
        return str(value)


secret = click.option(
    "--secret",
    type=_Source(),
    metavar="SOURCE",
    help="Where the key of an encrypted bundle is: file:PATH, env:NAME or cmd:COMMAND. Default: what EDGEKIT_SECRET "
    "names, ~/.config/edgekit/secret, /etc/edgekit/secret.",
)
encrypt = click.option(
    "--encrypt",
    type=_Source(),
    metavar="SOURCE",
    help="Encrypt what the bundles hold with the key at file:PATH, env:NAME or cmd:COMMAND (make one: edgekit keys "
    "secret). Labels and names stay readable.",
)
