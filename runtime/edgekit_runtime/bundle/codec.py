"""Dataclasses to JSON and back, with an error that names the place.
Manifests, and every record that edgekit keeps for itself.

    value = to_json(manifest)
    manifest = from_json(Manifest, value, "manifest")      # BundleError: manifest.artifacts[0].bytes: 7.5 is not an int

    write_file(path, json_text(journal))
    journal = read_json(Journal, text, "journal.json", format=1)      # ValueError: journal.json.next: 'x' is not a int

Types: str, int, float, bool, Path, Any, Literal, tuple[T, ...], tuple[A, B], list[T], frozenset[T], dict[str, T],
dict[int, T], dataclasses, and unions with None. Unknown keys are ignored, so that an older reader opens a newer bundle
of the same format version. A manifest leaves out what has no value; a record may also say null.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from edgekit_runtime.errors import BundleError, shorten
from edgekit_runtime.strict_json import is_format, strict_json

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """The JSON value of a dataclass tree, without absent options (None), tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: to_json(item) for name, item in pairs if item is not None}
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(to_json(item) for item in value)
    if isinstance(value, Path):
        return str(value)
    return value


def from_json(kind: type[T], value: Any, where: str, *, nulls: bool = False) -> T:
    """The dataclass `kind` out of a JSON value.
    Raises BundleError naming the first place that does not fit.

    nulls: null is None where the type allows that, as in a record; else it is a mistake, as in a manifest.
    """
    return typing.cast(T, _convert(kind, value, where, nulls))


def json_text(value: Any) -> str:
    """What a file of ours holds: read by `read_json`, and by a person."""
    return json.dumps(to_json(value), sort_keys=True, indent=1) + "\n"


def read_json(kind: type[T], text: str | bytes, where: str, *, format: int | None = None) -> T:  # noqa: A002 - the key's name
    """The dataclass `kind` out of a text. format: what its key `format` must say.
    Raises ValueError that says what is wrong.
    """
    value = strict_json(text.encode() if isinstance(text, str) else text)
    if format is not None and not (isinstance(value, dict) and is_format(value.get("format"), format)):
        raise ValueError("it is not of a format that this runtime knows")
    try:
        return from_json(kind, value, where, nulls=True)
    except BundleError as error:
        raise ValueError(f"{error.where}: {error.what}") from error


def _convert(kind: Any, value: Any, where: str, nulls: bool) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and nulls:
            return None
        _expect(value is not None, value, "anything: what has no value is left out", where)
        return _convert(next(a for a in arguments if a is not type(None)), value, where, nulls)
    if origin is typing.Literal:
        same = any(type(value) is type(one) and value == one for one in arguments)  # 1 == True == 1.0
        _expect(same, value, f"one of {', '.join(map(str, arguments))}", where)
        return value
    if origin in (tuple, list, frozenset):
        _expect(isinstance(value, list), value, "a list", where)
        if origin is not tuple or arguments[1:] == (Ellipsis,):
            return origin(_convert(arguments[0], item, f"{where}[{i}]", nulls) for i, item in enumerate(value))
        _expect(len(value) == len(arguments), value, f"a list of {len(arguments)}", where)
        items = enumerate(zip(arguments, value, strict=True))
        return tuple(_convert(each, item, f"{where}[{i}]", nulls) for i, (each, item) in items)
    if origin is dict:
        _expect(isinstance(value, dict), value, "an object", where)
        return {
            arguments[0](name): _convert(arguments[1], one, f"{where}.{name}", nulls) for name, one in value.items()
        }
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where, nulls)
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is Any:
        return value
    if kind is Path and type(value) is str:
        return Path(value)
    _expect(type(value) is kind, value, f"a {kind.__name__}", where)  # True is no 1
    return value


def _dataclass(kind: Any, value: Any, where: str, nulls: bool) -> Any:
    _expect(isinstance(value, dict), value, "an object", where)
    known = {}
    for field, hint in _fields(kind):
        if field.name in value:
            known[field.name] = _convert(hint, value[field.name], f"{where}.{field.name}", nulls)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            if type(None) not in typing.get_args(hint):
                raise BundleError(f"'{field.name}' is missing", where=where, do="Build the bundle again")
            known[field.name] = None
    return kind(**known)


@functools.cache
def _fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _expect(fits: bool, value: Any, wanted: str, where: str) -> None:
    if not fits:
        shown = shorten(repr(value), 40)
        raise BundleError(f"{shown} is not {wanted}", where=where, do="Build the bundle again")
