"""JSON that two readers cannot read differently, for files that decide whether something is trusted.

    value = strict_json(b'{"version": 3}')
    strict_json(b'{"version": 3, "version": 9}')        # ValueError: the name 'version' stands there twice

Refused beside what is no JSON: a name given twice in one object, NaN and the infinities, text that is not UTF-8, a byte
order mark, half a surrogate pair, and nesting beyond what the interpreter takes.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

__all__ = ["canonical", "strict_json"]


def strict_json(data: bytes) -> Any:
    """Raises ValueError, whose text says what is wrong."""
    try:
        text = data.decode("utf-8")
        if text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark")
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # an escape may spell half a surrogate pair
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half a surrogate pair") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def canonical(value: Any) -> bytes:
    """RFC 8785 for texts, whole numbers, true, false, null, lists and objects: the byte string that is signed.

    Raises ValueError for a number with a fraction and for one beyond +-(2^53 - 1), which RFC 8785 writes in ways of its own.
    """
    return json.dumps(_ordered(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value, key=lambda name: name.encode("utf-16-be"))}
    if isinstance(value, (list, tuple)):
        return [_ordered(item) for item in value]
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 2**53):
        raise ValueError(f"{value!r} has no one spelling here: whole numbers below 2^53 alone")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r:.40} stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
