"""Do the tests notice a wrong line? Thirteen modules are changed in one place at a time; the tests of each must fail.

    python tests/support/mutation.py                                      # `make mutate`: all, hours on one processor
    python tests/support/mutation.py --most 40 runtime/edgekit_runtime/serving/journey.py
    python tests/support/mutation.py --write benchmarks/results/mutation.json

A module has a floor: the share of its mutants, in per cent, that its tests must kill. Exit 1 where one is below it.

Rules:
- no file is changed: each mutant is compiled in a forked process that imports it in the module's place;
- a mutant is killed by a test that fails, by an import that fails, or by taking much longer than the module's own tests
  do;
- words are left alone, and figures that somebody chose: texts, messages, annotations, constants of a module or class,
  defaults.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import datetime
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[2]


class Subject:
    """floor: per cent of the mutants. tests: files that must notice."""

    def __init__(self, floor: int, *tests: str) -> None:
        self.floor, self.tests = floor, tests


RUNTIME = "runtime/edgekit_runtime"
CONVERTERS = "converters/edgekit_converters"
SUBJECTS = {
    f"{RUNTIME}/serving/journey.py": Subject(
        70,
        "tests/runtime/serving/test_journey.py", "tests/runtime/system/test_faults.py",
        "tests/runtime/serving/test_model.py",
        "tests/runtime/serving/test_model_hosts.py", "tests/runtime/serving/test_degraded.py",
        "tests/runtime/serving/test_detector.py",
        "tests/runtime/serving/test_intake.py", "tests/runtime/serving/test_model_sessions.py",
    ),
    f"{RUNTIME}/policy/budget.py": Subject(90, "tests/runtime/policy/test_budget.py"),
    f"{RUNTIME}/serving/offload.py": Subject(70, "tests/runtime/serving/test_offload.py"),
    f"{RUNTIME}/install/journal.py": Subject(90, "tests/runtime/install/test_states.py"),
    f"{RUNTIME}/cache/disk.py": Subject(
        50, "tests/runtime/cache/test_disk.py", "tests/runtime/cache/test_packed.py", "tests/contracts/test_caches.py"
    ),
    f"{RUNTIME}/batching/queue.py": Subject(70, "tests/runtime/batching"),
    f"{RUNTIME}/remote/client.py": Subject(70, "tests/runtime/remote/test_client.py"),
    f"{RUNTIME}/telemetry/messages.py": Subject(85, "tests/runtime/telemetry/test_flow.py"),
    f"{RUNTIME}/bundle/trust_root.py": Subject(
        80, "tests/runtime/bundle/test_trust_root.py", "tests/runtime/bundle/test_trust_store.py"
    ),
    f"{CONVERTERS}/fidelity/repair.py": Subject(55, "tests/converters/fidelity/test_repair.py"),
    f"{CONVERTERS}/fidelity/metrics.py": Subject(
        75, "tests/converters/fidelity/test_metrics.py", "tests/converters/fidelity/test_segmentation.py"
    ),
    f"{CONVERTERS}/data/lint.py": Subject(
        90, "tests/converters/data/test_lint.py", "tests/converters/data/test_unreadable.py"
    ),
    "device_profiles/edgekit_profiles/estimate.py": Subject(85, "tests/profiles/test_estimate.py"),
}  # fmt: skip

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
WORDS = {"annotation", "returns", "decorator_list", "defaults", "kw_defaults"}
"""Fields that say something and do nothing, or hold a figure that somebody chose."""


@dataclass(frozen=True)
class Mutant:
    """One change. line: where. what: the code there, and what takes its place."""

    line: int
    what: str
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """Every module that differs from this one in a single place."""
    tree = ast.parse(source)
    for path, node in _places(tree, ()):
        for other in _instead(node):
            changed = copy.deepcopy(tree)
            _put(changed, path, other)
            if ast.dump(changed) != ast.dump(tree):
                what = f"{_words(node)} -> {_words(other)}"
                yield Mutant(node.lineno, what, ast.fix_missing_locations(changed))


Path_ = tuple[tuple[str, "int | None"], ...]


def _places(node: ast.AST, path: Path_) -> Iterator[tuple[Path_, Any]]:
    """The statements and expressions whose change changes what the module does."""
    for name, value in ast.iter_fields(node):
        if name in WORDS:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _only_words(child):
                continue
            if isinstance(node, ast.Module | ast.ClassDef) and isinstance(child, ast.Assign | ast.AnnAssign):
                continue
            here = (*path, (name, index))
            if isinstance(child, ast.stmt | ast.expr):
                yield here, child
            if not isinstance(child, ast.Raise | ast.Assert):
                yield from _places(child, here)


def _only_words(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            operators = [*node.ops]
            operators[index] = SWAPPED[type(operator)]()  # type: ignore[call-overload]
            yield ast.Compare(node.left, operators, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPPED[type(node.op)](), node.values)  # type: ignore[arg-type]
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)  # type: ignore[arg-type]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        yield ast.Call(ast.Name("max" if node.func.id == "min" else "min", ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
        node.test, ast.Compare | ast.BoolOp | ast.UnaryOp
    ):
        negated = copy.copy(node)
        negated.test = ast.UnaryOp(ast.Not(), node.test)
        yield negated
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(ast.Constant(None))
    elif (
        isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break | ast.Delete)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript))
    ):
        yield ast.Pass()


def _put(tree: ast.AST, path: Path_, node: ast.AST) -> None:
    *above, (name, index) = path
    parent: Any = tree
    for field, at in above:
        parent = getattr(parent, field) if at is None else getattr(parent, field)[at]
    new = ast.copy_location(node, getattr(parent, name) if index is None else getattr(parent, name)[index])
    if index is None:
        setattr(parent, name, new)
    else:
        getattr(parent, name)[index] = new


def _words(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).splitlines()[0]
    return text if len(text) <= 90 else text[:87] + "..."


class Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports a mutant in the place of a module."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts if parts[0] == "edgekit" else parts[1:])
        self.path, self.tree = path, tree

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_source(self, name: str) -> str:
        return self.path.read_text()

    def get_code(self, name: str) -> CodeType:
        return compile(self.tree, str(self.path), "exec", dont_inherit=True)


class Hurried:
    """Property tests look for a failure; what its smallest form is does not matter here."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutation", settings.default, phases=phases, database=None)
        settings.load_profile("mutation")


