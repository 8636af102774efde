"""JSON has one reader, `edgekit_runtime.system.strict_json`. Modules that call `json` are named here, with why."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("edgekit", "runtime/edgekit_runtime", "converters/edgekit_converters", "device_profiles/edgekit_profiles")
DIRECT = {
    "runtime/edgekit_runtime/system/strict_json.py": "the reader",
    "runtime/edgekit_runtime/system/errors.py": "pip's file, read below the reader, which imports the errors",
    "runtime/edgekit_runtime/bundle/jobs.py": "a pipe between two processes of ours; a fact may be an infinite number",
    "runtime/edgekit_runtime/engines/isolated.py": "a pipe, read at each request",
    "runtime/edgekit_runtime/engines/isolated_child.py": "a pipe, read at each request",
    "runtime/edgekit_runtime/cache/stored_answers.py": "an entry with a checksum, read at each hit",
    "converters/edgekit_converters/recipe/store.py": "a cache of stages; a number may be infinite",
    "converters/edgekit_converters/compress/train.py": "the state of a run; a score may be infinite",
    "edgekit/building/data.py": "a cache of answers; a label may be infinite",
    "edgekit/packaging/writer.py": "a value that was written a line before",
    "converters/edgekit_converters/sources/keras_source.py": "Keras's format",
    "converters/edgekit_converters/sources/torch_archive.py": "PyTorch's format",
    "converters/edgekit_converters/sources/transformer.py": "Hugging Face's format",
    "converters/edgekit_converters/zoo/magika.py": "a package's own configuration",
    "runtime/edgekit_runtime/engines/llamacpp.py": "what our own child wrote",
    "runtime/edgekit_runtime/engines/llamacpp_child.py": "what our own parent wrote",
    "edgekit/boards/guest.py": "says what keeps a runtime from being imported, so it imports none before",
    "edgekit/boards/emulated_replay.py": "what the guest wrote; a difference may be infinite",
}
"""file: why it does not call the reader."""


def calls_json(source):
    nodes = list(ast.walk(ast.parse(source)))
    called = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    imported = {f"{node.module}.{one.name}" for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names}
    return bool({"json.load", "json.loads"} & (called | imported))


def test_what_calls_json():
    sources = ("import json\njson.loads('1')", "from json import load", "import json\njson.dumps(1)", "np.load(x)")
    assert list(map(calls_json, sources)) == [True, True, False, False]


def test_only_modules_with_a_reason_call_json():
    files = [file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")]
    found = {str(file.relative_to(ROOT)) for file in files if calls_json(file.read_text())}
    assert found == set(DIRECT)
