"""A `.pt2` archive of torch.export, checked as data before torch opens it.

    pieces = code(torch, path)                  # ["the pickle 'custom_obj_0'"]
    with checked_copy(path) as copy: torch.export.load(copy)

Rules:
- torch.export.load runs pickles, compiled libraries, Python expressions, and names that become code. A grammar says
  what each part may be, and `code` names everything else;
- sizes are symbols, integers and arithmetic; operators are ATen's, Python's and torch's own arithmetic; names are
  identifiers; containers are tuples, lists and dicts;
- torch gets a rewritten archive of what was checked, without guards and metadata, which no conversion needs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgekit_converters.recipe.foreign_code import quiet
from edgekit_converters.sources.load import check_archive
from edgekit_converters.sources.source_model import allowed
from edgekit_runtime.system.errors import shorten

_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|prim)\.\w+\.\w+"
    r"|torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond|while_loop|scan|associative_scan)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|getitem|eq|ne|lt|le|gt|ge|and_|or_|not_)"
    r"|torch\.sym_(float|int|ite|max|min|not|sqrt|sum|fresh_size)|torch\._sym_sqrt|math\.(ceil|floor|trunc|sqrt)"
)
_IDENTIFIER, _PATH = re.compile(r"([A-Za-z_]\w*)?", re.ASCII), re.compile(r"[\w.]*", re.ASCII)
_NAMES = {"name", "as_name", "forward_arg_names", "as_buffer_mutation", "user_input_name"}
_TREES = {"in_spec", "out_spec"}
_CONTAINERS = {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
_NO_TEXT = re.compile(r"[\"'`\\\n\r(){};#]")
_FUNCTIONS = allowed("torch")["functions"]
_POWERS = {"Pow", "PowByNatural", "FloatPow"}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd)
_LONGEST = 4096  # of an expression, in characters


def code(torch: Any, path: Path) -> list[str]:
    """Describe the parts that torch.export.load would run.
    Raises SourceError for too much; BadZipFile, ValueError, KeyError for what is not an archive."""
    found: list[str] = []
    with zipfile.ZipFile(path) as archive:
        check_archive(path, archive)
        for name in archive.namelist():
            short = name.rpartition("/")[2]
            if short.startswith(("opaque_obj", "custom_obj")):
                found.append(f"the pickle '{short}'")
            elif "aotinductor" in name or short.endswith((".so", ".dll", ".dylib", ".cpp")):
                found.append(f"the library '{short}'")
            elif short.endswith(".pt"):
                try:
                    with quiet():
                        torch.load(io.BytesIO(archive.read(name)), weights_only=True, map_location="cpu")
                except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not plain tensors
                    found.append(f"the pickle '{short}'")
            elif short.endswith(".json"):
                found += _code_in(json.loads(archive.read(name)), "")
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def checked_copy(path: Path) -> Iterator[Path]:
    """Write the checked archive, without guards and metadata, to a temporary file."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as old:
        copy = Path(folder) / "model.pt2"
        with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as new:
            for member in old.infolist():
                name, data = member.filename, old.read(member)
                is_program = name.endswith(".json") and not name.endswith("_config.json")
                new.writestr(name, _without_notes(data) if is_program else data)
        yield copy


def _without_notes(data: bytes) -> bytes:
    def stripped(value: Any) -> Any:
        if isinstance(value, list):
            return [stripped(item) for item in value]
        if not isinstance(value, dict):
            return value
        empty: dict[str, Any] = {"metadata": {}, "guards_code": []}
        return {key: empty[key] if key in empty else stripped(item) for key, item in value.items()}

    return json.dumps(stripped(json.loads(data))).encode()


def _code_in(value: Any, key: str) -> Iterator[str]:
    """Yield strings of a program that are not allowed where they stand. key: of the value."""
    if isinstance(value, dict):
        if value.get("use_pickle"):
            yield f"the pickle '{value.get('path_name', '')}'"
        for name, item in value.items():
            if not _PATH.fullmatch(name):
                yield f"the name {_shown(name)}"
            if name not in ("metadata", "guards_code"):  # left out of what torch is given
                yield from _code_in(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _code_in(item, key)
    elif isinstance(value, str) and value:
        if key == "expr_str":
            if not is_arithmetic(value):
                yield f"the expression {_shown(value)}"
        elif key in ("target", "as_operator"):
            if not _TARGET.fullmatch(value):
                yield f"the operator {_shown(value)}"
        elif key in _TREES:
            yield from _containers(json.loads(value))
        elif key in _NAMES and not _IDENTIFIER.fullmatch(value):
            yield f"the name {_shown(value)}"
        elif key not in _NAMES and _NO_TEXT.search(value):
            yield f"the text {_shown(value)}"


def _containers(tree: Any) -> Iterator[str]:
    """Yield what is not allowed in a tree of containers, as torch's pytree writes it."""
    if isinstance(tree, list):
        for item in tree:
            yield from _containers(item)
    elif isinstance(tree, dict):
        kind, context = tree.get("type"), tree.get("context")
        if kind not in _CONTAINERS:
            yield f"the container {_shown(str(kind))}"
        keys = json.loads(context) if isinstance(context, str) else context
        if not (keys is None or (isinstance(keys, list) and all(isinstance(name, (str, int)) for name in keys))):
            yield f"the container of {_shown(str(context))}"
        for name in keys or ():
            if isinstance(name, str) and _NO_TEXT.search(name):
                yield f"the name {_shown(name)}"
        yield from _containers(tree.get("children_spec", []))


def is_arithmetic(text: str) -> bool:
    """Whether the text is only symbols, numbers and arithmetic, as sympy writes them."""
    if len(text) > _LONGEST:
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _arithmetic(tree.body)


def _arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool()):
            return True
        case ast.Constant(value=int() | float() as number):
            return abs(number) < 2**63
        case ast.Name(id=name):
            return re.fullmatch(r"[a-z]{1,4}\d+|true|false", name) is not None
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _OPERATORS) and _arithmetic(left) and _arithmetic(right)
        case ast.UnaryOp(op=operator, operand=operand):
            return isinstance(operator, _OPERATORS) and _arithmetic(operand)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)], keywords=keywords):
            flags = [keyword.value.value for keyword in keywords if isinstance(keyword.value, ast.Constant)]
            assumptions = len(flags) == len(keywords) and all(isinstance(flag, bool) for flag in flags)
            return _IDENTIFIER.fullmatch(name) is not None and assumptions
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str() as number)], keywords=keywords):
            plain = re.fullmatch(r"-?\d+\.?\d*(e[+-]?\d{1,3})?", number) is not None
            return plain and all(keyword.arg in ("precision", "dps") and _small(keyword.value) for keyword in keywords)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if name not in _FUNCTIONS or any(keyword.arg != "evaluate" for keyword in keywords):
                return False
            if name in _POWERS:
                if len(arguments) != 2 or not _small(arguments[1]):
                    return False
                if any(isinstance(part, ast.Name) and part.id in _POWERS for part in ast.walk(arguments[0])):
                    return False
            return all(_arithmetic(argument) for argument in arguments)
    return False


def _small(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() as number):
            return abs(number) <= 64
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _small(operand)
        case ast.Call(func=ast.Name(id="Integer"), args=[argument]):
            return _small(argument)
    return False


def _shown(text: str) -> str:
    return repr(shorten(text, 60))
