"""Changes to a JSON value, and to how it is spelt, that a reader may not have thought of.

changed(json.loads(text), random)       # another value of nearly the same form
spelt(value, random)                    # its bytes: now and then with a doubled key, a byte order mark, in UTF-16, ...
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 63, 64, 65, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1,
    2**63, 2**64, 10**30, -(2**31), -(2**63), 0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"),
)  # fmt: skip
_TEXTS = (
    "", " ", "x", "..", "../x", "/etc/passwd", "a/../../x", "x\0y", "CON", "a\nb", "\x1b[31m", "\u202e", "\ud800", "é",
    "e\u0301",
    "<script>", "#", "+", "0" * 64, "f" * 64, "__class__", "nan", "1" * 400, "x" * 70, "2027-01-31T00:00:00Z",
    "99999-99-99",
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": ""}, [0] * 100)


def changed(value: Any, random: Random, changes: int = 3) -> Any:
    """A value with one to `changes` changes; `value` itself may be changed."""
    box = [value]
    for _ in range(random.randint(1, changes)):
        _change(box, random)
    return box[0]


def _change(box: list[Any], random: Random) -> None:
    parent, key = _place(box, random)
    act = random.randrange(10)
    old = parent[key]
    if act <= 3:
        parent[key] = _hostile(old, random)
    elif act == 4 and parent is not box:
        del parent[key]
    elif act == 5:
        other, there = _place(box, random)
        if other is not box:
            parent[key] = copy.deepcopy(other[there])
    elif act == 6 and isinstance(parent, list) and parent is not box:
        parent.insert(random.randint(0, len(parent)), copy.deepcopy(old))
    elif act == 7 and isinstance(parent, dict):
        parent[random.choice(_TEXTS)] = parent.pop(key)
    elif act == 8 and isinstance(parent, list):
        random.shuffle(parent)
    else:
        parent[key] = _near(old, random)


def _place(box: list[Any], random: Random) -> tuple[Any, Any]:
    """(container, key) somewhere in the tree."""
    parent: Any = box
    key: Any = 0
    while isinstance(parent[key], (dict, list)) and parent[key] and random.random() < 0.85:
        parent = parent[key]
        key = random.choice(list(parent)) if isinstance(parent, dict) else random.randrange(len(parent))
    return parent, key


def _near(old: Any, random: Random) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return old + random.choice((-1, 1, 64, -64, old, 1 << random.randrange(64)))
    if isinstance(old, float):
        return random.choice((old * 2, -old, old + 1e-9, int(old) if abs(old) < 1e300 else 0))
    if isinstance(old, str) and old:
        at = random.randrange(len(old))
        return old[:at] + random.choice(_TEXTS) + old[at + random.randint(0, 1) :]
    return _hostile(old, random)


def _hostile(old: Any, random: Random) -> Any:
    if isinstance(old, str) and random.random() < 0.6:
        return random.choice(_TEXTS)
    if isinstance(old, (int, float)) and random.random() < 0.8:
        return random.choice(_NUMBERS)
    kind = random.randrange(5)
    if kind == 0:
        return copy.deepcopy(random.choice(_OTHERS))
    if kind == 1:
        return random.choice(_TEXTS)
    if kind == 2:
        return [old] * random.choice((1, 2, 9))
    if kind == 3:
        return {random.choice(_TEXTS): old}
    return random.choice(_NUMBERS)


def spelt(value: Any, random: Random) -> bytes:
    """The value's JSON; one time in sixteen spelt as no careful writer would."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=random.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.9375:
        return data
    act = random.randrange(8)
    if act == 0:
        return b"\xef\xbb\xbf" + data
    if act == 1:
        return text.encode(random.choice(("utf-16", "utf-16-le", "utf-32")), "surrogatepass")
    if act == 2:
        return data + random.choice((b" ", b"\n", b"\0", b"{}", b"x"))
    if act == 3:  # the first key once more
        end = data.find(b":")
        return data[:1] + data[1:end] + b":0," + data[1:] if data[:2] == b'{"' and end > 0 else data
    if act == 4:
        depth = random.choice((10, 500, 3000))
        return data.replace(b":", b":" + b"[" * depth + b"]" * depth + b',"deep":', 1)
    if act == 5:
        at = random.randrange(len(data) + 1)
        return (
            data[:at] + random.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\\u0000", b"NaN", b"1e999")) + data[at:]
        )
    if act == 6:
        return data.replace(b"0", b"0" * random.choice((2, 30, 5000)), 1)
    return data[: random.randrange(len(data) + 1)]
