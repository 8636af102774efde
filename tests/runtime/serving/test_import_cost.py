"""What importing brings in: names of modules, which do not depend on the machine. Times and megabytes are in
benchmarks/runtime/import_cost.py.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
from pathlib import Path

import pytest

from edgekit_runtime.system.children import environment, python_code

NEVER_BEFORE_USE = {
    "ai_edge_litert",
    "asyncio",
    "cryptography",
    "email",
    "http",
    "importlib.metadata",
    "multiprocessing",
    "onnxruntime",
    "paho",
    "PIL",
    "sqlite3",
    "ssl",
    "subprocess",
    "tflite_runtime",
    "zipfile",
}
"""Not with the package, and not with anything a caller takes from it."""

NOT_WITH_THE_PACKAGE = NEVER_BEFORE_USE | {
    "concurrent.futures",
    "edgekit_runtime.bundle",
    "edgekit_runtime.engines",
    "edgekit_runtime.serving.model",
    "edgekit_runtime.telemetry",
    "hashlib",
    "json",
    "logging",
    "socket",
    "statistics",
    "tempfile",
    "urllib",
    "xxhash",
}

LAZY = ["edgekit_runtime", "edgekit_runtime.install"]


def brought_in(statement):
    """Modules that `statement` adds to what NumPy alone has loaded."""
    program = f"import sys, numpy; before = set(sys.modules); {statement}; print(sorted(set(sys.modules) - before))"
    done = subprocess.run(python_code(program), capture_output=True, text=True, check=True, env=environment())
    return set(ast.literal_eval(done.stdout))


def test_importing_the_package_brings_in_next_to_nothing():
    found = brought_in("import edgekit_runtime")
    assert sorted(found & NOT_WITH_THE_PACKAGE) == []
    assert {name for name in found if name.startswith("edgekit_runtime")} == {
        "edgekit_runtime",
        "edgekit_runtime.system",
        "edgekit_runtime.system.lazy",
    }


def test_taking_every_public_name_brings_in_nothing_that_only_some_need():
    found = brought_in("from edgekit_runtime import *")
    assert sorted(found & NEVER_BEFORE_USE) == []
    assert "edgekit_runtime.serving.model" in found


@pytest.mark.parametrize("package", LAZY)
def test_what_type_checkers_see_is_what_there_is(package):
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    shown = {alias.name: node.module for node in block.body for alias in node.names}
    assert sorted(shown) == sorted(module.__all__)
    table = next(
        node.value.args[1] for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    )
    homes = ast.literal_eval(table)
    assert {name: home for home, names in homes.items() for name in names} == shown
    for name in module.__all__:
        assert getattr(module, name) is getattr(importlib.import_module(shown[name]), name)


def test_a_name_that_is_not_there_is_an_attribute_error():
    import edgekit_runtime

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        edgekit_runtime.nothing  # noqa: B018
