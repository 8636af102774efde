"""The tree of errors in the app developer's page is the tree in the code."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import edgekit_runtime
from edgekit_runtime import EdgekitError

PAGE = Path(__file__).parents[2] / "docs" / "app-developer.md"
WITHIN = {
    "WireError", "HostUnreachableError", "HostBusyError", "HostRefusedError", "HostLateError", "HostProtocolError",
    "WindowError", "TooSlow", "WrongPartError", "FinalError", "_LeaderInterruptedError",
}  # fmt: skip
"""What is raised inside the runtime, and caught there: no application ever sees one."""


def written() -> dict[str, str]:
    """Name of an error -> name of the one that it is indented under."""
    (block,) = re.findall(
        r"^```text\n(EdgekitError\n.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    parents, path = {}, []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        path = [*path[:depth], line.split()[0]]
        if depth:
            parents[path[-1]] = path[-2]
    return parents


def in_code() -> dict[str, str]:
    for module in pkgutil.walk_packages(edgekit_runtime.__path__, "edgekit_runtime."):
        if not module.name.endswith(("__main__", "_child")):
            importlib.import_module(module.name)
    found, left = {}, [EdgekitError]
    while left:
        parent = left.pop()
        ours = [kind for kind in parent.__subclasses__() if kind.__module__.startswith("edgekit_runtime.")]
        found |= {kind.__name__: parent.__name__ for kind in ours}
        left += ours
    return found


def test_every_error_that_may_reach_an_application_is_in_the_tree_and_no_other():
    code = in_code()
    assert code.keys() >= WITHIN
    assert written() == {name: parent for name, parent in code.items() if name not in WITHIN}


def test_every_error_in_the_tree_can_be_imported_from_the_package():
    for name, parent in written().items():
        assert name in edgekit_runtime.__all__
        assert issubclass(getattr(edgekit_runtime, name), getattr(edgekit_runtime, parent))
