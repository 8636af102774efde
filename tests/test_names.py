"""A class is named by a noun, and by one that no other class of ours has."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("edgekit", "runtime/edgekit_runtime", "converters/edgekit_converters", "device_profiles/edgekit_profiles")
PARTICIPLES = frozenset(
    "begun built cut done found gone held kept known lent lost made paid read sent set spent split told".split()  # noqa: SIM905
)
"""Those that do not end in "ed"; a hit is a thing."""


def classes():
    """name: files that define a class of that name."""
    found = defaultdict(list)
    for file in sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(file.relative_to(ROOT)))
    return found


def is_participle(name):
    words = re.findall(r"[A-Z][a-z0-9]*", name)
    return len(words) == 1 and bool(re.search("[^e]ed$", words[0]) or words[0].lower() in PARTICIPLES)


def test_what_is_a_bare_participle():
    names = ("Measured", "_Rearranged", "Split", "MeasuredArtifact", "MemoryExceeded", "Embedding", "_Run")
    assert [name for name in names if is_participle(name)] == ["Measured", "_Rearranged", "Split"]


def test_no_class_is_named_by_a_bare_participle():
    assert {name: files for name, files in classes().items() if is_participle(name)} == {}


def test_no_two_classes_have_one_name():
    assert {name: files for name, files in classes().items() if len(files) > 1} == {}
