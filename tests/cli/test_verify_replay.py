"""edgekit verify --replay, and what it takes where nothing is named."""

from __future__ import annotations

import json

import pytest
import tiny
from click.testing import CliRunner

from edgekit.cli.main import cli
from edgekit_runtime.engines.registry import available
from edgekit_runtime.install import BoardIdentity, InstallOptions, install

ENGINE = "litert" if "litert" in available() else min(available())


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def ran(*more):
    return CliRunner().invoke(cli, ["verify", "--replay", "--allow-unsigned", "--json", *map(str, more)])


VERIFIED = {"bundle", "digest", "ok", "trusted", "signed_by", "checks"}
REPLAYED = {"recipe", "engine", "examples", "same_engine", "worst_steps", "worst_cosine"}


def test_the_only_bundle_of_this_folder_is_tested_and_named(here):
    bundle = tiny.bundle_for(ENGINE, here)
    done = ran()
    assert done.exit_code == 0, done.output
    assert f"verifying {bundle}" in done.stderr
    found = json.loads(done.stdout)
    assert found["bundle"] == str(bundle)
    assert set(found) == VERIFIED | REPLAYED
    assert (found["ok"], found["engine"]["name"], found["examples"]) == (True, ENGINE, 2)


def test_its_record_is_what_json_prints(here, tmp_path):
    tiny.bundle_for(ENGINE, here)
    done = ran("--engine", ENGINE, "--threads", 1, "-o", tmp_path / "record.json")
    assert json.loads((tmp_path / "record.json").read_text()) == json.loads(done.stdout)
    assert json.loads(done.stdout)["engine"]["threads"] == 1


def test_an_engine_is_refused_where_nothing_is_loaded(here):
    bundle = tiny.bundle_for(ENGINE, here)
    done = CliRunner().invoke(cli, ["verify", str(bundle), "--engine", ENGINE])
    assert done.exit_code == 2
    assert "Pass --replay with --engine" in done.stderr


def test_what_cannot_be_done_in_the_end_is_refused_before_any_check(here):
    bundle = tiny.bundle_for(ENGINE, here)
    for arguments, what in {
        ("--engine", "nonesuch"): "unknown engine 'nonesuch'",
        ("-o", "nowhere/x.json"): "cannot be written: no such directory",
    }.items():
        done = ran(bundle, *arguments)
        assert (done.stdout, done.exception.what) == ("", what)


def test_an_install_root_is_tested_from_within(here, tmp_path):
    bundle = tiny.bundle_for(ENGINE, tmp_path)
    install(bundle, here, InstallOptions(allow_unsigned=True, board=BoardIdentity(("x86-64",)), trial="app"))
    done = ran()
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["generation"], found["state"], found["unsigned"]) == (1, "trial", True)
    assert f"verifying {here}" in done.stderr


@pytest.mark.parametrize(("names", "words"), [((), "holds none"), (("a.ekb", "b.ekb"), "it holds 2 of them")])
def test_where_that_does_not_say_one_it_is_a_mistake_on_the_command_line(here, names, words):
    for name in names:
        (here / name).write_bytes(b"")
    done = CliRunner().invoke(cli, ["verify"])
    assert done.exit_code == 2
    assert f"Without it, {here} must be an install root or hold one *.ekb" in " ".join(done.stderr.split())
    assert words in " ".join(done.stderr.split())
