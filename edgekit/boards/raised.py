"""The messages that edgekit's own code raises, read out of the installed sources.

    best_match("net.ekb: this is not an edgekit bundle")        # RaisedMessage(code="bundle-format", ...)

Rules:
- sources are parsed and not imported: no engine and no framework is loaded;
- a message is its fixed words in their order, whatever fills the gaps between them;
- of several messages that match, the one with the most fixed letters wins; a tie between two codes is no match;
- a message of fewer than LEAST_LETTERS fixed letters matches nothing.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

PACKAGES = ("edgekit_runtime", "edgekit_profiles", "edgekit_converters", "edgekit")
LEAST_LETTERS = 10
_MOST_FORMS = 8
_AN_ERROR = re.compile(r"class \w+Error\(|(?:Error|Exceeded|Full|Hung|Slow)\(")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Parts = tuple[str, ...]
"""The fixed texts of a message, in their order; something stands between each two of them."""


@dataclass(frozen=True)
class RaisedMessage:
    """code: "" where it is known only when the message is raised.
    where: file and line of the call."""

    code: str
    what: _Parts
    do: _Parts
    where: str

    def letters_in(self, text: str) -> int:
        """How many of its fixed letters are in the text (of one line); 0 where *what* is not there."""
        end = _end_of(self.what, text)
        if end < 0:
            return 0
        with_do = self.do and _end_of(self.do, text[end:]) >= 0
        return _letters(self.what) + (_letters(self.do) if with_do else 0)


@dataclass(frozen=True)
class _ErrorClass:
    bases: _Parts
    code: str
    has_init: bool


def best_match(text: str) -> RaisedMessage | None:
    """The message that the text, of one line, is or holds.
    None where none matches or two codes match alike."""
    found = [(letters, one) for one in raised_messages() if (letters := one.letters_in(text)) >= LEAST_LETTERS]
    most = max((letters for letters, _ in found), default=0)
    best = [one for letters, one in found if letters == most]
    return best[0] if len({one.code for one in best}) == 1 and best[0].code else None


@functools.cache
def raised_messages() -> tuple[RaisedMessage, ...]:
    """Of every call of an error's class, in every package that is installed."""
    trees = dict(_trees())
    classes = _error_classes(trees.values())
    return tuple(
        message for where, tree in trees.items() for message in _messages_in(tree, where, classes) if message.what
    )


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for file in sorted(Path(folder).rglob("*.py")):
                source = file.read_text(encoding="utf-8")
                if _AN_ERROR.search(source):
                    yield f"{package}/{file.relative_to(folder)}", ast.parse(source)


def _error_classes(trees: Iterable[ast.Module]) -> dict[str, _ErrorClass]:
    """Name -> class, of all that derive from EdgekitError."""
    classes = {}
    for node in (line for tree in trees for line in tree.body if isinstance(line, ast.ClassDef)):
        bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
        codes = [
            line.value.value
            for line in node.body
            if isinstance(line, (ast.Assign, ast.AnnAssign))
            and isinstance(line.value, ast.Constant)
            and "code" in _targets(line)
        ]
        inits = any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body)
        classes[node.name] = _ErrorClass(bases, str(codes[0]) if codes else "", inits)
    errors = {name: classes[name] for name in classes if "EdgekitError" in _lineage(name, classes)}
    return {
        name: _ErrorClass(
            one.bases,
            next(code for each in _lineage(name, classes) if (code := classes[each].code)),
            any(classes[each].has_init for each in _lineage(name, classes) if each != "EdgekitError"),
        )
        for name, one in errors.items()
    }


def _lineage(name: str, classes: Mapping[str, _ErrorClass]) -> list[str]:
    """The class and those it derives from, the nearest first."""
    return [name, *(each for base in classes[name].bases if base in classes for each in _lineage(base, classes))]


