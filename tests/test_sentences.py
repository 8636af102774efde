"""Nothing decides on a sentence: what code needs to know of an error or a report is a field, a code or an errno.

Looked for: a message (`what`, `do`, `told`, `why`, `reason`, `str(error)`) that is compared, searched or cut, and
`os.strerror` anywhere but in an error that is raised. What other people's software says is all that there is of it:
that is named below.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("edgekit", "runtime/edgekit_runtime", "converters/edgekit_converters", "device_profiles/edgekit_profiles")
MESSAGES = {"what", "do", "told", "why", "reason", "message"}
CUTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find", "index", "count"}
SEARCHES = {"search", "match", "fullmatch", "findall"}
OF_OTHERS = {
    "converters/edgekit_converters/data/arrays.py": "NumPy's: it has one error for all that is wrong with a file",
    "converters/edgekit_converters/fidelity/reference.py": "the frameworks', of an index that is out of range",
    "converters/edgekit_converters/sources/torch_source.py": "Python's, of a class that cannot be found",
    "converters/edgekit_converters/sources/keras_source.py": "Keras's, around the words of what it called",
    "edgekit/cli/main.py": "NumPy's, of what it could not allocate",
    "edgekit/shipping/push.py": "of an installer on a board, which may be of another release",
    "runtime/edgekit_runtime/batching/queued_request.py": "of an engine's error, compared with its copy",
    "runtime/edgekit_runtime/engines/litert.py": "LiteRT's, of a library that does not load",
    "runtime/edgekit_runtime/install/open_active.py": "the dynamic loader's, which passes on no errno",
    "runtime/edgekit_runtime/system/database.py": "SQLite's, which has no error codes under Python 3.10",
    "runtime/edgekit_runtime/system/memory.py": "the engines', of memory that they did not get",
}
"""file: whose words are read there."""


def decisions(source):
    """(line, expression) of each."""
    nodes = list(ast.walk(ast.parse(source)))
    errors = {node.name for node in nodes if isinstance(node, ast.ExceptHandler)}
    for node in nodes:
        if (
            isinstance(node, ast.arg)
            and isinstance(node.annotation, ast.Name)
            and node.annotation.id.endswith(("Error", "Exception"))
        ):
            errors.add(node.arg)
    texts = set()

    def is_message(node):
        if isinstance(node, ast.Attribute):
            return node.attr in MESSAGES
        if isinstance(node, ast.Name):
            return node.id in texts
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):
            return node.func.attr in ("lower", "strip") and is_message(node.func.value)
        return called(node) == "str" and len(node.args) == 1 and getattr(node.args[0], "id", None) in errors

    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and is_message(node.value):
            texts.update(one.id for one in node.targets if isinstance(one, ast.Name))
    said = {
        inner
        for node in nodes
        if isinstance(node, (ast.Call, ast.FormattedValue, ast.IfExp))
        for inner in ast.iter_child_nodes(node)
    }
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            empty = any(isinstance(one, ast.Constant) and one.value in (None, "") for one in sides)
            if any(map(is_message, sides)) and not empty:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            cut = node.func.attr in CUTS and is_message(node.func.value)
            searched = node.func.attr in SEARCHES and any(map(is_message, node.args))
            if cut or searched or (node.func.attr == "strerror" and node not in said):
                yield node.lineno, ast.unparse(node)


def called(node):
    return node.func.id if isinstance(node.func, ast.Name) else None


def test_what_decides_on_a_sentence_is_found():
    found = decisions(
        "try: work()\nexcept OSError as error:\n    if 'No space' in str(error): pass\n    said = str(error)\n    if "
        "said.startswith('x'): pass\n    raise OSError(error.errno, os.strerror(error.errno))\nif "
        "report.told.endswith('trusted'): pass\nif check.why == '': pass\nsigns = (os.strerror(5),)\n"
    )
    assert sorted(line for line, _ in found) == [3, 5, 7, 9]


def test_nothing_decides_on_a_sentence_of_ours():
    files = sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py"))
    found = {
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in files
        if str(file.relative_to(ROOT)) not in OF_OTHERS
        for line, text in decisions(file.read_text())
    }
    assert not found, "\n".join(sorted(found))
