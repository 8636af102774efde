r"""What strace wrote, as calls that can be counted, told and replayed.

    for call in calls_of(trace, root):
        call.name, call.at, call.told         # "rename", 3, "rename journal.json.new -> journal.json"

Rule: `at` counts the calls of one name that name something of the root, as strace's own `when=` does where `-P` tells it to
look at nothing else: so what is imported meanwhile does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Call", "calls_of"]

_LINE = re.compile(r"^(\w+)\((.*?)(?:\)\s+= (.*))?$")
_BY_DESCRIPTOR = frozenset(
    {"fsync", "fdatasync", "ftruncate", "fchmod", "fstat", "read", "pread64", "flock", "getdents64"}
    | {"writev", "pwritev", "pwritev2", "sendfile", "fallocate", "fsetxattr"}
)
_ARGUMENT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"|<((?:\\x[0-9a-f]{2})*)>')


@dataclass(frozen=True)
class Call:
    """at: the when= of it. paths: below the root, as named or as its descriptor stands for; the target of a link first.

    data: of a write. result: as strace told it; empty where it never came back. flags: the rest of its arguments.
    """

    name: str
    at: int
    paths: tuple[str, ...]
    data: bytes
    result: str
    flags: str

    @property
    def told(self) -> str:
        return f"{self.name} {' -> '.join(self.paths)}"

    @property
    def failed(self) -> bool:
        return self.result.startswith(("-1", "?"))

    @property
    def creates(self) -> bool:
        return "O_CREAT" in self.flags


def calls_of(trace: str, root: Path) -> list[Call]:
    """Every call that names something of the root, in order."""
    found, counted = [], dict[str, int]()
    for line in trace.splitlines():
        parsed = _LINE.match(line)
        if parsed is None:
            continue
        name, arguments, result = parsed[1], parsed[2], parsed[3] or ""
        call = _call(name, counted.get(name, 0) + 1, arguments, result, str(root))
        if call is not None:
            counted[name] = call.at
            found.append(call)
    return found


def _call(name: str, at: int, arguments: str, result: str, root: str) -> Call | None:
    texts, places = [], []
    for text, place in _ARGUMENT.findall(arguments):
        if text:
            texts.append(_bytes(text))
        elif place:
            places.append(_bytes(place).decode(errors="replace"))
    if name in ("write", "pwrite64"):
        paths, data = places[:1], texts[0] if texts else b""
    elif name in _BY_DESCRIPTOR or (name == "newfstatat" and not any(texts)):
        paths, data = places[:1], b""
    else:
        named = texts[:1] if name.startswith("readlink") else texts  # what a link says comes after its name
        paths, data = [text.decode(errors="replace") for text in named], b""
    if not any(path == root or path.startswith(f"{root}/") for path in paths):
        return None
    told = tuple(path.removeprefix(root).lstrip("/") or "." for path in paths)
    return Call(name, at, told, data, result, _ARGUMENT.sub("", arguments))


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
