"""Options of commands, each declared once: as a field of the request that it fills.

    max_drop: float | None = option(None, "Accuracy that INT8 may cost", kind="percent", metavar="PERCENT")
    [(one.name, one.type, one.default, one.option.help) for one in options_in(BuildRequest)]

Rules:
- the field's type says what a value is; a tuple is an option that may be repeated;
- click's options, a recipe file's keys and the reference page are all made from these fields;
- no framework is imported here, because `--help` reads this.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from operator import ge, gt, le, lt
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from edgekit_runtime.system.strict_json import from_json

_R = TypeVar("_R")


@dataclass(frozen=True)
class Option:
    """How a field is given.

    flag: its spelling, "" for the field's name.
    short: one letter.
    least, most: bounds of a number, inclusive. above, below: exclusive ones.
    kind: "percent", "source" or "list" where a text is converted in a special way.
    names: which names a shell completes.
    section: title in `--help`, for this and the following options.
    link: page and anchor that say more.
    in_file: given in a recipe file and not on the command line.
    """

    help: str
    flag: str = ""
    short: str = ""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    kind: str = ""
    names: str = ""
    section: str = ""
    link: str = ""
    in_file: bool = False


def option(default: Any, help: str, flag: str = "", **more: Any) -> Any:  # noqa: A002 - click's name
    """A field with its Option. default: MISSING for a required one."""
    return like(Option(help, flag, **more), default)


def like(known: Option, default: Any = None, **changes: Any) -> Any:
    """A field with an option that other commands have, too."""
    metadata = {"option": replace(known, **changes)}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def of_field(request: type, name: str) -> Option:
    """The option that another request declares."""
    found: Option = request.__dataclass_fields__[name].metadata["option"]  # type: ignore[attr-defined]
    return found


@dataclass(frozen=True)
class OptionField:
    """A field with an option. default: MISSING if it is required. repeats: for several values."""

    name: str
    type: Any
    option: Option
    default: Any = None
    repeats: bool = False

    @property
    def flag(self) -> str:
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def bounds(self) -> dict[str, float]:
        """Word -> a bound of the number, of "at least", "above", "at most" and "below"."""
        asked = self.option
        found = {"at least": asked.least, "above": asked.above, "at most": asked.most, "below": asked.below}
        return {word: bound for word, bound in found.items() if bound is not None}

    def allows(self, value: float) -> bool:
        """Whether a number keeps the bounds; one that is not finite keeps none."""
        compare = {"at least": ge, "above": gt, "at most": le, "below": lt}
        return not self.bounds or (
            math.isfinite(value) and all(compare[word](value, bound) for word, bound in self.bounds.items())
        )

    def read(self, value: Any, where: str) -> Any:
        """The value of a file's key. Raises BundleError."""
        if self.type is Mapping:
            return from_json(dict[str, tuple[int, ...]], value, where)
        kind: Any = self.type
        return from_json(tuple[kind, ...] if self.repeats else kind, value, where)


def options_in(request: type) -> Iterator[OptionField]:
    """Options of a request and of the dataclasses in it, in the order of `--help`."""
    hints, title = typing.get_type_hints(request), ""
    for one in fields(request):
        title = one.metadata.get("section", title)
        kind, repeats = _value_type(hints[one.name])
        if asked := one.metadata.get("option"):
            title = asked.section or title
            default = one.default if one.default_factory is MISSING else one.default_factory()
            yield OptionField(one.name, kind, replace(asked, section=title), default, repeats)
        elif is_dataclass(kind):
            for inner in options_in(typing.cast(type, kind)):
                yield replace(inner, option=replace(inner.option, section=title))


def filled(request: type[_R], given: Mapping[str, Any]) -> _R:
    """A request of these values: a text becomes a path or a tuple, and None the default."""
    hints, values = typing.get_type_hints(request), dict[str, Any]()
    for one in fields(request):  # type: ignore[arg-type]  # a dataclass
        (kind, repeats), value = _value_type(hints[one.name]), given.get(one.name)
        convert = Path if kind is Path else lambda item: item
        if value is None:
            if is_dataclass(kind):
                values[one.name] = filled(typing.cast(type, kind), given)
        elif repeats and kind is not Mapping:
            values[one.name] = tuple(map(convert, (value,) if isinstance(value, (str, Path)) else value))
        else:
            values[one.name] = convert(value)
    return request(**values)


def section(request: type, title: str) -> Any:
    """A field that holds a whole request, whose options are a section of `--help`."""
    return field(default_factory=request, metadata={"section": title})


def _value_type(kind: Any) -> tuple[Any, bool]:
    """(the type of one value, whether there may be several)"""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return _value_type(next(one for one in arguments if one is not type(None)))
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return arguments[0], True
    return (Mapping, True) if origin is Mapping else (kind, False)


PROFILE = Option("A board, by its name in `edgekit profiles list`.", metavar="NAME", names="profiles")
PROFILE_PATH = Option(
    "Folder with your own profiles, NAME.toml; repeatable. EDGEKIT_PROFILE_PATH adds folders, too.",
    "--profile-path",
    metavar="DIR",
    link="boards.md#your-own-boards",
)
BUDGET_MS = Option("Latency budget, milliseconds.", metavar="MS", above=0)
ANCHOR = Option(
    "Measurement by `edgekit profiles measure` on the board, to estimate latencies from. Repeatable.",
    "--anchor",
    metavar="FILE",
    link="boards.md#how-long-it-will-take",
)
OUTPUT = Option("Output folder.", short="-o", metavar="DIR")
