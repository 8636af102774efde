"""Figures as docs show them: what was wanted beside what was reached, in a table between two markers of a page.

put_between(Path("README.md"), "runtime", table([Figure("exact hit", "<= 10 us", "7.5 us", True)]))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Figure", "put_between", "table"]

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
