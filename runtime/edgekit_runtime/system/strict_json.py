r"""Strict JSON: bounded, with one reading or in one canonical form; dataclasses and JSON.

    value = load_json(payload)                          # ValueError: no JSON, NaN, nested too deeply
    strict_json(b'{"version": 3, "version": 9}')        # ValueError: duplicate key 'version'
    value = parse_canonical(data, "the manifest", where)    # BundleError: the manifest is not canonical JSON: ...
    manifest = from_json(Manifest, value, "manifest")      # BundleError: manifest.artifacts[0].bytes: 7.5 is not an int
    journal = read_json(Journal, text, "journal.json", format=1)      # ValueError: journal.json.next: 'x' is not a int

Rules:
- values are counted in the text before it is parsed, because three bytes (`[],`) become eighty in memory. NaN and the
  infinities are not JSON;
- `strict_json`, for files that decide about trust, also refuses overflowing numbers, duplicate keys, a byte order mark
  and half a surrogate pair;
- `parse_canonical`, for what is signed, allows one spelling: UTF-8, keys once and in order of UTF-16 code units, no
  white space, ECMAScript's shortest numbers, nesting up to MAX_DEPTH. It is narrower than RFC 8785: no control
  character, line separator or direction mark in a string, no escape but \" and \\. A whole number beyond
  +-(2**53 - 1) is a float;
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
from collections.abc import Iterator
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from edgekit_runtime.system.errors import BundleError, shorten

MOST_VALUES = 2 << 20
"""Lists, objects and values, a named value counted as four: at most 200 MB when parsed."""
MAX_NUMBER = 2**53 - 1
"""Largest whole number that every JSON reader keeps exactly."""
MAX_DEPTH = 24
"""Of nested objects and lists."""
_STRING = re.compile(r'"[^"]*"?')
_SPACE = re.compile(r"[ \t\r\n]")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_BRACKETS = re.compile(r"[^\[\]{}]+")
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_ECMASCRIPT_PLAIN = (-7, 21)
"""ECMAScript writes numbers from 1e-6 to below 1e21 without an exponent (ECMA-262, Number::toString)."""


class JsonSizeError(ValueError):
    """The text holds too many values to be parsed."""


def load_json(data: str | bytes | bytearray | memoryview, *, most_values: int = MOST_VALUES) -> Any:
    """The value. Raises ValueError; JsonSizeError for too many values."""
    return _parsed(data if isinstance(data, str) else str(data, "utf-8"), most_values)


def strict_json(data: bytes) -> Any:
    """The value. Raises ValueError with a text that says what is wrong."""
    try:
        text = data.decode("utf-8")
        if text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark")
        value = _parsed(text, MOST_VALUES, object_pairs_hook=_once, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # an escape may spell half a surrogate pair
    except json.JSONDecodeError as error:
        raise ValueError("it is empty" if not text.strip() else f"it is no JSON from line {error.lineno} on") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half a surrogate pair") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def is_format(value: object, known: int) -> bool:
    """Whether `value` is this format's number: neither `true` nor 1.0 is the format 1."""
    return type(value) is int and value == known


def _parsed(text: str, most_values: int, **hooks: Any) -> Any:
    values = sum(map(text.count, ",[{")) + 4 * text.count(":")
    if values > most_values:
        raise JsonSizeError(f"it holds more than {most_values:,} values")
    try:
        return _DECODER.decode(text) if not hooks else json.loads(text, parse_constant=_no_constant, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"duplicate key {_duplicate(pairs)!r:.40}")
    return found


