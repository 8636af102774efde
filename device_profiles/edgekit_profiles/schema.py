"""Read a TOML table key by key.

    table = Table(parse_toml(text), "boards/our-gateway.toml")
    name, threads = table.text("name"), table.integer("threads"); table.done(); table.refuse()

Rules:
- a missing key, a wrong type and an unknown key are mistakes; each names the file and the dotted key;
- a mistake is noted and a stand-in returned, so that one reading finds all of a file; only the first mistake of a key
  counts, and none within a table that is a mistake itself;
- `stop` ends a part that has no stand-in, and `part` continues after it; `done` notes the keys that were not read;
  `refuse` raises what was noted, before a caller uses the values.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from edgekit_profiles.errors import ProfileError
from edgekit_runtime.system.errors import EdgekitError, sentences

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same reader, from the package index
    import tomli as tomllib


T = TypeVar("T")
_TOO_MUCH = 1e15


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError, or RecursionError if it is nested too deep."""
    return tomllib.loads(text)


def _mistake(file: str, path: str, key: str, what: str, do: str) -> EdgekitError:
    dotted = f"{path}.{key}" if path else key
    return ProfileError(f"'{dotted}' {what}", where=file, do=do, key=dotted)


class _StopError(Exception):
    """A mistake was noted, and the rest of this part cannot be read."""


