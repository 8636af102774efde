"""Options mean the same wherever they appear, and an install root is taken wherever a bundle is."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import click
import pytest
import rooted
import tiny
from click.testing import CliRunner

import edgekit
from edgekit.cli.main import COMMANDS, GROUPS, cli
from edgekit.packaging.writer import SigningKey
from edgekit_runtime.engines.registry import available
from edgekit_runtime.install import BoardIdentity, InstallOptions, install
from edgekit_runtime.system.errors import EdgekitError

ENGINE = "litert" if "litert" in available() else min(available())
OPTIONS = {
    "run": {"--trust", "--allow-unsigned", "--secret", "--pin"},
    "bench": {"--trust", "--allow-unsigned", "--secret", "--pin"},
    "verify": {"--trust", "--allow-unsigned", "--secret"},
    "install": {"--trust", "--allow-unsigned", "--secret", "--root"},
    "deploy": {"--trust", "--allow-unsigned", "--secret"},
    "inspect": {"--trust", "--allow-unsigned", "--secret"},
    "check": {"--trust", "--allow-unsigned", "--secret"},
    "estimate": {"--trust", "--allow-unsigned", "--secret"},
    "export": {"--trust", "--allow-unsigned", "--secret"},
    "host export": {"--trust", "--allow-unsigned", "--secret"},
    "host serve": {"--trust", "--allow-unsigned", "--secret"},
    "status": {"--root"},
    "rollback": {"--root", "--trust"},
    "agent": {"--trust", "--secret", "--root"},
}
"""Of these five options, what each command about bundles takes.

`agent` has no waiver: no order installs an unsigned bundle. `rollback` needs none, because the root keeps what was
accepted unsigned, and no key, because it checks digests."""
SHARED = {"--trust", "--allow-unsigned", "--secret", "--pin", "--root"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)
    monkeypatch.chdir(tmp_path)


def said(*arguments):
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def options_of(name):
    command, *below = name.split()
    command = cli.get_command(None, command)
    for part in below:
        command = command.commands[part]
    return {spelt for one in command.params for spelt in one.opts if spelt.startswith("--")}


def test_help_keeps_four_groups_each_with_an_example():
    assert list(GROUPS) == ["Build", "Run", "Board", "Trust and fleet"]
    assert all(example.startswith("edgekit ") for example, _ in GROUPS.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_of_itself(name):
    for path, command in leaves(name):
        path = f"edgekit {path}"
        said = command.get_help(click.Context(command, info_name=path)).partition("\n")[2]
        assert f"{path} " in said or f"{path}\n" in said, path


def test_every_error_line_ends_with_its_code():
    lines, bare = 0, []
    for file in sorted(Path(edgekit.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            first, last = (part.value if isinstance(part, ast.Constant) else "" for part in (parts[0], parts[-1]))
            if not isinstance(first, str) or not first.startswith("error: ") or first == last == "error: ":
                continue
            lines += 1
            if not str(last).endswith("]"):
                bare.append(f"{file.name}:{node.lineno}")
    assert lines >= 4
    assert bare == []


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_there_wherever_it_applies(name):
    assert options_of(name) & SHARED == OPTIONS[name]


WITHOUT_TRUST = {"fleet rollout": "passes it on: each board checks it", "install": "--root"}
"""Command with a BUNDLE that takes no ROOT in its place: why."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_opens_a_bundle_takes_a_root_too_and_the_options_of_trust(name):
    for path, command in leaves(name):
        names = [one.metavar or one.name.upper() for one in command.params if isinstance(one, click.Argument)]
        if any("BUNDLE" in one for one in names) and path not in WITHOUT_TRUST:
            assert any("ROOT" in one for one in names), path
            assert {"--trust", "--allow-unsigned", "--secret"} <= options_of(path), path


def leaves(name):
    """(words behind `edgekit`, command) of a command, or of all below a group."""

    def below(path, command):
        if isinstance(command, click.Group):
            return [leaf for one, inner in command.commands.items() for leaf in below(f"{path} {one}", inner)]
        return [(path, command)]

    return below(name, cli.get_command(None, name))


LISTS = ["", "fleet samples", *(name for name in COMMANDS if isinstance(cli.get_command(None, name), click.Group))]


