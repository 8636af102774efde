"""The words of the code: classes are named by nouns, each by one of its own, and prose has an actor and short openings.

A name that is part of a record or of `--json` stays: `told`."""

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


VAGUE = re.compile(r"\b(whom|nobody|whoever|anew|turned|go(?:es|ing)? on)\b|(?<![.\"])\btold\b(?![\":=])")
"""What stands for an actor, or for a verb of the field."""


def sources():
    return sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py"))


def classes():
    """name: files that define a class of that name."""
    found = defaultdict(list)
    for file in sources():
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


def test_what_is_vague():
    assert VAGUE.search("what answers goes on")
    assert VAGUE.search("it is told where")
    assert not VAGUE.search('{"told": text}, signed.told, Signed(told=text), told: str, it returned')


def test_no_word_is_vague():
    lines = [(file, line) for file in sources() for line in file.read_text().splitlines()]
    assert [f"{file.relative_to(ROOT)}: {line.strip()}" for file, line in lines if VAGUE.search(line)] == []


def test_the_first_line_of_a_docstring_has_at_most_90_characters():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{file.relative_to(ROOT)}: {text.splitlines()[0]}"
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, documented) and (text := ast.get_docstring(node)) and len(text.splitlines()[0]) > 90
    ]
    assert found == []
