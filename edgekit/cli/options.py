"""Options that mean the same in every command, and how a result is printed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit_runtime.budget import PRESETS_MS
from edgekit_runtime.engines import ENGINES

if TYPE_CHECKING:
    from edgekit_profiles import Catalogue, Profile
    from edgekit_runtime.budget import Use

__all__ = [
    "BUNDLE",
    "PATH",
    "PERCENT",
    "ROOT",
    "FiniteRange",
    "allow_unsigned",
    "as_json",
    "budget_ms",
    "budget_of",
    "catalogue_of",
    "engine",
    "load_profile",
    "options_given",
    "pin",
    "print_json",
    "profile_path",
    "threads",
    "trust",
    "use",
]


class _Named(click.Path):
    """A path that "", which pathlib takes for the folder one is in, does not pass.

    It is a variable that was not set.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty name", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Named(path_type=Path)
BUNDLE = _Named(path_type=Path)

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
    help="Take a bundle that nobody vouches for: not signed, signed by nobody or too few who are trusted here, or on "
    "a machine that was never told whom to trust; every report then says so.",
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
    """Every profile there is, with those of the folders of --profile-path. Raises ProfileError."""
    from edgekit_profiles import open_catalogue

    return open_catalogue(paths)


def load_profile(name: str, paths: Sequence[Path]) -> Profile:
    """What --profile and --profile-path name together. Raises UnknownProfileError and ProfileError."""
    return catalogue_of(paths).load(name)


class FiniteRange(click.FloatRange):
    """A FloatRange that "nan", which is below nothing and above nothing, does not pass."""

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
    """The one that was given; both are a usage error."""
    if use is not None and budget_ms is not None:
        raise click.UsageError("--use stands for a budget: pass either --use or --budget-ms.")
    if use is None:
        return budget_ms
    return PRESETS_MS[use]


def options_given(*names: str) -> list[str]:
    """Of the parameters `names`, those on the command line, as they are spelt there."""
    context = click.get_current_context()
    spelt = {
        one.name: one.opts[-1] if isinstance(one, click.Option) else one.make_metavar(context).strip("[]")
        for one in context.command.params
    }
    source = click.core.ParameterSource.COMMANDLINE
    return [spelt[name] for name in names if context.get_parameter_source(name) is source]


engine = click.option(
    "--engine",
    shell_complete=completion.engines,
    metavar="NAME",
    help=f"{', '.join(ENGINES)}. Default: what is installed.",
)
threads = click.option(
    "--threads", type=click.IntRange(1, 256), metavar="N", help="Engine threads. Default: what the bundle says."
)

pin = click.option(
    "--pin",
    type=click.Choice(["primary"]),
    help="Answer with the bundle's primary artifact, as every machine does that is told the same. Default: the "
    "fastest here.",
)


class _Percent(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`1%` or `0.5 %` -> a fraction. A bare number is refused: 0.01 and 1 are too easily taken for each other."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        if not text.endswith("%"):
            meant = text if _is_share(text) else "1"
            self.fail(f"{value!r} has no per cent sign; write it as {meant}%", param, ctx)
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            self.fail(f"{value!r} is no percentage; write it as 1%", param, ctx)
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return share


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 100
    except ValueError:
        return False


PERCENT = _Percent()


def print_json(value: dict[str, Any]) -> None:
    """One line. JSON has no NaN and no infinity: null stands for them."""
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
