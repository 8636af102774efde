"""Every message of every package: how its parts are joined, and that nothing is cut in the middle of a word."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from edgekit_runtime.system.errors import EdgekitError, sentences, shorten

ROOT = Path(__file__).parents[1]
FOLDERS = ("edgekit", "converters", "device_profiles", "runtime")
_CLICKS = ("UsageError", "BadParameter", "ClickException", "fail")  # which click prints as whole sentences
_LONG = 60  # below that it is an identifier, or a value that somebody gave


@pytest.fixture(scope="module", autouse=True)
def parsed():
    """Once, and before a test's time is counted."""
    sources()


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return tuple((str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))) for file in files)


def messages() -> Iterator[tuple[str, str, ast.expr]]:
    """(where it is written, `what` or `do`, the expression) of whatever is raised, found or noted."""
    for file, tree in sources():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            places = {"Finding": (2, 3), "Note": (1, 2)}.get(name, (0, None))
            if name in _CLICKS or not (name.endswith("Error") or name in ("Finding", "Note") or "do" in given):
                continue
            for part, place in zip(("what", "do"), places, strict=True):
                found = given.get(part) or (call.args[place] if place is not None and place < len(call.args) else None)
                if found is not None:
                    yield f"{file}:{call.lineno}", part, found
        if not file.startswith("edgekit/fleet/pages/"):  # whose `what` is a sentence of a page
            yield from named(file, tree)


def named(file: str, tree: ast.Module) -> Iterator[tuple[str, str, ast.expr]]:
    """What is assigned to `what` or `do` before it is raised."""
    for line in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        target, value = line.targets[0], line.value
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for name, text in zip(target.elts, value.elts, strict=False) if both else [(target, value)]:
            if getattr(name, "id", "") in ("what", "do"):
                yield f"{file}:{line.lineno}", name.id, text


def endings(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and node.values:
        yield from endings(node.values[-1])
    elif isinstance(node, ast.BinOp):
        yield from endings(node.right)
    elif isinstance(node, ast.IfExp):
        yield from (*endings(node.body), *endings(node.orelse))


def test_no_part_of_a_message_brings_its_own_full_stop():
    found = list(messages())
    assert len(found) > 1000
    assert [
        f"{place} {part}: {end[-40:]}"
        for place, part, node in found
        for end in endings(node)
        if end.endswith(".") and not end.endswith("...")
    ] == []


def test_what_is_long_is_cut_by_the_one_function_that_cuts_at_words():
    cut = []
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == "...":
                cut.append(file)
            if isinstance(node, ast.FormattedValue):
                cut += [
                    f"{file}:{part.lineno}"
                    for part in ast.walk(node.value)
                    if isinstance(part, ast.Subscript)
                    and isinstance(part.slice, ast.Slice)
                    and isinstance(part.slice.upper, ast.Constant)
                    and isinstance(part.slice.upper.value, int)
                    and part.slice.upper.value > _LONG
                    and node.conversion == -1
                ]
    names = (
        "edgekit/host/models.py",
        "runtime/edgekit_runtime/system/files.py",
    )  # what a client called a model, and a file's name
    assert [place for place in cut if not place.startswith(names)] == ["runtime/edgekit_runtime/system/errors.py"]


def test_the_catalogues_sentences_have_no_full_stop_of_their_own_where_one_is_added():
    catalogue = tomllib.loads((ROOT / "edgekit" / "boards" / "catalogue.toml").read_text(encoding="utf-8"))
    assert len(catalogue) > 100
    assert [code for code, one in catalogue.items() if one["what"].endswith(".") or one["do"].endswith(".")] == []


@pytest.mark.parametrize(
    ("what", "do", "said"),
    [
        ("it is broken", "Mend it", "it is broken. Mend it"),
        ("it is broken", "", "it is broken"),
        ("'c' is the next 'd'.", "Give it", "'c' is the next 'd'. Give it"),
        ("the tool said: and so on...", "Ask it", "the tool said: and so on... Ask it"),
        ("is its disk sound?", "Look", "is its disk sound? Look"),
    ],
)
def test_what_and_do_are_two_sentences(what, do, said):
    assert sentences(what, do) == said
    assert str(EdgekitError(what, do=do)) == said


@pytest.mark.parametrize(
    ("what", "where", "said"),
    [
        ("there is no such file", "a/net.onnx", "a/net.onnx: there is no such file"),
        ("a/net.onnx cannot be read", "a/net.onnx", "a/net.onnx cannot be read"),
        ("[Errno 2] No such file: 'a/net.onnx'", "a/net.onnx", "[Errno 2] No such file: 'a/net.onnx'"),
        ("a/net.onnx.json cannot be read", "net.onnx", "net.onnx: a/net.onnx.json cannot be read"),
        ("the maximum is 3", "x", "x: the maximum is 3"),
    ],
)
def test_a_place_is_named_once(what, where, said):
    assert str(EdgekitError(what, where=where)) == said


def test_a_long_text_is_cut_at_the_end_of_a_word():
    assert shorten("replace the operator in the model", 31) == "replace the operator in the..."
    assert shorten("as it is", 8) == "as it is"
    assert shorten("x" * 50, 10) == "xxxxxxx..."
    for most in range(20, 60):
        assert len(shorten("words of some length, " * 5, most)) <= most
