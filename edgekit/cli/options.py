"""Options that mean the same in every command, and how a result is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

__all__ = ["BUNDLE", "PATH", "PERCENT", "as_json", "budget_ms", "print_json", "trust"]

PATH = click.Path(path_type=Path)
BUNDLE = click.Path(path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object on stdout.")
budget_ms = click.option(
    "--budget-ms", type=click.FloatRange(min=0, min_open=True), metavar="MS", help="Latency budget, milliseconds."
)
trust = click.option(
    "--trust",
    type=PATH,
    multiple=True,
    metavar="PEM",
    help="A public key that must have signed the bundle; repeatable.",
)


class _Percent(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`1%` or `0.5 %` -> a fraction. A bare number is refused: 0.01 and 1 are too easily taken for each other."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        if not text.endswith("%"):
            self.fail(f"{value!r} has no per cent sign; write it as 1%", param, ctx)
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            self.fail(f"{value!r} is no percentage; write it as 1%", param, ctx)
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return share


PERCENT = _Percent()


def print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))
