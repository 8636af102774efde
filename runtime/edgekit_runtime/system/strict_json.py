r"""Strict JSON: bounded, with one reading or in one canonical form; dataclasses and JSON.

    value = load_json(payload)                          # ValueError: not JSON, NaN, nested too deeply
    strict_json(b'{"version": 3, "version": 9}')        # ValueError: duplicate key 'version'
    value = parse_canonical(data, "the manifest", where)    # BundleError: the manifest is not canonical JSON: ...
    manifest = from_json(Manifest, value, "manifest")      # BundleError: manifest.artifacts[0].bytes: 7.5 is not an int
    journal = read_json(Journal, text, "journal.json", format=1)      # ValueError: journal.json.next: 'x' is not an int

Rules:
- values are counted in the text before it is parsed, because three bytes (`[],`) become eighty in memory. NaN and the
  infinities are not JSON;
- `strict_json`, for files that decide about trust, also refuses overflowing numbers, duplicate keys, a byte order mark
  and half a surrogate pair;
- `parse_canonical`, for what is signed, allows the one spelling that `canonical_bytes` writes: RFC 8785 with nesting up
  to MAX_DEPTH, and in strings no control character, line separator or direction mark, and no escape but \" and \\.
  A whole number beyond +-(2**53 - 1) is a float;
- fields are str, int, float, bool, Path, Any, Literal, tuple, list, frozenset, dict by str or int, dataclasses, and
  unions with None. Unknown keys are ignored, so that an older reader opens a newer bundle of the same format;
- a manifest leaves out what has no value; a record may also say null.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import types
import typing
from collections.abc import Iterable
from functools import cache
from itertools import zip_longest
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from edgekit_runtime.system.errors import BundleError, shorten

MOST_VALUES = 2 << 20
"""Lists, objects and values, a named value counted as four: at most 200 MB when parsed."""
MAX_NUMBER = 2**53 - 1
"""Largest whole number that every JSON reader keeps exactly."""
MAX_DEPTH = 24
"""Nested objects and lists in canonical JSON."""
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_WORDS = {None: "null", True: "true", False: "false"}
_ECMASCRIPT_PLAIN = (-7, 21)
"""ECMAScript writes numbers from 1e-6 to below 1e21 without an exponent (ECMA-262, Number::toString)."""


class JsonSizeError(ValueError):
    """The text holds too many values to be parsed."""


def load_json(data: str | bytes | bytearray | memoryview, *, most_values: int = MOST_VALUES) -> Any:
    """The value. Raises ValueError; JsonSizeError for too many values."""
    return _parse(data if isinstance(data, str) else str(data, "utf-8"), most_values)


def strict_json(data: bytes) -> Any:
    """The value. Raises ValueError with a text that says what is wrong."""
    try:
        text = data.decode("utf-8")
        if text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark")
        value = _parse(text, MOST_VALUES, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise ValueError(
            "it is empty" if not text.strip() else f"it is not JSON, from line {error.lineno} on"
        ) from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    try:  # 1e999 is an infinity now, and an escape may spell half a surrogate pair
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it holds half a surrogate pair") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("it holds a number that is too large") from None
    return value


def is_format(value: object, known: int) -> bool:
    """Whether `value` is this format's number: neither `true` nor 1.0 is the format 1."""
    return type(value) is int and value == known


