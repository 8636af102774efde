"""What the site changes in the pages, which are written to be read in the repository.

Rules:
- README.md is the first page; CONTRIBUTING.md and CHANGELOG.md are pages, too;
- links to files that are not on the site show their path and lead nowhere;
- a field of a docstring, `name: meaning` on a line of its own, is an item of a list.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
_FIELD = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links from where the page lies in the repository to where it lies on the site."""
    uri = page.file.src_uri
    own = next((name for name, there in PAGES.items() if there == uri), f"docs/{uri}")

    def moved(found: re.Match[str]) -> str:
        text, link = found.groups()
        path, mark, anchor = link.partition("#")
        if not path or ":" in path:
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(own), path))
        on_site = PAGES.get(there) or there.removeprefix("docs/")
        if files.get_file_from_path(on_site) is None:
            return f"{text} (`{there}`)" if text != there else f"`{there}`"
        return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(uri) or '.')}{mark}{anchor})"

    moved_links = _LINK.sub(moved, markdown)
    return moved_links.replace("](docs/images/", "](images/") if uri == "index.md" else moved_links


class Fields(griffe.Extension):
    """Shows the fields of a docstring one below the other."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _FIELD.sub(r"\n- `\1`: ", obj.docstring.value)
