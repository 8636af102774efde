"""Recipe files for `edgekit compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit_converters.sources.source_model import toml_text


def recipe(folder: Path, name: str = "recipe.toml", **keys: Any) -> tuple[str, str]:
    """The option that names a new file with these keys; work is kept in the folder `cache`."""
    (folder / name).write_text(toml_text({"cache": "cache", **keys}), encoding="utf-8")
    return "--recipe", name