def _parse(text: str, most_values: int, **hooks: Any) -> Any:
    if 4 * len(text) > most_values < sum(map(text.count, ",[{")) + 4 * text.count(":"):
        raise JsonSizeError(f"it holds more than {most_values:,} values")
    try:
        return _DECODER.decode(text) if not hooks else json.loads(text, parse_constant=_no_constant, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        again = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {again!r:.40}")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER, _COMPACT = json.JSONDecoder(parse_constant=_no_constant), json.JSONEncoder(separators=(",", ":")).encode
"""json.loads and json.dumps make one for each call with an option."""


def parse_canonical(data: bytes, what: str, where: str) -> Any:
    """The JSON value. what: names the data in the error. Raises BundleError."""
    try:
        text = data.decode("utf-8")
        value = _parse(text, MOST_VALUES, object_pairs_hook=_unique_keys, parse_int=_integer)
        written = _canonical(value)
    except ValueError as error:
        why = f"byte {error.start} is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        form = "JSON" if isinstance(error, json.JSONDecodeError) else "canonical JSON"
        raise BundleError(f"{what} is not {form}: {why}", where=where, do="Build the bundle again") from error
    why = ""
    if unseen := _UNSEEN.search(text):
        why = f"character {unseen.start()} is invisible, U+{ord(unseen[0]):04X}"
    elif "\\" in text.replace("\\\\", "").replace('\\"', ""):
        why = "a character is escaped that must not be"
    elif written != text:
        at = next(at for at, (has, wants) in enumerate(zip_longest(text, written)) if has != wants)
        start = max(at - 40, *(text.rfind(before, 0, at) + 1 for before in "[{,:"))  # of the number or string there
        why = f"from character {at} on it is {text[start : at + 20]!r}, not {written[start : at + 20]!r}"
        if text.replace(" ", "") == written.replace(" ", ""):
            why = f"white space: {why}"
        elif sorted(text) == sorted(written):
            why = f"the keys are not in order: {why}"
    if why:
        raise BundleError(f"{what} is not canonical JSON: {why}", where=where, do="Build the bundle again")
    return value


def number_text(value: float) -> str:
    """A finite number as ECMAScript writes it, which RFC 8785 takes."""
    text = repr(value)
    if "e" not in text:  # from 1e-4 to below 1e16 Python writes the same digits
        return "0" if value == 0 else text.removesuffix(".0")
    mantissa, exponent = text.split("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    digits, point = mantissa.replace(".", ""), 1 + int(exponent)  # value = 0.digits * 10**point
    low, high = _ECMASCRIPT_PLAIN
    if not low < point - 1 < high:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits}{'0' * (point - len(digits))}"


def canonical_bytes(value: Any) -> bytes:
    """The canonical form of a JSON value: the bytes that are signed.
    Raises ValueError for NaN, infinities, whole numbers beyond 2**53 - 1, half a surrogate pair, and deep nesting."""
    return _canonical(value).encode("utf-8")


def _canonical(value: Any, depth: int = 0) -> str:
    """One call for each list, object and number: strings are written in C."""
    if isinstance(value, dict):
        names = sorted(value)
        if not all(map(str.isascii, names)):
            names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        parts = map("{}:{}".format, map(encode_basestring, names), _parts(map(value.get, names), depth))
        return "{" + ",".join(parts) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_parts(value, depth)) + "]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("NaN is not a JSON number" if math.isnan(value) else "a number is too large")
        return number_text(value)
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise ValueError(f"{value} is beyond 2**53 - 1")
    if value is None or value is True or value is False:
        return _WORDS[value]
    return repr(value) if type(value) is int else json.dumps(value, ensure_ascii=False)


def _parts(values: Iterable[Any], depth: int) -> list[str]:
    if depth >= MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
    return [encode_basestring(one) if type(one) is str else _canonical(one, depth + 1) for one in values]


def _integer(text: str) -> int | float:
    value = int(text) if len(text) <= 17 else math.inf
    return value if abs(value) <= MAX_NUMBER else float(text)


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
    """The dataclass `kind` from a JSON value. Raises BundleError naming the first mismatch.

    nulls: allow null for None, as in a record; a manifest must leave it out."""
    return typing.cast(T, _convert(kind, value, where, nulls))


def compact_json(value: Any) -> bytes:
    """A message of ours, without white space."""
    return _COMPACT(value).encode()


