"""A contract file as one table, whose mistakes name the file, the key and the remedy.

table = read_document(Path("model.contract.toml"))
table.text("task", "raw", ("classification", "raw"))
"""

from __future__ import annotations

from pathlib import Path

from edgekit_converters.errors import ContractFileError
from edgekit_profiles.schema import Table, parse_toml

__all__ = ["read_document", "read_text"]


def _mistake(file: str, path: str, key: str, what: str, do: str) -> ContractFileError:
    place = " ".join(part for part in (f"[{path}]" if path else "", key) if part)
    return ContractFileError(f"{place}: {what}", where=file, do=do)


def read_document(file: Path) -> Table:
    """The file as one table. Raises ContractFileError when it is missing, not UTF-8 or not TOML."""
    try:
        return Table(parse_toml(read_text(file, "the contract file")), str(file), mistake=_mistake)
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
