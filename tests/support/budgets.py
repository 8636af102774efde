"""What keeps the tree small: `make lint` runs it.

    python tests/support/budgets.py             fails where a room is larger than its budget
    python tests/support/budgets.py --lines     what each room has, as the table in pyproject.toml

A room is a package without its sub-packages, and its budget in lines stands in pyproject.toml, [tool.edgekit.budgets].
It grows only by a commit that lowers another's budget or brings a decision record.
`__all__` stands in the fronts of packages alone: there it says what is public.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("runtime/edgekit_runtime", "device_profiles/edgekit_profiles", "converters/edgekit_converters", "edgekit")


def sizes(root: Path = ROOT, sources: Sequence[str] = SOURCES) -> dict[str, int]:
    """Lines of each room, by its dotted name."""
    found: Counter[str] = Counter()
    for source in sources:
        base = root / source
        for file in base.rglob("*.py"):
            room = ".".join((base.name, *file.parent.relative_to(base).parts))
            found[room] += len(file.read_text(encoding="utf-8").splitlines())
    return dict(sorted(found.items()))


def over(found: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """A sentence for each room that breaks its budget, has none, or is gone."""
    wrong = [
        f"{room} has {lines} lines, and its budget is {budgets[room]}: shorten it, or lower another's budget with it"
        for room, lines in found.items()
        if room in budgets and lines > budgets[room]
    ]
    wrong += [f"{room} has no budget in pyproject.toml" for room in found.keys() - budgets.keys()]
    wrong += [f"{room} has a budget in pyproject.toml and no files" for room in budgets.keys() - found.keys()]
    return sorted(wrong)


def listed(root: Path = ROOT, sources: Sequence[str] = SOURCES) -> list[str]:
    """Modules that have `__all__` and are not the front of a package."""
    wrong = []
    for file in sorted(file for source in sources for file in (root / source).rglob("*.py")):
        if file.name == "__init__.py" or "__all__" not in (text := file.read_text(encoding="utf-8")):
            continue
        for node in ast.parse(text).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                wrong.append(
                    f"{file.relative_to(root)}:{node.lineno} has __all__: only the front of a package lists names"
                )
    return wrong


def main(arguments: Sequence[str]) -> int:
    found = sizes()
    if "--lines" in arguments:
        print("\n".join(f'"{room}" = {lines}' for room, lines in found.items()))
        return 0
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["edgekit"]["budgets"]
    wrong = [*over(found, budgets), *listed()]
    print("\n".join(wrong) if wrong else f"{sum(found.values())} lines in {len(found)} rooms, each within its budget")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