def finite_json(value: Any) -> Any:
    """The value with None for what is not finite, and lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite_json(inner) for name, inner in value.items()}
    return [finite_json(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def json_text(value: Any) -> str:
    """A JSON file of ours: read by `read_json` and by people."""
    return json.dumps(to_json(value), sort_keys=True, indent=1) + "\n"


def read_json(kind: type[T], text: str | bytes, where: str, *, format: int | None = None) -> T:  # noqa: A002 - the key's name
    """The dataclass `kind` from a text. format: what its key `format` must say.
    Raises ValueError that says what is wrong."""
    value = strict_json(text.encode() if isinstance(text, str) else text)
    if format is not None and not (isinstance(value, dict) and is_format(value.get("format"), format)):
        raise ValueError("it is not of a format that this runtime knows")
    try:
        return from_json(kind, value, where, nulls=True)
    except BundleError as error:
        raise ValueError(f"{error.where}: {error.what}") from error


def _convert(kind: Any, value: Any, where: str, nulls: bool) -> Any:
    origin, arguments, is_record = _form(kind)
    if origin is typing.Union:
        if value is None and nulls:
            return None
        if value is None:
            raise _mismatch(value, "anything: what has no value is left out", where)
        return _convert(arguments[0], value, where, nulls)
    if origin is typing.Literal:
        if not any(type(value) is type(one) and value == one for one in arguments):  # 1 == True == 1.0
            raise _mismatch(value, f"one of {', '.join(map(str, arguments))}", where)
        return value
    if origin in (tuple, list, frozenset):
        if not isinstance(value, list):
            raise _mismatch(value, "a list", where)
        each = arguments if origin is tuple and arguments[1:] != (Ellipsis,) else arguments[:1] * len(value)
        if len(value) != len(each):
            raise _mismatch(value, f"a list of {len(each)}", where)
        if [*map(type, value)] == [*each]:  # no number, and no list of its own: nothing to convert
            return origin(value)
        pairs = enumerate(zip(each, value, strict=True))
        return origin([_convert(one, item, f"{where}[{i}]", nulls) for i, (one, item) in pairs])
    if origin is dict:
        if not isinstance(value, dict):
            raise _mismatch(value, "an object", where)
        key, inner = arguments
        return {key(name): _convert(inner, one, f"{where}.{name}", nulls) for name, one in value.items()}
    if is_record:
        return _record(kind, value, where, nulls)
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is Path and type(value) is str:
        return Path(value)
    if kind is not Any and type(value) is not kind:  # True is not 1
        raise _mismatch(value, f"{'an' if kind is int else 'a'} {kind.__name__}", where)
    return value


def _record(kind: Any, value: Any, where: str, nulls: bool) -> Any:
    if not isinstance(value, dict):
        raise _mismatch(value, "an object", where)
    known = {}
    for name, hint, default in _fields(kind):
        if name in value:
            item = value[name]
            known[name] = item if type(item) is hint else _convert(hint, item, f"{where}.{name}", nulls)
        elif default is dataclasses.MISSING:
            raise BundleError(f"'{name}' is missing", where=where, do="Build the bundle again")
        elif default is None:
            known[name] = None
    return kind(**known)


@cache
def _form(kind: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """What the type is made of, a union without its None; and whether it is a dataclass."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return typing.Union, tuple(one for one in arguments if one is not type(None)), False
    return origin, arguments, dataclasses.is_dataclass(kind)


@cache
def _fields(kind: Any) -> list[tuple[str, Any, Any]]:
    """Name, type and default of each field.
    MISSING for one that must be given, None for one that may be left out."""
    hints, found = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        absent = None if type(None) in typing.get_args(hints[field.name]) else dataclasses.MISSING
        found.append((field.name, hints[field.name], ... if given else absent))
    return found


def _mismatch(value: Any, wanted: str, where: str) -> BundleError:
    return BundleError(f"{shorten(repr(value), 40)} is not {wanted}", where=where, do="Build the bundle again")
