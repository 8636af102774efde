"""edgekit selftest, and what it tests where nothing is named."""

from __future__ import annotations

import json

import pytest
import tiny
from click.testing import CliRunner

from edgekit.cli.main import cli
from edgekit_runtime.engines import available
from edgekit_runtime.install import Asked, Board, install

ENGINE = "litert" if "litert" in available() else min(available())


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def ran():
    return CliRunner().invoke(cli, ["selftest", "--json"])


def test_the_only_bundle_of_this_folder_is_tested_and_named(here):
    bundle = tiny.bundle_for(ENGINE, here)
    done = ran()
    assert done.exit_code == 0, done.output
    assert f"testing {bundle}" in done.stderr
    assert json.loads(done.stdout)["bundle"] == str(bundle)


def test_an_install_root_is_tested_from_within(here, tmp_path):
    bundle = tiny.bundle_for(ENGINE, tmp_path)
    install(bundle, here, Asked(allow_unsigned=True, board=Board(("x86-64",)), trial="app"))
    done = ran()
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["generation"] == 1
    assert f"testing {here}" in done.stderr


@pytest.mark.parametrize(("names", "words"), [((), "holds none"), (("a.ekb", "b.ekb"), "it holds 2 of them")])
def test_where_that_does_not_say_one_it_is_a_mistake_on_the_command_line(here, names, words):
    for name in names:
        (here / name).write_bytes(b"")
    done = CliRunner().invoke(cli, ["selftest"])
    assert done.exit_code == 2
    assert f"Without it, {here} must be an install root or hold one *.ekb" in " ".join(done.stderr.split())
    assert words in " ".join(done.stderr.split())
