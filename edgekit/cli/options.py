"""Options of requests and of several commands, and completions.

    @options_of(BuildRequest)
    @profile(help="The board. Default: the bundle's own.")

Rules:
- an option is declared once, here or as a field of a request; a command may change its help and metavar;
- --secret and --encrypt name the place of a key; the key itself is refused as an argument;
- a completion imports only what it lists, and lists nothing if that cannot be read.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit_converters.recipe.option import BUDGET_MS, OUTPUT, PROFILE, PROFILE_PATH, OptionField, options_in
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.policy.budget import PRESETS_MS, Use
from edgekit_runtime.system.errors import EdgekitError, SecretError

if TYPE_CHECKING:
    from edgekit.fleet.store.sql import SqlStore
    from edgekit_profiles import Catalogue, Profile
    from edgekit_runtime.bundle.reader import Bundle

Decorator = Callable[[Any], Any]
"""Adds an option to a command."""
_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(names: Callable[[click.Context], Iterable[str]] | str) -> _Complete:
    """names: all of them, or where they are: module:attribute, a function or a collection."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            if isinstance(names, str):
                module, attribute = names.split(":")
                found = getattr(importlib.import_module(module), attribute)
                listed = found() if callable(found) else found
            else:
                listed = names(context)
            return [name for name in listed if name.startswith(incomplete)]
        except (EdgekitError, OSError, ImportError):
            return []

    return complete


def _profiles(context: click.Context) -> Iterable[str]:
    return catalogue_of(context.params.get("profile_paths") or ()).names()


def _keys(context: click.Context) -> Iterable[str]:
    from edgekit.packaging.key_folder import KeyFolder, default_folder

    return [entry.name for entry in KeyFolder(context.params.get("folder") or default_folder()).entries()]


COMPLETE: dict[str, _Complete] = {
    "profiles": _completing(_profiles),
    "recipes": _completing("edgekit_converters.recipe.artifact:RECIPES"),
    "metrics": _completing("edgekit.building.build_request:METRICS"),
    "engines": _completing("edgekit_runtime.engines.registry:ENGINES"),
    "codes": _completing("edgekit.boards.catalogue:entries"),
    "keys": _completing(_keys),
}
"""What a shell completes, by what is named."""


class _NonEmptyPath(click.Path):
    """A path that is not "" (an unset variable), which pathlib takes for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


class _ModelPath(_NonEmptyPath):
    """A model names what is made of it: `.` and `..` become the folders that they stand for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        return path.resolve() if path.name in ("", "..") else path


PATH = BUNDLE = _NonEmptyPath(path_type=Path)
MODEL = _ModelPath(path_type=Path)


class FiniteRange(click.FloatRange):
    """A FloatRange without "nan", which is neither below nor above any bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


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
            self.fail(f"{value!r} is not a percentage; write it as 1%", param, ctx)
        if not 0 <= number <= 100:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return number / 100


class _SourceType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`file:PATH`, `env:NAME`, `cmd:COMMAND` or a path. Raises SecretError without the text."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from edgekit_runtime.bundle.secrets import parse_source

        parse_source(value)
        return str(value)


class _ListType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`a,b` -> ("a", "b")."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(filter(None, map(str.strip, value.split(","))))


_KINDS = {"percent": _PercentType(), "source": _SourceType(), "list": _ListType()}


class _SectionedOption(click.Option):
    """An option that `--help` lists in a section."""

    def __init__(self, *arguments: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """Lists options in sections; those without one are in the last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)) is not None:
                title = getattr(one, "section", "") or list(sections)[-1]
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def options_of(request: type, *names: str, **differs: Any) -> Decorator:
    """Options for a request's fields: the named ones, or all that no file holds.

    differs: what click gets instead.
    """

    def declare(command: Any) -> Any:
        for one in reversed(list(options_in(request))):
            if one.name in names or not (names or one.option.in_file):
                command = _declared(one, **differs)(command)
        return command

    return declare