@pytest.mark.parametrize("group", LISTS)
def test_no_list_of_commands_cuts_a_summary_at_80_columns(group):
    shown = CliRunner().invoke(cli, [*group.split(), "--help"], terminal_width=80).output
    assert "Commands:" in shown or not group
    assert not [line for line in shown.splitlines()[1:] if line.endswith("...")]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_summary_that_a_list_of_commands_shows_whole(name):
    for _, command in leaves(name):
        assert command.get_short_help_str(60)[-3:] != "..." or command.name in COMMANDS, command.name
        first = command.help.partition("\n\n")[0]
        assert len(" ".join(first.split())) <= 100, command.name


@pytest.mark.parametrize("name", COMMANDS)
def test_root_means_an_install_root_everywhere(name):
    for _, command in leaves(name):
        of_root = [one for one in command.params if "--root" in one.opts]
        assert (of_root != []) == (command.name in ("install", "status", "rollback", "agent")), command.name


COMMANDS_OF_A_ROOT = {
    "run": ("run", "{root}", "red.npy"),
    "bench": ("bench", "{root}", "-n", "10"),
    "inspect": ("inspect", "{root}"),
    "verify": ("verify", "{root}", "--allow-unsigned"),
    "check": ("check", "{root}", "--profile", "x86-64", "--no-replay"),
    "estimate": ("estimate", "{root}", "--profile", "raspberry-pi-4"),
    "status": ("status", "{root}"),
    "export": ("export", "{root}", "-o", "plain"),
}


@pytest.mark.parametrize("name", COMMANDS_OF_A_ROOT)
def test_an_install_root_is_taken_in_a_bundles_place(name, tmp_path):
    import numpy

    install(
        tiny.bundle_for(ENGINE, tmp_path),
        tmp_path / "root",
        InstallOptions(allow_unsigned=True, board=BoardIdentity(("x86-64",))),
    )
    numpy.save(tmp_path / "red.npy", tiny.RED)
    done = said(*(one.format(root=tmp_path / "root") for one in COMMANDS_OF_A_ROOT[name]), "--json")
    assert done.exit_code == 0, done.output
    json.loads(done.stdout)


def test_bench_asks_for_trust_as_run_does(tmp_path):
    signed = tiny.bundle(
        tmp_path, tiny.RECIPE_OF_ENGINE[ENGINE], engine=ENGINE, key=SigningKey(rooted.private("alice"))
    )
    for name in ("alice", "bob"):
        (tmp_path / f"{name}.pem").write_bytes(rooted.public_pem(name))
    assert said("bench", signed, "-n", "10", "--trust", "alice.pem", "--pin", "primary").exit_code == 0
    refused = said("bench", signed, "-n", "10", "--trust", "bob.pem")
    assert isinstance(refused.exception, EdgekitError)
    assert refused.exception.code == "unknown-key"
    assert said("bench", signed, "-n", "10", "--trust", "bob.pem", "--allow-unsigned").exit_code == 0


@pytest.mark.parametrize("command", [("inspect",), ("check", "--profile", "x86-64", "--no-replay"), ("estimate",)])
def test_a_bundle_is_refused_by_the_keys_that_are_named_unless_unsigned_ones_may_pass(command, tmp_path):
    bundle = tiny.bundle_for(ENGINE, tmp_path)
    (tmp_path / "alice.pem").write_bytes(rooted.public_pem("alice"))
    given = (*command, bundle, "--trust", "alice.pem")
    assert getattr(said(*given).exception, "code", None) == "unsigned"
    accepted = said(*given, "--allow-unsigned")
    assert not isinstance(accepted.exception, EdgekitError) or accepted.exception.code != "unsigned"


@pytest.mark.parametrize("given", [("--trust", "alice.pem"), ("--allow-unsigned",), ("--secret", "file:key")])
def test_whom_this_machine_trusts_is_not_asked_about_a_board(given, tmp_path):
    done = said("bench", tiny.bundle_for(ENGINE, tmp_path), "--on", "pi@board", *given)
    assert done.exit_code == 2
    assert f"{given[0]} is for this machine" in " ".join(done.stderr.split())
