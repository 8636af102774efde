"""The catalogue as a page: docs/codes.md is what this prints.

python -m edgekit.checking.page > docs/codes.md
"""

from __future__ import annotations

from edgekit.checking.catalogue import entries

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
        "<!-- Generated whole from the catalogue: python -m edgekit.checking.page > docs/codes.md -->",
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
                lines += ["", f"### `{found.code}`", "", _safe(f"{sentence} {found.do}.")]
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Words in capitals, patterns and paths are no markup.
    Angle brackets and single asterisks would be."""
    return text.replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    print(markdown(), end="")
