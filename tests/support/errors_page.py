"""docs/errors.md, made from the error classes of the runtime. `python tests/support/errors_page.py` writes it anew."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import edgekit_runtime
from edgekit_runtime import EdgekitError

FILE = Path(__file__).parents[2] / "docs" / "errors.md"
HEAD = """<!-- Generated whole from the error classes: python tests/support/errors_page.py -->
# Errors of the runtime

Import them from `edgekit_runtime.system.errors`; an `except` of a class catches those indented below it.
Behind a class are the codes that its `error.code` may be. They are stable, and [codes.md](codes.md) explains each.

"""
WITHIN = {"WireError", "WindowError", "TooSlow", "WrongPartError", "FinalError", "_LeaderInterruptedError"}
"""What is raised inside the runtime, and caught there: no application ever sees one."""


def errors() -> Iterator[tuple[int, type[EdgekitError]]]:
    """Every error class of the runtime's own below the root, with its depth."""
    for module in pkgutil.walk_packages(edgekit_runtime.__path__, "edgekit_runtime."):
        if not module.name.endswith(("__main__", "_child")):
            importlib.import_module(module.name)
    return below(EdgekitError, 1)


def below(parent: type[EdgekitError], depth: int) -> Iterator[tuple[int, type[EdgekitError]]]:
    ours = [kind for kind in parent.__subclasses__() if kind.__module__.startswith("edgekit_runtime.")]
    for kind in sorted(ours, key=lambda kind: kind.__name__):
        yield depth, kind
        yield from below(kind, depth + 1)


def text() -> str:
    listed = [(0, EdgekitError), *((depth, kind) for depth, kind in errors() if kind.__name__ not in WITHIN)]
    return HEAD + "".join(line(depth, kind) for depth, kind in listed)


def line(depth: int, kind: type[EdgekitError]) -> str:
    return f"{'  ' * depth}- `{kind.__name__}`: {', '.join(f'`{code}`' for code in (kind.code, *kind.reasons))}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
