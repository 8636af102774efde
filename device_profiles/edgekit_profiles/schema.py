"""A TOML table taken apart key by key: a missing key, a wrong type and a key nobody asked for are errors.

Each error names the file and the dotted key. What was not taken when `done` is called is an unknown key.

    table = Table(tomllib.loads(text), "boards/raspberry-pi-4.toml")
    name, threads = table.text("name"), table.integer("threads"); table.done()
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from edgekit_profiles.errors import ProfileError

__all__ = ["Table"]

_TOO_MUCH = 1e15


class Table:
    """One table of a file. Takers without a default raise ProfileError when the key is missing."""

    def __init__(self, data: dict[str, Any], file: str, path: str = "") -> None:
        self._data = data
        self._asked: list[str] = []
        self.file = file
        self.path = path

    def text(self, key: str, default: str | None = None, choices: Sequence[str] = ()) -> str:
        value: str = self._take(key, (str,), "a string", default)
        if choices and value not in choices:
            raise self.error(key, f"is '{value}', which is none of {', '.join(choices)}", _near(value, choices))
        return value

    def integer(self, key: str) -> int:
        value: int = self._positive(key, self._take(key, (int,), "a whole number", None))
        return value

    def number(self, key: str) -> float:
        return float(self._positive(key, self._take(key, (int, float), "a number", None)))

    def flag(self, key: str) -> bool:
        """False where the key is absent."""
        value: bool = self._take(key, (bool,), "true or false", False)
        return value

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._take(key, (list, tuple), "a list of strings", default)
        if not all(isinstance(item, str) for item in value):
            raise self.error(key, "is not a list of strings")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, str]:
        value: dict[str, Any] = self._take(key, (dict,), "a table", {})
        for name, item in value.items():
            if not isinstance(item, str):
                raise self.error(f"{key}.{name}", f"is {_kind(item)}, not a string")
        return dict(value)

    def table(self, key: str, default: dict[str, Any] | None = None) -> Table:
        return Table(self._take(key, (dict,), "a table", default), self.file, self._dotted(key))

    def tables(self, key: str) -> list[Table]:
        value: list[Any] = self._take(key, (list,), "a list of tables", [])
        if not all(isinstance(item, dict) for item in value):
            raise self.error(key, "is not a list of tables")
        return [Table(item, self.file, f"{self._dotted(key)}[{index}]") for index, item in enumerate(value)]

    def has(self, key: str) -> bool:
        self._asked.append(key)
        return key in self._data

    def done(self) -> None:
        """Raises ProfileError for the first key of this table that was never asked for."""
        for key in self._data:
            if key not in self._asked:
                raise self.error(key, "is not a key of the format", _near(key, self._asked))

    def error(self, key: str, what: str, do: str = "") -> ProfileError:
        dotted = self._dotted(key)
        return ProfileError(f"'{dotted}' {what}", where=self.file, do=do)

    def _take(self, key: str, kinds: tuple[type, ...], wanted: str, default: Any) -> Any:
        self._asked.append(key)
        if key not in self._data:
            if default is None:
                raise self.error(key, "is missing", f"Add it: it is {wanted}")
            return default
        value = self._data[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(key, f"is {_kind(value)}, not {wanted}")
        return value

    def _positive(self, key: str, value: Any) -> Any:
        if not 0 < value < _TOO_MUCH:
            shown = f"is {value}" if not value >= _TOO_MUCH else "is beyond any board"
            raise self.error(key, f"{shown}, and must be above zero")
        return value

    def _dotted(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
    return "a string" if isinstance(value, str) else names.get(type(value), type(value).__name__)


def _near(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(dict.fromkeys(known))}"