def notice(planted: Planted | None, tests: Sequence[str], limit_s: float) -> str:
    """How the tests, in a process of their own, end: `passed`, `failed` or `too long`."""
    child = os.fork()
    if child == 0:
        _run(planted, tests)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _end(child)
            return "passed" if status == 0 else "failed"
        time.sleep(0.02)
    _end(child)
    os.waitpid(child, 0)
    return "too long"


def _end(group: int) -> None:
    """The process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _run(planted: Planted | None, tests: Sequence[str]) -> None:
    code = 3
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        if planted is not None:
            sys.meta_path.insert(0, planted)
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", "not slow"]
        code = int(pytest.main([*options, *tests], plugins=[Hurried()]))
    finally:
        os._exit(code)


def judge(name: str, subject: Subject, most: int | None) -> dict[str, Any]:
    """How many mutants of a module its tests kill. most: of all, that many, spread evenly."""
    path = ROOT / name
    started = time.monotonic()
    if notice(None, subject.tests, 600) != "passed":
        raise SystemExit(f"{name}: its tests fail without a change: {' '.join(subject.tests)}")
    limit_s = 15 + 4 * (time.monotonic() - started)
    found = list(mutants(path.read_text()))
    if most is not None and len(found) > most:
        found = [found[at * len(found) // most] for at in range(most)]
    survived = []
    for mutant in found:
        if notice(Planted(path, mutant.tree), subject.tests, limit_s) == "passed":
            survived.append(f"{mutant.line}: {mutant.what}")
            print(f"  {name}:{survived[-1]}", flush=True)
    killed = len(found) - len(survived)
    return {
        "mutants": len(found), "killed": killed, "percent": round(100 * killed / max(1, len(found)), 1),
        "floor": subject.floor, "seconds": round(time.monotonic() - started), "survived": survived,
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--most", type=int, help="mutants of each module")
    parser.add_argument("--write", type=Path, help="a JSON file; what it has of other modules stays")
    options = parser.parse_args(arguments)
    if unknown := set(options.modules) - set(SUBJECTS):
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    os.chdir(ROOT)
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    low = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # of killed processes too
        Path(folder).chmod(0o755)  # a test of the cache reads its file as another user
        import hypothesis  # noqa: F401 - once, not in each process
        import numpy  # noqa: F401
        import pytest  # noqa: F401

        for name in options.modules or SUBJECTS:
            found = judge(name, SUBJECTS[name], options.most)
            print(f"{name}: {found['killed']} of {found['mutants']} killed, {found['percent']} % "
                  f"(floor {found['floor']} %), {found['seconds']} s", flush=True)  # fmt: skip
            if found["percent"] < found["floor"]:
                low.append(name)
            if options.write:
                _write(options.write, name, {**found, "most": options.most})
    if low:
        print(f"below the floor: {', '.join(low)}", file=sys.stderr)
    return int(bool(low))


def _write(path: Path, name: str, found: dict[str, Any]) -> None:
    kept = json.loads(path.read_text())["modules"] if path.exists() else {}
    kept[name] = {**found, "on": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                  "python": platform.python_version()}  # fmt: skip
    told = {"command": "make mutate", "modules": {one: kept[one] for one in SUBJECTS if one in kept}}
    path.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