def _duplicate(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is larger than any number that can be kept")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""json.loads makes one for each text that is parsed with an option."""


class _NotCanonicalError(ValueError):
    """What keeps the bytes from being the canonical form, in words."""


def parse_canonical(data: bytes, what: str, where: str) -> Any:
    """The JSON value. what: names the data in the error. Raises BundleError."""
    try:
        text = data.decode("utf-8")
        if text.startswith("\ufeff"):
            raise _NotCanonicalError("it begins with a byte order mark")
        unseen = _UNSEEN.search(text)
        if unseen:
            raise _NotCanonicalError(f"character {unseen.start()} is one that is not seen, U+{ord(unseen[0]):04X}")
        unescaped = text.replace("\\\\", "").replace('\\"', "")
        between = _STRING.sub("", unescaped)
        depth = max(accumulate(map(_STEPS.__getitem__, _BRACKETS.sub("", between))), default=0)
        if depth > MAX_DEPTH:
            raise _NotCanonicalError(f"it is nested deeper than {MAX_DEPTH}")
        parse = partial(json.loads, object_pairs_hook=_object_in_order, parse_constant=_no_number)
        value = parse(text, parse_int=_integer, parse_float=_fraction)
        if _SPACE.search(between):
            raise _NotCanonicalError("there is white space between its parts")
        if "\\" in unescaped:
            raise _NotCanonicalError("a character is escaped that need not be, or is not seen")
        return value
    except (UnicodeDecodeError, _NotCanonicalError) as error:
        why = f"byte {error.start} is no UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise BundleError(f"{what} is not canonical JSON: {why}", where=where, do="Build the bundle again") from None
    except ValueError as error:
        at = f", from character {error.pos} on" if isinstance(error, json.JSONDecodeError) else f" ({error})"
        raise BundleError(f"{what} is not JSON{at}", where=where, do="Build the bundle again") from error


def number_text(value: float) -> str:
    """A finite number as ECMAScript writes it, which RFC 8785 takes."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value!r}e0".split("e")[:2] if "e" not in repr(value) else repr(value).split("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))  # value = 0.digits * 10**point
    digits = digits.rstrip("0")
    low, high = _ECMASCRIPT_PLAIN
    if not low < point - 1 < high:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"


def canonical_bytes(value: Any) -> bytes:
    """The canonical form of a JSON value: the bytes that are signed.
    Raises ValueError for NaN, infinities, whole numbers beyond 2**53 - 1, half a surrogate pair, and deep nesting."""
    try:
        return "".join(_pieces(value)).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        names = sorted(value, key=_utf16)
        for at, name in enumerate(names):
            yield f"{',' if at else '{'}{_quoted(name)}:"
            yield from _pieces(value[name])
        yield "}" if names else "{}"
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield "," if at else "["
            yield from _pieces(item)
        yield "]" if value else "[]"
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no JSON")
        yield number_text(value)
    else:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise ValueError(f"{value} is beyond 2**53 - 1")
        yield _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _object_in_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NotCanonicalError(f"the key {_duplicate(pairs)[:40]!r} stands there twice")
    names = list(found)
    ordered = sorted(names) if all(map(str.isascii, names)) else sorted(names, key=_utf16)
    if names != ordered:
        wrong = next(here for here, there in zip(names, ordered, strict=True) if here != there)
        raise _NotCanonicalError(f"the key {wrong[:40]!r} is not in order")
    return found


def _integer(text: str) -> int | float:
    if len(text) > 22:  # beyond 1e21 there is an exponent
        raise _NotCanonicalError(f"the number {text[:20]}... is written too long")
    value = int(text)
    if abs(value) > MAX_NUMBER:
        return _fraction(text)
    if text == "-0":
        raise _NotCanonicalError("zero is written -0")
    return value


def _fraction(text: str) -> float:
    if len(text) > 40:
        raise _NotCanonicalError(f"the number {text[:20]}... is written too long")
    value = float(text)
    if not math.isfinite(value):
        raise _NotCanonicalError(f"the number {text} is too large")
    if repr(value) == text and "e" not in text and not text.endswith(".0"):  # the two agree from 1e-4 to 1e16
        return value
    if number_text(value) != text:
        raise _NotCanonicalError(f"the number {text} is not written {number_text(value)}")
    return value


def _no_number(name: str) -> NoReturn:
    raise _NotCanonicalError(f"{name} is no number")


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


@cache
def _fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _expect(fits: bool, value: Any, wanted: str, where: str) -> None:
    if not fits:
        shown = shorten(repr(value), 40)
        raise BundleError(f"{shown} is not {wanted}", where=where, do="Build the bundle again")