def _declared(one: OptionField, **differs: Any) -> Decorator:
    asked, kind = one.option, one.type
    several = one.repeats and asked.kind != "list"
    given: dict[str, Any] = {"help": asked.help, "metavar": asked.metavar, "shell_complete": COMPLETE.get(asked.names)}
    given |= {"multiple": several, "section": asked.section}
    if one.default is MISSING:
        given["required"] = True
    elif not several:
        given |= {"default": one.default, "show_default": bool(one.default) and "Default:" not in asked.help}
    if kind is bool:
        given["is_flag"] = True
    elif asked.kind:
        given["type"] = _KINDS[asked.kind]
    elif typing.get_origin(kind) is typing.Literal:
        given["type"] = click.Choice(typing.get_args(kind))
    elif one.bounds:
        low, high = (
            (asked.least if asked.above is None else asked.above),
            (asked.most if asked.below is None else asked.below),
        )
        number: Any = click.IntRange if kind is int else FiniteRange
        given["type"] = number(low, high, asked.above is not None, asked.below is not None)
    else:
        given["type"] = PATH if kind is Path else int if kind is int else str
    flags, given = filter(None, (asked.short, one.flag, one.name)), given | differs
    if given.get("required"):  # click 8.5 takes a default of None for a value
        given.pop("default", None)
    return click.option(*flags, cls=_SectionedOption, **given)


def shared(*flags: str, **given: Any) -> Callable[..., Decorator]:
    """An option of several commands, each of which may change its help."""
    return lambda **differs: click.option(*flags, **given | differs)


def profile(**differs: Any) -> Decorator:
    return _declared(OptionField("profile", str, PROFILE), **differs)


def profiles(**differs: Any) -> Decorator:
    repeated = replace(PROFILE, flag="--profile")
    return _declared(OptionField("profiles", str, repeated, (), repeats=True), **differs)


def output(metavar: str, help: str, **differs: Any) -> Decorator:  # noqa: A002 - click's name
    return _declared(OptionField("output", Path, replace(OUTPUT, help=help, metavar=metavar)), **differs)


profile_path = _declared(OptionField("profile_paths", Path, PROFILE_PATH, (), repeats=True))
budget_ms = _declared(OptionField("budget_ms", float, BUDGET_MS))
as_json = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object on stdout.")
no_cache = click.option("--no-cache", is_flag=True, help="Do not use the build cache.")
root = shared("--root", type=PATH, required=True, metavar="DIR", help="The install root that the application opens.")
trust = shared(
    "--trust",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A root.json, or a public key (PEM; repeatable), that must have signed the bundle. Default: this machine's "
    "trusted keys, see `edgekit keys list`.",
)
allow_unsigned = click.option(
    "--allow-unsigned",
    is_flag=True,
    help="Accept a bundle that no trusted key has signed: unsigned, signed by unknown or too few keys, or on a machine "
    "without trusted keys. Every report says so.",
)
secret = click.option(
    "--secret",
    type=_KINDS["source"],
    metavar="SOURCE",
    help="Key of an encrypted bundle: file:PATH, env:NAME or cmd:COMMAND. Default: EDGEKIT_SECRET, "
    "~/.config/edgekit/secret, /etc/edgekit/secret.",
)


def opening(command: Any) -> Any:
    """How a bundle is opened: --trust, --allow-unsigned, --secret."""
    return trust()(allow_unsigned(secret(command)))


use = click.option(
    "--use",
    type=click.Choice(tuple(PRESETS_MS)),
    help="Budget by purpose: 100, 500, 200, 100, 50, 10 ms in this order.",
)
engine = shared(
    "--engine",
    shell_complete=COMPLETE["engines"],
    metavar="NAME",
    help=f"{', '.join(ENGINES)}. Default: the fastest installed.",
)
threads = shared(
    "--threads", type=click.IntRange(1, 256), metavar="N", help="Engine threads. Default: the bundle's setting."
)
pin = click.option(
    "--pin",
    type=click.Choice(["primary"]),
    help="Use the bundle's primary artifact, the same on every machine. Default: the fastest on this one.",
)
recipe = shared("--recipe", metavar="NAME", help="The artifact's recipe. Default: the primary one.")
store = shared(
    "--store", default="sqlite:///fleet.db", show_default=True, metavar="URL", help="The fleet server's store."
)
bundles = shared(
    "--bundles", type=PATH, metavar="DIR", help="Directory of rolled-out bundles. Default: next to the store."
)
share = shared("--share", metavar="NAME", help="Share the work with `edgekit fleet ingest --share NAME`.")


