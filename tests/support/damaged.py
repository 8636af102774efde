"""Damaged copies of an archive: bits turned, cut off, or packed again around a damaged member, with right sums.

for data in damaged(path.read_bytes(), 40, seed=1): ...
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Iterator
from typing import Any

VALUES = (None, -1, 0, 1e308, "", "x", [], {}, True, [[]], 2**70, "float99", {"class_name": "x"})


def damaged(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    drawn = random.Random(seed)
    kinds = (_turned, _cut, _member, _document, _turned)
    for number in range(count):
        yield kinds[number % len(kinds)](data, drawn)


def _turned(data: bytes, drawn: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(drawn.choice((1, 3, 20))):
        made[drawn.randrange(len(made))] ^= 1 << drawn.randrange(8)
    return bytes(made)


def _cut(data: bytes, drawn: random.Random) -> bytes:
    return data[: drawn.randrange(len(data))]


def _member(data: bytes, drawn: random.Random) -> bytes:
    return _packed_again(data, drawn, "", _turned)


def _document(data: bytes, drawn: random.Random) -> bytes:
    return _packed_again(data, drawn, ".json", _other_value)


def _packed_again(data: bytes, drawn: random.Random, end: str, change: Any) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        chosen = drawn.choice([one.filename for one in old.infolist() if one.file_size and one.filename.endswith(end)])
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content, drawn) if name == chosen else content)
    return made.getvalue()


def _other_value(content: bytes, drawn: random.Random) -> bytes:
    document = json.loads(content)
    places: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        holder = pending.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        places += [(holder, key) for key in keys]
        pending += [holder[key] for key in keys]
    if not places:
        return content
    holder, key = drawn.choice(places)
    holder[key] = drawn.choice(VALUES)
    return json.dumps(document).encode()
