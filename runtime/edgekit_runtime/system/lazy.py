"""Public names imported when first used, so that importing a package costs nothing.

    __getattr__ = lazily(__name__, {"edgekit_runtime.system.errors": ("EdgekitError", "InputError")})

The same imports stand under `TYPE_CHECKING` for type checkers and editors; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """A package's `__getattr__`. homes: module -> the public names that live there."""
    home_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
