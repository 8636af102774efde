"""Reading a contract file key by key: each reader checks the type, and its error names the file, the key and the remedy.

table = read_document(Path("model.contract.toml"))
table.choice("task", ("classification", "raw"), None)
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit_converters.errors import ContractFileError
from edgekit_profiles.schema import parse_toml
from edgekit_runtime.errors import shortened

__all__ = ["Table", "read_document", "read_text"]


@dataclass(frozen=True)
class Table:
    """One TOML table. title: as the person wrote it, `[input]`; empty for the top of the file."""

    file: Path
    title: str
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def refuse(self, key: str, what: str, do: str = "") -> ContractFileError:
        """The error to raise about one key."""
        place = " ".join(part for part in (self.title, key) if part)
        return ContractFileError(what, where=f"{self.file}, {place}" if place else str(self.file), do=do)

    def only(self, known: Iterable[str]) -> None:
        """Raises ContractFileError for the first key that is not known, with the nearest one that is."""
        known = list(known)
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(known)}"
                raise self.refuse(key, "unknown key", hint)

    def choice(self, key: str, options: Sequence[str], default: str | None) -> str | None:
        """One of the options, or the default where the key is absent."""
        if key not in self.values:
            return default
        value = self.values[key]
        if value not in options:
            listed = ", ".join(f'"{option}"' for option in options)
            raise self.refuse(key, f"{_shown(value)} is none of its values", f"Write one of: {listed}")
        return str(value)

    def truth(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, f"{_shown(value)} is neither true nor false", f"Write {key} = true or {key} = false")
        return value

    def text(self, key: str) -> str | None:
        """A name; None where the key is absent."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.refuse(key, f"{_shown(value)} is no name", f'Write {key} = "name"')
        return value

    def whole(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(key, f"{_shown(value)} is not a whole number", f"Write {key} = {default}")
        return value

    def number(self, key: str, default: float) -> float:
        if key not in self.values:
            return default
        return self._finite(key, self.values[key], f"{key} = {default:g}")

    def numbers(self, key: str, count: int) -> tuple[float, ...] | None:
        """`count` numbers; a single one is repeated. None where the key is absent."""
        value, listed = self.values.get(key), f"{key} = 127.5, or a list of numbers"
        if value is None:
            return None
        if not isinstance(value, list):
            return (self._finite(key, value, listed),) * count
        if len(value) != count:
            raise self.refuse(
                key,
                f"has {len(value)} number{'s' if len(value) != 1 else ''} and the input has {count} channel{'s' if count != 1 else ''}",
                f"Write {count} numbers, one a channel, or a single number for all"
                if count != 1
                else f"Write {key} = 127.5",
            )
        return tuple(self._finite(key, item, listed) for item in value)

    def table(self, key: str) -> Table | None:
        """The table `[key]`, None where it is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        name = f"{self.title[1:-1]}.{key}" if self.title else key
        if not isinstance(value, dict):
            raise self.refuse(key, f"{_shown(value)} is not a table", f"Write [{name}] and its keys on lines below")
        return Table(self.file, f"[{name}]", value)

    def _finite(self, key: str, value: Any, example: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(key, f"{_shown(value)} is not a number", f"Write {example}")
        try:
            number = float(value)
        except OverflowError:
            raise self.refuse(
                key, "is larger than any number that a network computes with", f"Write {example}"
            ) from None
        if not math.isfinite(number):
            raise self.refuse(key, f"{value} is not a finite number", f"Write {example}")
        return number


def read_document(file: Path) -> Table:
    """The file as one table. Raises ContractFileError when it is missing, not UTF-8 or not TOML."""
    try:
        return Table(file, "", parse_toml(read_text(file, "the contract file")))
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, and integers of thousands of digits
        raise ContractFileError(f"not valid TOML: {error}", where=str(file), do="Mend the line; see toml.io") from error


def read_text(file: Path, what: str) -> str:
    """UTF-8 text, with or without a byte order mark."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContractFileError(
            f"{what} is not UTF-8 (byte {error.start})", where=str(file), do="Save it again as UTF-8"
        ) from error
    except FileNotFoundError as error:
        raise ContractFileError(f"{what} does not exist", where=str(file), do="Check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise ContractFileError(f"{what} cannot be read: {reason}", where=str(file)) from error


def _shown(value: Any) -> str:
    return shortened(f'"{value}"' if isinstance(value, str) else str(value), 60)
