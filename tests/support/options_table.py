"""Tables of options in the pages, made from the fields of the requests.

    python tests/support/options_table.py             writes them between their markers

A marker is `<!-- NAME: python tests/support/options_table.py -->`, and `<!-- /NAME -->` ends its table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

from edgekit.building.build_request import BuildRequest
from edgekit.compressing.compress_request import CompressRequest
from edgekit_converters.recipe.option import OptionField, options_in

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE, COMPRESS = DOCS / "builder-reference.md", DOCS / "compress.md"
TABLES = {
    "build options": (REFERENCE, BuildRequest, False),
    "compress options": (COMPRESS, CompressRequest, False),
    "recipe keys": (COMPRESS, CompressRequest, True),
}
"""Name -> (page, request, whether its options are keys of a file)."""


def rows(page: Path, request: type, in_file: bool) -> Iterator[str]:
    yield f"| {'key' if in_file else 'option'} | meaning |\n|---|---|"
    section = ""
    for one in options_in(request):
        if one.option.in_file is not in_file:
            continue
        if request is BuildRequest and one.option.section != section:
            section = one.option.section
            yield f"| **{section}** | |"
        yield f"| `{one.name if in_file else one.flag}` | {meaning(one, page)} |"


def meaning(one: OptionField, page: Path) -> str:
    text, link = one.option.help, one.option.link
    if one.default not in (None, (), "", False, MISSING) and one.default != {} and "Default:" not in text:
        text += f" Default: {one.default}."
    if not link:
        return text
    target = link if page is REFERENCE or not link.startswith("#") else f"{REFERENCE.name}{link}"
    return f"{text} [More]({target})"


def renewed(page: Path) -> str:
    """The page's text with its tables as the requests have them."""
    text = page.read_text(encoding="utf-8")
    for name, (there, request, in_file) in TABLES.items():
        if there == page:
            marked = rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)"
            table = "\n".join(rows(page, request, in_file)).replace("\\", r"\\")
            text, count = re.subn(marked, rf"\g<1>{table}\n\g<2>", text, flags=re.DOTALL)
            if count != 1:
                sys.exit(f"{page.name} has {count} tables '{name}'")
    return text


if __name__ == "__main__":
    for one in (REFERENCE, COMPRESS):
        one.write_text(renewed(one), encoding="utf-8")
