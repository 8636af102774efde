"""Every code that edgekit prints, and known messages of others: `catalogue.toml`.

    entry("op-version").why
    find_entries("Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'")[0].code       # "op-version"
    finding("op-version", "FULLY_CONNECTED version 12 is newer than ...", artifact="tflite-dynamic")

Rules:
- an error of edgekit is found by its code or by the words of its entry;
- a message of other software is found by a regular expression, anywhere in the text;
- docs/codes.md is what this prints: python -m edgekit.boards.catalogue > docs/codes.md
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edgekit_profiles.schema import parse_toml
from edgekit_runtime.system import errors
from edgekit_runtime.system.errors import EdgekitError

Kind = Literal["check", "refusal", "error", "data", "damage", "message"]


class UnexplainedError(EdgekitError):
    """Neither a code nor a known message."""

    code = "unexplained"


@dataclass(frozen=True)
class Entry:
    """A code and what it means.

    kind: `check` of `edgekit check` (refused in a build), `refusal` of a build, `error` of a command or the runtime,
        `data` about data and models, `damage` on a build's page, `message` of other software
    messages: regular expressions
    sources: URLs of the facts
    """

    code: str
    kind: Kind
    what: str
    why: str
    do: str
    level: Literal["error", "warning"] = "error"
    messages: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@functools.cache
def entries() -> dict[str, Entry]:
    """Code -> entry, in the file's order."""
    text = (importlib.resources.files("edgekit.boards") / "catalogue.toml").read_text(encoding="utf-8")
    found = {}
    for code, table in parse_toml(text).items():
        lists = {name: tuple(table.pop(name, ())) for name in ("messages", "sources")}
        fields: dict[str, Any] = {name: " ".join(str(value).split()) for name, value in table.items()}
        found[code] = Entry(code, **(fields | lists))
    return found


def entry(code: str) -> Entry:
    """Raises UnexplainedError with the nearest codes."""
    found = entries().get(code)
    if found is None:
        near = difflib.get_close_matches(code, entries(), n=3, cutoff=0.6)
        do = f"Did you mean {' or '.join(near)}?" if near else "`edgekit doctor --codes` lists all codes"
        raise UnexplainedError(f"unknown code '{code}'", do=do)
    return found


def find_entries(text: str) -> list[Entry]:
    """Entries with a message in `text`: edgekit's codes first, then by the length of the match."""
    lengths = []
    for found in entries().values():
        hits = [match for pattern in found.messages if (match := re.search(pattern, text, re.IGNORECASE))]
        if hits:
            lengths.append((max(len(hit[0]) for hit in hits), found))
    return [found for _, found in sorted(lengths, key=lambda pair: (pair[1].kind == "message", -pair[0]))]


def explain(text: str) -> Entry:
    """The entry of a code, an error line or JSON, or a message. Raises UnexplainedError."""
    text = " ".join(text.split())
    if text in entries():
        return entry(text)
    for code in re.findall(r"\[([a-z0-9-]+)\]|\"code\": *\"([a-z0-9-]+)\"", text)[::-1]:
        if (found := entries().get(code[0] or code[1])) is not None:
            return found
    found = (
        _find_by_words(text, least=1.0) or next(iter(find_entries(text)), None) or _find_by_words(text, least=_ALIKE)
    )
    if found is not None:
        return found
    # The class in the last line of a traceback
    for name in re.findall(r"(?:^|[\s.])([A-Z]\w+): ", text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, EdgekitError) and kind.code in entries():
            return entries()[kind.code]
    if len(text.split()) == 1:
        return entry(text)
    raise UnexplainedError(
        "no entry matches this message",
        do="Quote the line that names the cause; `edgekit doctor --codes` lists all codes",
    )


_ALIKE = 0.7
"""Share of the words of an entry's first line that a message must have."""


def _find_by_words(text: str, least: float) -> Entry | None:
    """The entry of edgekit's own that has most words of its first line in the text."""
    given = _words(text)
    shares = {}  # code -> (share of the entry's words that the text has, their number)
    for one in entries().values():
        wanted = _words(one.what)
        common = len(wanted & given)
        if one.kind != "message":
            shares[one.code] = (common / len(wanted) if len(wanted) >= 2 else 0.0), common
    code = max(shares, key=lambda code: shares[code])
    return entries()[code] if shares[code][0] >= least else None


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9.]*[a-z0-9]", text.lower()))


Level = Literal["error", "warning"]


@dataclass(frozen=True)
class CheckFinding:
    """what: about this bundle
    why: in general
    do: the next command
    artifact: recipe, "" for the bundle
    runtime: engine and version, or ""
    """

    code: str
    level: Level
    what: str
    why: str
    do: str
    artifact: str = ""
    runtime: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def finding(
    code: str, what: str, *, do: str = "", level: Level | None = None, artifact: str = "", runtime: str = ""
) -> CheckFinding:
    """A finding with the catalogue's reason, and its remedy and level by default."""
    found = entry(code)
    return CheckFinding(code, level or found.level, what, found.why, do or found.do, artifact, runtime)


TITLES = {
    "check": "Found by `edgekit check`; a build refuses for the errors among them",
    "refusal": "Why a build left an artifact out",
    "error": "Errors of commands and of the runtime",
    "data": "Said of data, models and contracts",
    "damage": "What damaged an INT8 artifact, on the page of a build",
    "message": "Messages of other software",
}


def markdown() -> str:
    lines = [
        "<!-- Generated whole from the catalogue: python -m edgekit.boards.catalogue > docs/codes.md -->",
        "# Codes",
        "",
        "Every code that edgekit prints: what happened, and what to do. `edgekit doctor CODE` adds the reason and its "
        "sources;",
        '`edgekit doctor "TEXT"` finds the code of a message by a loader, a converter or a package tool.',
    ]
    for kind, title in TITLES.items():
        lines += ["", f"## {title}"]
        for found in entries().values():
            if found.kind == kind:
                sentence = f"{found.what[0].upper()}{found.what[1:]}."
                lines += ["", f"### `{found.code}`", "", _escape(f"{sentence} {found.do}.")]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """Escape angle brackets and asterisks, which would be markup."""
    return text.replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    print(markdown(), end="")
