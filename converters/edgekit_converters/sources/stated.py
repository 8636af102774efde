"""What a model file itself says of its numbers, as the text of a contract file.

    toml_text({"task": "classification", "labels": ["cat", "dog"], "input": {"kind": "image"}})
    is_label("cat")                         # True

Rules: the text is what a person could have written beside the model, and goes through the same checks; a label has at
most 200 printable characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["is_label", "toml_key", "toml_text"]

_LONGEST_LABEL = 200


def is_label(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and text.strip() != "" and len(text) <= _LONGEST_LABEL


def toml_text(document: Mapping[str, Any]) -> str:
    """Keys first, then one table for each mapping in it."""
    lines = _lines({key: value for key, value in document.items() if not isinstance(value, Mapping)})
    for key, table in document.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{toml_key(key)}]", *_lines(table)]
    return "\n".join(lines).strip() + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{toml_key(name)} = {_value(value)}" for name, value in table.items()]


def toml_key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
