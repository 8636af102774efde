"""An option is declared once: its spelling, type, default and help."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import MISSING
from inspect import Parameter, signature
from pathlib import Path

import click
import pytest
import spellings
from conftest import run_edgekit

import edgekit
from edgekit.building.build_request import BuildRequest
from edgekit.cli.build import build
from edgekit.cli.compress import compress
from edgekit.compressing.compress_request import CompressRequest
from edgekit_converters.recipe.option import OptionField, options_in

TREE = Path(__file__).parents[2]
HOMONYMS = {
    "--anchors": "a flag of deploy, a folder of profiles measure",
    "--batch": "sizes to pack, on or off in bench",
    "--cache": "a folder of build, a flag of bench, a server of host",
    "--compare": "another tool's file, an earlier record of bench",
    "--device": "a board's id, cpu or gpu of host export",
    "--folder": "of keys, of the demo",
    "--for": "plain files, another server's repository, phones and browsers of check",
    "--like": "data of try, a family of contract",
    "--name": "of bundles, of a key",
    "--port": "of sshd, of a broker",
    "--recipe": "kinds of artifact to make, one of a bundle, a file of compress",
    "--runtime": "an engine, an engine and its version",
    "--secret": "where a key is, a flag of keys new",
    "--server": "a user of the broker, a URL",
    "--to": "a generation, a file",
    "--url": "of a host, of a bundle",
}
"""Spelling that means another thing in another command."""


def declared() -> dict[str, list[str]]:
    """Long spelling -> where the sources declare it, with its help."""
    found = defaultdict(list)
    for package in ("edgekit", "converters/edgekit_converters"):
        for file in sorted((TREE / package).rglob("*.py")):
            for flag, line in declarations(ast.parse(file.read_text(encoding="utf-8"))):
                found[flag].append(f"{file.name}:{line}")
    return found


def declarations(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            in_file = any(one.arg == "in_file" for one in node.value.keywords)
            if ast.unparse(node.value.func) in ("option", "Option") and not in_file:
                yield spelt(node.value) or f"--{target.id.lower().replace('_', '-')}", node.lineno
        if isinstance(node, ast.Call) and spelt(node) and ast.unparse(node.func) in ("shared", "click.option"):
            yield spelt(node), node.lineno


def spelt(node: ast.Call) -> str:
    texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return next((text for text in texts if text.startswith("--")), "")


def test_no_option_is_declared_twice():
    found = declared()
    assert len(found) > 120
    twice = {flag: places for flag, places in found.items() if len(places) > 1}
    assert {flag: places for flag, places in twice.items() if flag not in HOMONYMS} == {}
    assert HOMONYMS.keys() - twice.keys() == set(), "one of them has become the only one"


ELSEWHERE = {"build": {"signer", "passphrase_file"}, "compress": set()}
"""Options that are no argument in Python: there `sign` may be SigningOptions."""
OF_PYTHON = {"model", "progress", "say", "command"}


@pytest.mark.parametrize(
    ("call", "request_type"),
    [(edgekit.build, BuildRequest), (edgekit.compress, CompressRequest)],
    ids=["build", "compress"],
)
def test_a_python_call_has_the_options_names_and_defaults(call, request_type):
    options = {one.name: one for one in options_in(request_type)}
    arguments = signature(call).parameters
    assert arguments.keys() - OF_PYTHON == options.keys() - ELSEWHERE[call.__name__]
    for name, one in options.items():
        if name not in ELSEWHERE[call.__name__] and name != "cache":  # True stands for the default folder
            assert default_of(arguments[name]) == plain(one), name
    assert arguments["cache"].default is True


def default_of(argument: Parameter):
    return MISSING if argument.default is Parameter.empty else argument.default


def plain(one: OptionField):
    if one.repeats and one.default is not MISSING:
        return ()
    return str(one.default) if isinstance(one.default, Path) else one.default


@pytest.mark.parametrize(
    ("command", "request_type"), [(build, BuildRequest), (compress, CompressRequest)], ids=["build", "compress"]
)
def test_a_command_has_the_requests_options_and_few_of_its_own(command: click.Command, request_type):
    fields = {one.flag for one in options_in(request_type) if not one.option.in_file}
    spelt = {max(one.opts, key=len) for one in command.params if isinstance(one, click.Option)}
    assert spelt - fields == {"--json", "--no-cache", *(["--recipe"] if command is compress else [])}
    assert fields <= spelt


def test_compress_has_at_most_sixteen_options():
    assert len([one for one in compress.params if isinstance(one, click.Option)]) + 1 <= 16, "--help is one of them"


def test_spellings_stay():
    wrong = "an option is new, gone or renamed: if that is meant, run python tests/support/spellings.py"
    assert spellings.FILE.read_text(encoding="utf-8") == spellings.listed(), wrong


@pytest.mark.parametrize(
    "command",
    [
        "export x.ekb",
        "host export x.ekb --for triton",
        "fleet broker-config --board porch-1",
        "fleet samples pull --key k",
    ],
)
def test_an_output_that_is_required_is_asked_for(command, tmp_path):
    ran = run_edgekit(*command.split(), cwd=tmp_path)
    assert ran.code == 2
    assert "Missing option '-o' / '--output'" in ran.err
