"""A program's template, filled for one contract.

    fill("predict.js", {"WIDTH": "224"}, {"letterbox": False, "labels": True})

Rules:
- `__WIDTH__` becomes the text of that name, which the caller has escaped for the language;
- the lines between `//? letterbox` and `//.` stay if the fact holds, those of `//? not letterbox` if it does not;
  a pair may lie in another; Python and make write `#?` and `#.`, HTML `<!--? letterbox -->` and `<!--. -->`;
- a name or a fact that the caller does not pass raises KeyError: no template is filled in part.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Mapping

_NAME = re.compile(r"__([A-Z][A-Z0-9_]*?)__")
_GUARD = re.compile(r"\s*(?://|#|<!--)([?.])\s*(not )?(\w*)\s*(?:-->)?\s*")


def fill(template: str, texts: Mapping[str, str], facts: Mapping[str, bool]) -> str:
    """The text of a template, which is a file of this package."""
    source = (importlib.resources.files(__package__) / "templates" / template).read_text(encoding="utf-8")
    lines: list[str] = []
    kept = [True]
    for line in source.splitlines():
        guard = _GUARD.fullmatch(line)
        if guard is None:
            if kept[-1]:
                lines.append(_NAME.sub(lambda found: texts[found[1]], line))
        elif guard[1] == "?":
            kept.append(kept[-1] and facts[guard[3]] != bool(guard[2]))
        else:
            kept.pop()
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """Text of a bundle for a comment of any language: it ends no comment, string or line."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    for sign, other in (("\\", "/"), ('"', "'"), ("*/", "* /"), ("/*", "/ *")):
        shown = shown.replace(sign, other)
    return shown


def js(value: object) -> str:
    """A literal of JavaScript, in ASCII; `</script>` cannot end a page's script in it."""
    return json.dumps(value, allow_nan=False).replace("</", "<\\/")


def c_text(text: str) -> str:
    """A string literal of C: UTF-8, each byte beyond plain ASCII in octal, no trigraph."""
    plain = (
        set(map(ord, " !#$%&'()*+,-./:;<=>@[]^_`{|}~")) | set(range(48, 58)) | set(range(65, 91)) | set(range(97, 123))
    )
    return (
        '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode("utf-8", "replace")) + '"'
    )
