"""Every command and option that a message or the page of codes names exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from edgekit.cli.main import cli

TREE = Path(__file__).parents[2]
PACKAGES = ("edgekit", "converters/edgekit_converters", "device_profiles/edgekit_profiles", "runtime/edgekit_runtime")
OTHERS = {"--config-settings"}
"""Options of other programs that a message names."""
NAMED = re.compile(r"(?:Run: |`|: |run |with |; )edgekit ([a-z]+)(?: ([a-z-]+))?")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+[a-z]")


@cache
def messages() -> tuple[tuple[str, str], ...]:
    return tuple(_read_messages())


def _read_messages() -> Iterator[tuple[str, str]]:
    """What `do=` says, wherever an error is made, and the catalogue's advice."""
    for package in PACKAGES:
        for file in sorted((TREE / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.keyword) and node.arg == "do":
                    texts = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
                    yield f"{file.name}:{node.value.lineno}", "".join(one for one in texts if isinstance(one, str))
    for code, entry in tomllib.loads((TREE / "edgekit" / "boards" / "catalogue.toml").read_text()).items():
        yield code, str(entry.get("do", "")) if isinstance(entry, dict) else ""


def below(command: click.Command) -> dict[str, click.Command]:
    """The commands of a group, by name; some are imported only when they are asked for."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: one for name, one in found.items() if one is not None}


def options(command: click.Command) -> set[str]:
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return own.union(*map(options, below(command).values()))


def test_every_command_that_a_message_names_exists():
    assert len(messages()) > 300
    missing, commands = [], below(cli)
    for where, text in messages():
        for first, second in NAMED.findall(text):
            if first not in commands or (second and below(commands[first]) and second not in below(commands[first])):
                missing.append(f"{where}: edgekit {first} {second}")
    assert not missing


def test_every_option_that_is_named_beside_a_command_of_ours_exists():
    known = options(cli) | {"--help", "--version"} | OTHERS
    missing = [
        f"{where}: {option}"
        for where, text in messages()
        if "edgekit " in text and "pip" not in text
        for option in OPTION.findall(text)
        if option not in known
    ]
    assert not missing