class Table:
    """One table of a file. A reader without a default notes a mistake if the key is missing.

    path: the table's dotted key.
    mistakes: by dotted key, shared by the tables of one file.
    mistake: makes one of file, path, key, what and do.
    """

    def __init__(
        self,
        data: dict[str, Any],
        file: str,
        path: str = "",
        mistakes: dict[str, EdgekitError] | None = None,
        mistake: Callable[[str, str, str, str, str], EdgekitError] = _mistake,
        top: list[str] | None = None,
    ) -> None:
        self.data, self.file, self.path = data, file, path
        self.mistakes, self._top = {} if mistakes is None else mistakes, [] if top is None else top
        self._asked: list[str] = []
        self._mistake = mistake

    def text(self, key: str, default: str | None = None, choices: Sequence[str] = ()) -> str:
        """Read a string; with choices, one of them or the default."""
        value: str = self._take(key, (str,), "a string", default, "")
        if choices and value not in choices and value != default:
            what = f"is '{value}', not one of {', '.join(choices)}"
            self.wrong(key, what, _suggestion(value, choices) or "Write one of these")
            return default or ""
        return value

    def integer(self, key: str) -> int:
        return int(self._positive(key, self._take(key, (int,), "a whole number", None, 1)))

    def number(self, key: str) -> float:
        return float(self._positive(key, self._take(key, (int, float), "a number", None, 1.0)))

    def real(self, key: str, default: float) -> float:
        """Read any finite number."""
        return self._finite(key, self._take(key, (int, float), "a number", default, default))

    def reals(self, key: str, count: int) -> tuple[float, ...] | None:
        """Read `count` finite numbers, or one for all; None if the key is absent."""
        if not self.has(key):
            return None
        value = self.data[key]
        listed = value if isinstance(value, list) else [value]
        for item in listed:
            if isinstance(item, bool) or not isinstance(item, (int, float)):
                self.wrong(key, f"is {_kind(item)}, not a number or a list of numbers")
                return (0.0,) * count
        if listed is value and len(listed) != count:
            do = f"Write {count} numbers, or one for all" if count > 1 else "Write one number"
            self.wrong(key, f"has {len(listed)} numbers, not {count}", do)
            return (0.0,) * count
        found = tuple(self._finite(key, item) for item in listed)
        return found if listed is value else found * count

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._take(key, (bool,), "true or false", default, default))

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._take(key, (list, tuple), "a list of strings", default, ())
        if not all(isinstance(item, str) for item in value):
            self.wrong(key, "is not a list of strings")
            return ()
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """Read whole numbers above 0; empty if the key is absent."""
        value = self._take(key, (list, tuple), "a list of whole numbers", (), ())
        if not all(type(item) is int and 0 < item < _TOO_MUCH for item in value):
            self.wrong(key, "is not a list of whole numbers above zero")
            return ()
        return tuple(value)

    def mapping(self, key: str) -> dict[str, str]:
        value: dict[str, Any] = self._take(key, (dict,), "a table", {}, {})
        for name, item in value.items():
            if not isinstance(item, str):
                self.wrong(f"{key}.{name}", f"is {_kind(item)}, not a string")
        return {name: item for name, item in value.items() if isinstance(item, str)}

    def table(self, key: str, default: dict[str, Any] | None = None) -> Table:
        """Read a table. A required table that is missing counts as one mistake."""
        return self._table(self._take(key, (dict,), "a table", default, {}), self._dotted(key))

    def optional_table(self, key: str) -> Table | None:
        return self.table(key) if self.has(key) else None

    def tables(self, key: str) -> list[Table]:
        value: list[Any] = self._take(key, (list,), "a list of tables", [], [])
        if not all(isinstance(item, dict) for item in value):
            self.wrong(key, "is not a list of tables")
            return []
        return [self._table(item, f"{self._dotted(key)}[{index}]") for index, item in enumerate(value)]

    def record(self, kind: type[T], **given: Any) -> T:
        """Read the table as a dataclass: a key for each field that is not given, by its type.
        A `Literal` lists the choices, a field with a default is optional, and other keys are mistakes."""
        hints = get_type_hints(kind)
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name not in given:
                factory = field.default_factory
                default = field.default if factory is MISSING else factory()
                given[field.name] = self._field(field.name, hints[field.name], default)
        self.done()
        return kind(**given)

    def _field(self, key: str, hint: Any, default: Any) -> Any:
        parts = get_args(hint)
        if type(None) in parts:
            return self._field(key, parts[0], MISSING) if self.has(key) else None
        if get_origin(hint) is Literal:
            return self.text(key, None if default is MISSING else default, choices=parts)
        if isinstance(hint, type) and is_dataclass(hint):
            return self.table(key, None if default is MISSING else {}).record(hint)
        if get_origin(hint) is tuple and isinstance(parts[0], type) and is_dataclass(parts[0]):
            return tuple(table.record(parts[0]) for table in self.tables(key))
        readers: dict[Any, Callable[..., Any]] = {
            str: self.text, bool: self.flag, int: self.integer, float: self.number, dict[str, str]: self.mapping,
            tuple[str, ...]: self.texts, tuple[int, ...]: self.integers,
        }  # fmt: skip
        takes_default = default is not MISSING and hint in (str, bool, tuple[str, ...])
        return readers[hint](key, default) if takes_default else readers[hint](key)

    def has(self, key: str) -> bool:
        self._asked.append(key)
        return key in self.data

    def done(self, known: Sequence[str] = ()) -> None:
        """Note every key that was neither read nor is known."""
        known = [*known, *self._asked]
        self._top += () if self.path else known
        listed = f"Known: {', '.join(dict.fromkeys(known))}"
        for key in self.data:
            if key not in known:
                near = "Write it above the first [table]" if key in self._top else _suggestion(key, known)
                self.wrong(key, "is not a key of the format", near or listed)
                listed = listed if near else ""  # one table's keys are listed once

    def wrong(self, key: str, what: str, do: str = "") -> None:
        dotted = self._dotted(key)
        if not any(dotted == one or dotted.startswith((f"{one}.", f"{one}[")) for one in self.mistakes):
            self.mistakes[dotted] = self._mistake(self.file, self.path, key, what, do)

    def stop(self, key: str, what: str, do: str = "") -> NoReturn:
        """Note a mistake, after which this `part` of the file cannot be read."""
        self.wrong(key, what, do)
        raise _StopError

    def part(self, read: Callable[[], T | None]) -> T | None:
        """Return what `read` returns; None if it stopped or raised an EdgekitError."""
        try:
            return read()
        except _StopError:
            return None
        except EdgekitError as error:
            self.mistakes[str(error)] = error
            return None

    def refuse(self) -> None:
        """Raise the one mistake that was noted, or one error that names them all."""
        refuse(tuple(self.mistakes.values()))

    def _table(self, data: dict[str, Any], path: str) -> Table:
        return Table(data, self.file, path, self.mistakes, self._mistake, self._top)

    def _take(self, key: str, kinds: tuple[type, ...], wanted: str, default: Any, stand_in: Any) -> Any:
        self._asked.append(key)
        if key not in self.data:
            if default is None:
                self.wrong(key, "is missing", f"Add it: it is {wanted}")
                return stand_in
            return default
        value = self.data[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.wrong(key, f"is {_kind(value)}, not {wanted}")
            return stand_in
        return value

    def _positive(self, key: str, value: Any) -> Any:
        if not 0 < value < _TOO_MUCH:
            shown = f"is {value}" if not value >= _TOO_MUCH else "is beyond any board"
            self.wrong(key, f"{shown}, and must be above zero")
            return 1
        return value

    def _finite(self, key: str, value: float) -> float:
        if not abs(value) <= sys.float_info.max:
            self.wrong(key, "is not a finite number")
            return 0.0
        return float(value)

    def _dotted(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def refuse(mistakes: Sequence[EdgekitError]) -> None:
    """Raise the only mistake, or one error that names them all; nothing for none."""
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        each = "; ".join(sentences(error.what, error.do) for error in mistakes[:10])
        more = f"; and {len(mistakes) - 10} more" if len(mistakes) > 10 else ""
        error = type(mistakes[0])(f"{len(mistakes)} mistakes: {each}{more}", where=mistakes[0].where)
        error.mistakes = tuple(mistakes)
        raise error


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
    return "a string" if isinstance(value, str) else names.get(type(value), type(value).__name__)


def _suggestion(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else ""
