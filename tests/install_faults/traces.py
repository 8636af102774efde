r"""What strace wrote, as calls that can be counted, told and replayed.

    for call in calls_of(trace, root):
        call.name, call.at, call.told         # "rename", 3, "rename journal.json.new -> journal.json"

Rule: `at` counts the calls of one name that name something of the root, as strace's own `when=` does where `-P` tells
it to look at nothing else: so what is imported meanwhile does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^(\w+)\((.*?)(?:\)\s+= (.*))?$")
_BY_DESCRIPTOR = frozenset(
    {"fsync", "fdatasync", "ftruncate", "fchmod", "fstat", "read", "pread64", "flock", "getdents64"}
    | {"writev", "pwritev", "pwritev2", "sendfile", "fallocate", "fsetxattr"}
)
_PLAIN = {
    "renameat": "rename",
    "renameat2": "rename",
    "unlinkat": "unlink",
    "mkdirat": "mkdir",
    "symlinkat": "symlink",
    "readlinkat": "readlink",
    "fchmodat": "chmod",
    "linkat": "link",
}
_IN_FOLDERS = frozenset({"openat", "newfstatat", *_PLAIN})
_ARGUMENT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"|<((?:\\x[0-9a-f]{2})*)>')


@dataclass(frozen=True)
class Call:
    """at: the when= of it. paths: below the root, as named (within the folder of a descriptor, where one is given) or
    as its descriptor stands for; the target of a link first. act: what it does, whichever of its forms was called.

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
        return f"{self.act} {' -> '.join(self.paths)}"

    @property
    def act(self) -> str:
        if self.name == "unlinkat" and "AT_REMOVEDIR" in self.flags:
            return "rmdir"
        return _PLAIN.get(self.name, self.name)

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
    within = ""  # the folder whose descriptor was given last: a name that follows is one in it
    for text, place in _ARGUMENT.findall(arguments):
        if place:
            within = _bytes(place).decode(errors="replace")
            places.append(within)
        elif text:
            texts.append(_named(_bytes(text), within) if name in _IN_FOLDERS else _bytes(text))
            within = ""
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


def _named(text: bytes, folder: str) -> bytes:
    """A path as the kernel takes it: a name in the folder of a descriptor, or as it is."""
    return text if not folder or text.startswith(b"/") else f"{folder}/".encode() + text


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
