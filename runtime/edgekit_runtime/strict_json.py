"""JSON of a foreign sender: bounded before it is parsed, and in the strict form without two possible readings.

    value = load_json(payload)                          # ValueError: no JSON, NaN, nested too deeply
    value = strict_json(b'{"version": 3}')
    strict_json(b'{"version": 3, "version": 9}')        # ValueError: the name 'version' stands there twice

Rules:
- the values are counted in the text before it is parsed, because three bytes (`[],`) become eighty in memory; commas and
  brackets within strings count too, so the count is never too low;
- NaN and the infinities are no JSON;
- `strict_json` is for files that decide whether something is trusted. It also refuses a number that overflows, a name given twice in one object, a byte
  order mark and half a surrogate pair. Any spelling is read here; what is signed is the canonical one (`canonical`).
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

__all__ = ["MOST_VALUES", "JsonSizeError", "is_format", "load_json", "strict_json"]

MOST_VALUES = 2 << 20
"""Lists, objects and values, where a named value counts as four: at most 200 MB when parsed."""


class JsonSizeError(ValueError):
    """The text is JSON perhaps, and holds too many values to be parsed."""


def load_json(data: bytes | bytearray | memoryview, *, most_values: int = MOST_VALUES) -> Any:
    """The value. Raises ValueError; of these JsonSizeError for too many values."""
    return _parsed(str(data, "utf-8"), most_values)


def strict_json(data: bytes) -> Any:
    """Raises ValueError, whose text says what is wrong."""
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
    """Whether `value` is the number of a format: neither `true` nor 1.0 is the format 1."""
    return type(value) is int and value == known


def _parsed(text: str, most_values: int, **hooks: Any) -> Any:
    values = sum(map(text.count, ",[{")) + 4 * text.count(":")
    if values > most_values:
        raise JsonSizeError(f"it holds more than {most_values:,} values")
    try:
        return json.loads(text, parse_constant=_no_constant, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!r:.40} stands there twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is larger than any number that can be kept")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
