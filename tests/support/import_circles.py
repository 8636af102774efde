"""An import contract: no module imports itself through others, and no room does. Imports in functions and for type
checkers count, too. A room is a package without its sub-packages; `__main__`, which nothing imports, is in none.

[[tool.importlinter.contracts]]
name = "no import circle"
type = "no_circles"
"""

from __future__ import annotations

from collections.abc import Mapping

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    type_name = "no_circles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        found = circle_in(imports) or circle_in(between_rooms(imports))
        return ContractCheck(kept=not found, metadata={"circle": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        output.print_error(" -> ".join(check.metadata["circle"]))


def between_rooms(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same of packages: what modules of one import of another."""
    packages = {module.rpartition(".")[0] for module in imports}
    alone = packages | {module for module in imports if module.endswith(".__main__")}
    room = {module: module if module in alone else module.rpartition(".")[0] for module in imports}
    found: dict[str, set[str]] = {name: set() for name in room.values()}
    for module, imported in imports.items():
        found[room[module]] |= {room[other] for other in imported if other in room} - {room[module]}
    return found


def circle_in(imports: Mapping[str, set[str]]) -> list[str]:
    """One circle among modules and what each imports, its first module at both ends; empty where there is none."""
    left = {module: set(imported) for module, imported in imports.items()}
    while True:  # what imports nothing of the rest is in no circle
        ends = {module for module, imported in left.items() if not imported & left.keys()}
        if not ends:
            break
        left = {module: imported for module, imported in left.items() if module not in ends}
    if not left:
        return []
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]] & left.keys()))
    return path[path.index(path[-1]) :]