def read_source(source: str, option: str, contents: str = "the password") -> str:
    """The text behind `env:NAME` or `file:PATH`, without the line end. Raises SecretError."""
    from edgekit_runtime.bundle.secrets import from_file, from_variable, parse_source

    parsed = parse_source(source)
    if parsed.kind == "cmd" or ":" not in source:
        raise SecretError("not a source", where=option, do="Pass env:NAME or file:PATH", code="secret-format")
    name = parsed.name
    data = from_variable(name, contents) if parsed.kind == "env" else from_file(Path(name), str(parsed), contents)
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SecretError("not UTF-8", where=source, do="Encode it as UTF-8", code="secret-format") from error


def broker_url(context: Any, option: click.Parameter, given: str | None) -> str | None:
    """The URL itself, or what env:NAME or file:PATH holds.

    It may have a password, and other users see arguments."""
    if given is None or given.partition(":")[0] not in ("env", "file"):
        return given
    return read_source(given, option.opts[0], "the broker's URL")


broker = shared(
    "--broker",
    metavar="URL",
    callback=broker_url,
    help="The MQTT broker that boards report to: mqtt://host:1883, or env:NAME or file:PATH with the URL.",
)
device = shared("--device", metavar="ID", help="This board's id in the fleet.")
window_s = shared(
    "--window-s", type=FiniteRange(0.1, 86_400), metavar="S", help="Seconds between reports. Default: 60."
)
listen = shared(
    "--listen", show_default=True, metavar="ADDRESS:PORT", help="Address to listen on; port 0 for any free one."
)
certificate = shared("--certificate", type=PATH, metavar="FILE", help="The server's certificate (PEM).")
private_key = shared(
    "--key", type=PATH, metavar="FILE", help="Its private key (PEM). Default: in the certificate's file."
)
unencrypted = shared(
    "--unencrypted", is_flag=True, help="Listen without TLS: anyone on the network can read requests and tokens."
)
BOARD_ENGINES = tuple(name for name, kind in ENGINES.items() if kind.on_boards)
"""Engines with wheels for boards, which `deploy` and `estimate` offer."""


def catalogue_of(paths: Sequence[Path]) -> Catalogue:
    """All profiles, with those of the --profile-path folders. Raises ProfileError."""
    from edgekit_profiles import open_catalogue

    return open_catalogue(paths)


def load_profile(name: str, paths: Sequence[Path]) -> Profile:
    """The profile of --profile and --profile-path. Raises UnknownProfileError and ProfileError."""
    return catalogue_of(paths).load(name)


def budget_of(use: Use | None, budget_ms: float | None) -> float | None:
    """The budget, milliseconds. Raises UsageError if both are given."""
    if use is not None and budget_ms is not None:
        raise click.UsageError("--use sets a budget: pass either --use or --budget-ms.")
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


def held_bundle(path: Path, trust: Sequence[Path] = (), allow_unsigned: bool = False) -> Path:
    """The file of a BUNDLE, or of the active one of a ROOT, which stays until the command ends."""
    from edgekit.packaging.model_file import bundle_file

    return click.get_current_context().with_resource(bundle_file(path, trust, allow_unsigned))


@contextlib.contextmanager
def opened_store(url: str) -> Iterator[SqlStore]:
    """The store that a fleet server made. Raises FleetError, StoreError."""
    from edgekit.fleet.serve import open_store

    with contextlib.closing(open_store(url, make=False)) as store:
        yield store


def opened_bundle(path: Path, options: dict[str, Any]) -> Bundle:
    """A BUNDLE or the active one of a ROOT, opened as `opening` says."""
    from edgekit_runtime.bundle.reader import read_verified
    from edgekit_runtime.bundle.secrets import find_secret

    secret = options["secret"] or find_secret
    return read_verified(held_bundle(path), options["trust"], secret=secret, allow_unsigned=options["allow_unsigned"])
