"""The catalogue as a page: docs/codes.md is what this prints.

python -m edgekit.checking.page > docs/codes.md
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.checking.catalogue import entries

__all__ = ["TITLES", "markdown"]

TITLES = {
    "check": "Found by `edgekit check`; a build refuses for the errors among them",
    "refusal": "Why a build left an artifact out",
    "error": "Errors of commands and of the runtime",
    "data": "Said of data, models and contracts",
    "damage": "What damaged an INT8 artifact, on the page of a build",
    "message": "Messages of other software",
}


def markdown() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "<!-- Generated whole from the catalogue: python -m edgekit.checking.page > docs/codes.md -->"
    yield "# Codes"
    yield ""
    yield (
        "Everything that edgekit prints a code for, as `edgekit doctor CODE` has it. "
        '`edgekit doctor "TEXT"` finds the entry that'
    )
    yield "knows a message of a loader, a converter or a package tool."
    for kind, title in TITLES.items():
        yield ""
        yield f"## {title}"
        for found in entries().values():
            if found.kind == kind:
                yield ""
                yield f"### `{found.code}`"
                yield ""
                sentence = f"{found.what[0].upper()}{found.what[1:]}."
                yield _safe(f"{sentence} {found.why}")
                yield ""
                yield f"*What to do:* {_safe(found.do)}."
                for source in found.sources:
                    yield ""
                    yield f"*Source:* {_safe(source)}."


def _safe(text: str) -> str:
    """Words in capitals, patterns and paths are no markup. Angle brackets and lone asterisks would be."""
    return text.replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    print(markdown(), end="")
