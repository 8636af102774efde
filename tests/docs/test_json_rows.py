"""The page's table of JSON objects has a row for each command about keys, and about what is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.cli.install import install, rollback, status
from edgekit.cli.keys import keys
from edgekit.cli.verify import verify

PAGE = Path(__file__).parents[2] / "docs" / "builder-reference.md"
COMMANDS = [one.name for one in (install, rollback, status, verify)]


def rows() -> str:
    """The first column of the table."""
    table = PAGE.read_text(encoding="utf-8").split("## Scripts: JSON and exit codes")[1].split("| exit code |")[0]
    return "\n".join(line.split(" | ")[0] for line in table.splitlines() if line.startswith("| "))


@pytest.mark.parametrize("name", [*COMMANDS, *sorted(keys.commands)])
def test_a_command_has_its_row(name):
    assert f"`{name}`" in rows() or f"`keys {name}`" in rows()
