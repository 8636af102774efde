"""Figures as docs show them: what was wanted beside what was reached, in a table between two markers of a page.

put_between(Path("docs/figures.md"), "runtime", table([Figure("exact hit", "<= 10 us", "7.5 us", True)]))
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_SAID = {True: "met", False: "**missed**", None: "not measured"}


@dataclass(frozen=True)
class Figure:
    """met: None where it was not measured."""

    what: str
    wanted: str
    reached: str
    met: bool | None


def table(figures: Iterable[Figure]) -> str:
    """Markdown."""
    lines = ["| what | wanted | reached | |", "|---|---|---|---|"]
    lines += [f"| {f.what} | {f.wanted} | {f.reached} | {_SAID[f.met]} |" for f in figures]
    return "\n".join(lines)


def put_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->`."""
    before, rest = path.read_text().split(f"<!-- {name} -->", 1)
    after = rest.split(f"<!-- /{name} -->", 1)[1]
    path.write_text(f"{before}<!-- {name} -->\n\n{text.strip()}\n\n<!-- /{name} -->{after}")


def show(what: str, figures: Callable[[Path], Iterable[Figure]], marker: str) -> None:
    """A script's main: print the table of `figures(results)`; with --docs also into that page, between its markers."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    found = table(figures(options.results))
    print(found)
    if options.docs:
        put_between(options.docs, marker, found)
