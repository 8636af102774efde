"""A TOML table taken apart key by key: a missing key, a wrong type and a key nobody asked for are mistakes.

Rules: a mistake is noted and a stand-in returned, so that one reading finds all of a file; each names the file and the
dotted key. What was not taken when `done` is called is an unknown key. `refuse` raises what was noted: whoever reads
values from a table calls it before he uses them.

    table = Table(parse_toml(text), "boards/raspberry-pi-4.toml")
    name, threads = table.text("name"), table.integer("threads"); table.done(); table.refuse()
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import Any

from edgekit_profiles.errors import ProfileError
from edgekit_runtime.errors import sentences

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same reader, from the package index
    import tomli as tomllib

__all__ = ["Table", "parse_toml", "refuse"]

_TOO_MUCH = 1e15


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError for what is not TOML, RecursionError for what is nested too deep."""
    return tomllib.loads(text)


class Table:
    """One table of a file. Takers without a default note a mistake when the key is missing.

    mistakes: shared by the tables of one file. broken: the dotted keys that they are about.
    """

    def __init__(
        self, data: dict[str, Any], file: str, path: str = "", mistakes: list[ProfileError] | None = None
    ) -> None:
        self._data = data
        self._asked: list[str] = []
        self.file = file
        self.path = path
        self.mistakes = [] if mistakes is None else mistakes

    @property
    def broken(self) -> set[str]:
        return {error.key for error in self.mistakes}

    def text(self, key: str, default: str | None = None, choices: Sequence[str] = ()) -> str:
        value: str = self._take(key, (str,), "a string", default, "")
        if choices and value not in choices and self._dotted(key) not in self.broken:
            self.wrong(key, f"is '{value}', which is none of {', '.join(choices)}", _near(value, choices))
        return value

    def integer(self, key: str) -> int:
        value: int = self._positive(key, self._take(key, (int,), "a whole number", None, 1))
        return value

    def number(self, key: str) -> float:
        return float(self._positive(key, self._take(key, (int, float), "a number", None, 1.0)))

    def flag(self, key: str) -> bool:
        """False where the key is absent."""
        value: bool = self._take(key, (bool,), "true or false", False, False)
        return value

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
        """Empty where the key is absent."""
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
        """Where the key is missing and must not be, that is one mistake: its own keys are not complained of."""
        value = self._take(key, (dict,), "a table", default, None)
        if value is None:
            return Table({}, self.file, self._dotted(key), [])
        return Table(value, self.file, self._dotted(key), self.mistakes)

    def tables(self, key: str) -> list[Table]:
        value: list[Any] = self._take(key, (list,), "a list of tables", [], [])
        if not all(isinstance(item, dict) for item in value):
            self.wrong(key, "is not a list of tables")
            return []
        return [
            Table(item, self.file, f"{self._dotted(key)}[{index}]", self.mistakes) for index, item in enumerate(value)
        ]

    def has(self, key: str) -> bool:
        self._asked.append(key)
        return key in self._data

    def done(self) -> None:
        """Notes every key of this table that was never asked for."""
        for key in self._data:
            if key not in self._asked:
                self.wrong(key, "is not a key of the format", _near(key, self._asked))

    def wrong(self, key: str, what: str, do: str = "") -> None:
        dotted = self._dotted(key)
        self.mistakes.append(ProfileError(f"'{dotted}' {what}", where=self.file, do=do, key=dotted))

    def refuse(self) -> None:
        """Raises the mistake that was noted; where there are several, one ProfileError that tells of them all."""
        refuse(self.mistakes)

    def _take(self, key: str, kinds: tuple[type, ...], wanted: str, default: Any, stand_in: Any) -> Any:
        self._asked.append(key)
        if key not in self._data:
            if default is None:
                self.wrong(key, "is missing", f"Add it: it is {wanted}")
                return stand_in
            return default
        value = self._data[key]
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

    def _dotted(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def refuse(mistakes: Sequence[ProfileError]) -> None:
    """Raises nothing for none, the one there is, or one ProfileError that tells of them all."""
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        first = mistakes[0]
        each = "; ".join(sentences(error.what, error.do) for error in mistakes[:10])
        more = f"; and {len(mistakes) - 10} more" if len(mistakes) > 10 else ""
        raise ProfileError(f"{len(mistakes)} mistakes: {each}{more}", where=first.where, key=first.key)


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
    return "a string" if isinstance(value, str) else names.get(type(value), type(value).__name__)


def _near(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(dict.fromkeys(known))}"
