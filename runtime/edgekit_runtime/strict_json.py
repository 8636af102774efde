"""JSON that two readers cannot read differently, for files that decide whether something is trusted.

    value = strict_json(b'{"version": 3}')
    strict_json(b'{"version": 3, "version": 9}')        # ValueError: the name 'version' stands there twice

Refused beside what is no JSON: a name given twice in one object, NaN and the infinities, text that is not UTF-8, a byte
order mark, half a surrogate pair, and nesting beyond what the interpreter takes. Any spelling is read here; what is signed is
the canonical one (`bundle.canonical`), in which a manifest must stand, too.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

__all__ = ["is_format", "strict_json"]


def strict_json(data: bytes) -> Any:
    """Raises ValueError, whose text says what is wrong."""
    try:
        text = data.decode("utf-8")
        if text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark")
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!r:.40} stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