def _messages_in(tree: ast.Module, where: str, classes: Mapping[str, _ErrorClass]) -> Iterator[RaisedMessage]:
    for nodes, owner in _scopes(tree, ""):
        names: dict[str, list[ast.expr]] | None = None
        for call in nodes:
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name == "__init__" and owner in classes and owner != "EdgekitError":
                kind, several = classes[owner], False
            elif name in classes:
                kind, several = classes[name], classes[name].has_init
            else:
                continue
            names = _texts_of_names(nodes) if names is None else names
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            code = _code_of(given.get("code"), kind, names)
            dos = [part for key in ("do", "do_cli") if key in given for part in _forms(given[key], names)] or [()]
            for what in (form for node in (call.args if several else call.args[:1]) for form in _forms(node, names)):
                if _letters(what) >= LEAST_LETTERS or not several:
                    for do in dos:
                        yield RaisedMessage(code, what, do, f"{where}:{call.lineno}")


def _scopes(scope: ast.AST, owner: str) -> Iterator[tuple[list[ast.AST], str]]:
    """The nodes of the module and of each function, with the class around it.
    Those of inner functions are not among them."""
    nodes: list[ast.AST] = list(ast.iter_child_nodes(scope))
    inner: list[tuple[ast.AST, str]] = []
    for node in nodes:  # which grows meanwhile
        if isinstance(node, ast.ClassDef):
            inner += [(one, node.name) for one in node.body if isinstance(one, _FUNCTIONS)]
        elif isinstance(node, _FUNCTIONS):
            inner.append((node, owner))
        else:
            nodes += ast.iter_child_nodes(node)
    yield nodes, owner
    for function, of_class in inner:
        yield from _scopes(function, of_class)


def _targets(line: ast.Assign | ast.AnnAssign) -> _Parts:
    nodes = line.targets if isinstance(line, ast.Assign) else [line.target]
    return tuple(node.id for node in nodes if isinstance(node, ast.Name))


def _texts_of_names(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Name -> what is assigned to it."""
    found: dict[str, list[ast.expr]] = {}
    for line in nodes:
        if isinstance(line, (ast.Assign, ast.AnnAssign)) and line.value is not None:
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(line.value, ast.Tuple):
                    pairs = zip(target.elts, line.value.elts, strict=False)
                else:
                    pairs = zip([target], [line.value], strict=True)
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, []).append(value)
    return found


def _code_of(node: ast.expr | None, kind: _ErrorClass, names: Mapping[str, list[ast.expr]]) -> str:
    if node is None:
        return kind.code
    forms = set(_forms(node, names))
    return next(iter(forms))[0] if len(forms) == 1 and len(next(iter(forms))) == 1 else ""


def _forms(node: ast.expr, names: Mapping[str, list[ast.expr]], depth: int = 3) -> list[_Parts]:
    """The fixed parts of each text that the expression may be; [()] for one without any."""
    if isinstance(node, ast.Constant):
        text = str(node.value)
        return [(" ".join(text.split()) if text.strip() else " ",)]
    if isinstance(node, ast.IfExp):
        return [*_forms(node.body, names, depth), *_forms(node.orelse, names, depth)][:_MOST_FORMS]
    if isinstance(node, ast.JoinedStr):
        several = [_forms(part, names, depth) for part in node.values]
        return [_joined(parts) for parts in list(product(*several))[:_MOST_FORMS]]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            _joined(pair)
            for pair in list(product(_forms(node.left, names, depth), _forms(node.right, names, depth)))[:_MOST_FORMS]
        ]
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, (ast.Name, ast.IfExp)):
        return _forms(node.value, names, depth)
    if isinstance(node, ast.Name) and depth and node.id in names:
        return [form for value in names[node.id] for form in _forms(value, names, depth - 1)][:_MOST_FORMS]
    return [()]


def _joined(parts: Sequence[_Parts]) -> _Parts:
    return tuple(text for part in parts for text in part if text)


def _end_of(parts: _Parts, text: str) -> int:
    """Where the last part ends, or -1 where they are not all there in this order."""
    place = 0
    for part in parts:
        found = text.find(part, place)
        if found < 0:
            return -1
        place = found + len(part)
    return place


def _letters(parts: _Parts) -> int:
    return sum(letter.isalpha() for part in parts for letter in part)
