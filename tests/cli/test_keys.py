"""edgekit keys as a person types it: one who signs alone, two who sign together, a board that follows."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass

import numpy
import pytest
import tiny

PASSPHRASE = "correct horse battery"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self):
        (line,) = self.out.strip().splitlines()
        return json.loads(line)


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    """A user with settings of his own; `desk(...)` is `edgekit keys ...`, in this process."""
    from edgekit.cli.main import main

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["keys", *map(str, arguments)])
        return Said(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def root(tmp_path):
    return tmp_path / "settings" / "edgekit" / "trust" / "root.json"


def test_one_person_makes_a_key_trusts_it_and_signs(desk, edgekit, tmp_path, root):
    """S1 S9"""
    made = desk("new", "alice")
    assert made.code == 0
    assert "has no passphrase: anyone with a copy can sign" in made.out
    assert "next: edgekit keys trust alice; then edgekit build ... --sign alice" in made.out
    bundle = tiny.bundle(tmp_path)
    numpy.save(tmp_path / "red.npy", tiny.RED)
    assert edgekit("run", bundle, "red.npy").code == 0, "no trusted keys are configured"
    assert "root.json: is this version now" in desk("trust", "alice").out
    refused = edgekit("run", bundle, "red.npy", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "unsigned")
    assert "--allow-unsigned" in refused.json["error"]["do"]
    assert edgekit("verify", bundle, "--replay", "--allow-unsigned").code == 0
    signed = desk("sign", bundle.name, "--sign", "alice")
    assert "tiny version 1 for x86-64" in signed.out
    assert "signed by alice" in signed.out
    assert edgekit("verify", bundle, "--replay").code == 0
    shown = edgekit("inspect", bundle, "--json").json
    assert (shown["trusted"], shown["trust"].partition(" (")[0]) == (True, "signed by alice")


def test_a_board_follows_what_two_people_decide(desk, edgekit, tmp_path, root):
    """S6"""
    for name in ("alice", "bob"):
        desk("new", name)
    desk("trust", "alice", "bob", "--sign", "alice", "--sign", "bob", "--root-threshold", "2", "--threshold", "2")
    board = tmp_path / "board.json"
    first = desk("update", root, "--to", board, "--json").json
    assert (first["before"], first["trust"]["roles"]["bundle"]["threshold"]) == (None, 2)
    draft = desk("trust", "--renew", "--days", "700", "--sign", "alice")
    assert "not in force: more of these must sign it: bob" in draft.out
    refused = desk("update", root.with_name("root-2.json"), "--to", board)
    assert (refused.code, "Have these sign it (bob" in refused.err) == (1, True)
    assert "root.json: is this version now" in desk("sign", root.with_name("root-2.json"), "--sign", "bob").out
    assert desk("update", root.with_name("root-2.json"), "--to", board, "--json").json["trust"]["version"] == 2


def test_a_key_that_signs_bundles_changes_whom_boards_trust_only_where_that_was_said(desk, root):
    for name in ("alice", "bob"):
        desk("new", name)
    refused = desk("trust", "alice", "bob")
    assert (refused.code, root.exists()) == (2, False)
    assert "say with --sign which of them sign the next versions of root.json" in refused.err
    made = desk("trust", "alice", "bob", "--sign", "alice")
    assert "  bundles  1 of 2: " in made.out
    assert "  root     1 of 1: alice" in made.out
    assert desk("trust", "--renew", "--sign", "bob").code == 1
    told = desk("trust", "bob", "--role", "root", "--threshold", "2", "--sign", "alice", "--json").json
    assert [(role["threshold"], len(role["keys"])) for role in told["roles"].values()] == [(1, 2), (2, 2)]


def test_of_ones_own_key_and_anothers_ones_own_signs_the_versions(desk, root, tmp_path):
    desk("new", "alice")
    desk("new", "bob", "--folder", tmp_path / "bobs")
    assert "root     1 of 1: alice" in desk("trust", tmp_path / "bobs" / "bob.pub.pem", "alice").out


def test_the_lists_show_keys_and_whom_the_machine_trusts(desk, root):
    assert "trust: none on this machine (looked for" in desk("list").out
    desk("new", "alice")
    desk("new", "bob")
    desk("trust", "alice", "bob", "--sign", "alice")
    desk("revoke", "bob", "--why", "laptop stolen")
    listed = desk("list")
    assert listed.code == 0
    assert "version 2, good until" in listed.out
    assert "laptop stolen" in listed.out
    told = desk("list", "--json").json
    assert [key["name"] for key in told["keys"]] == ["alice", "bob"]
    assert [(one["name"], one["why"]) for one in told["trust"]["revoked"]] == [("bob", "laptop stolen")]
    assert PASSPHRASE not in listed.out


def broken(root, monkeypatch):
    root.write_text("{")
    return "Move it away"


def missing_by_name(root, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TRUST", str(root.with_name("gone.json")))
    return "EDGEKIT_TRUST names a file"


def everybodys(root, monkeypatch):
    root.chmod(0o666)
    return "chmod go-w"


@pytest.mark.parametrize("spoil", [broken, missing_by_name, everybodys])
def test_ones_own_keys_are_listed_also_where_whom_the_machine_trusts_cannot_be_told(desk, root, monkeypatch, spoil):
    if spoil is everybodys and os.name != "posix":
        pytest.skip("modes are POSIX's")
    desk("new", "alice")
    desk("trust", "alice")
    words = spoil(root, monkeypatch)
    listed = desk("list")
    assert (listed.code, "  alice  " in listed.out, "trust:" in listed.out) == (1, True, False)
    assert listed.err.startswith("error: ")
    assert words in listed.err
    told = desk("list", "--json")
    code = "unsafe-path" if spoil is everybodys else "trust"
    assert (told.code, told.json["trust"], told.json["error"]["code"]) == (1, None, code)
    assert [key["name"] for key in told.json["keys"]] == ["alice"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_key_that_others_can_read_is_told(desk, tmp_path):
    """S11"""
    desk("new", "alice")
    path = tmp_path / "settings" / "edgekit" / "keys" / "alice.pem"
    path.chmod(0o644)
    listed = desk("list")
    assert (listed.code, f"chmod 600 {path}" in listed.err) == (1, True)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize(
    "command",
    [
        ("list", "--root-json", "root.json"),
        ("sign", "root.json", "--sign", "alice"),
        ("trust", "alice", "--root-json", "root.json", "--sign", "alice"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("spoilt", ["root.json", "key"])
def test_keys_that_another_user_could_replace_are_neither_shown_nor_signed_nor_sign(
    desk, tmp_path, monkeypatch, command, spoilt
):
    """S11: one rule for every file of keys, the private ones as well."""
    monkeypatch.chdir(tmp_path)
    desk("new", "alice")
    key = tmp_path / "settings" / "edgekit" / "keys" / "alice.pem"
    assert desk("trust", "alice", "--root-json", "root.json", "--sign", "alice").code == 0
    (tmp_path / "root.json" if spoilt == "root.json" else key).chmod(0o666)
    if spoilt == "key" and command[0] == "list":
        return  # lists whom the file trusts; alice's key is told by `test_a_key_that_others_can_read_is_told`
    ran = desk(*command)
    assert (ran.code, "other users may write to it" in ran.err) == (1, True), ran.err


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_signing_with_a_key_that_others_can_read_is_done_and_told(desk, tmp_path):
    """S11"""
    desk("new", "alice")
    bundle = tiny.bundle(tmp_path)
    path = tmp_path / "settings" / "edgekit" / "keys" / "alice.pem"
    commands = (["trust", "alice"], ["trust", "--renew"], ["sign", bundle, "--sign", "alice"])
    for mode in (0o644, 0o600):
        path.chmod(mode)
        for command in commands:
            done = desk(*command, "--json")
            assert done.code == 0, done.err
            said = done.err.count(f"warning: other users can read {path}. Run: chmod 600 {path}")
            assert said == (mode == 0o644), command


def test_the_variable_decides_alone_where_a_board_keeps_it(desk, edgekit, tmp_path, root, monkeypatch):
    """S9"""
    desk("new", "alice")
    desk("trust", "alice")
    named = tmp_path / "board" / "root.json"
    monkeypatch.setenv("EDGEKIT_TRUST", str(named))
    refused = edgekit("verify", tiny.bundle(tmp_path))
    assert (refused.code, f"{named}: EDGEKIT_TRUST names a file that does not exist" in refused.err) == (1, True)
    assert desk("update", root, "--json").json["root"] == str(named)
    assert f"trust: {named}, version 1" in desk("list").out


def test_a_passphrase_comes_from_a_file_the_environment_or_a_person_and_never_from_the_command_line(
    desk, tmp_path, monkeypatch
):
    """S11"""
    (tmp_path / "pass").write_text(f"{PASSPHRASE}\n")
    assert "needs its passphrase" in desk("new", "alice", "--passphrase-file", "pass").out
    bundle = tiny.bundle(tmp_path)
    asked = desk("sign", bundle.name, "--sign", "alice")
    assert (asked.code, "EDGEKIT_PASSPHRASE" in asked.err) == (1, True)
    assert desk("sign", bundle.name, "--sign", "alice", "--passphrase-file", "pass").code == 0
    monkeypatch.setenv("EDGEKIT_PASSPHRASE", "wrong")
    assert "wrong passphrase" in desk("sign", bundle.name, "--sign", "alice").err
    monkeypatch.setenv("EDGEKIT_PASSPHRASE", PASSPHRASE)
    assert desk("sign", bundle.name, "--sign", "alice").code == 0
    helped = desk("new", "--help").out + desk("sign", "--help").out
    assert "--passphrase TEXT" not in helped
    assert "--passphrase-file FILE" in helped


@pytest.mark.skipif(os.name != "posix", reason="a terminal is POSIX's")
def test_a_terminal_is_asked_and_shows_nothing(tmp_path):
    """S11"""
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "keys", "new", "alice", "--passphrase"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    for expected in (b"passphrase for alice:", b"Repeat for confirmation:"):
        while expected not in shown:
            shown += os.read(ours, 1024)
        os.write(ours, f"{PASSPHRASE}\n".encode())
    try:
        while part := os.read(ours, 1024):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    assert b"needs its passphrase to sign" in shown
    assert PASSPHRASE.encode() not in shown
    assert b"ENCRYPTED" in (tmp_path / "edgekit" / "keys" / "alice.pem").read_bytes()


def test_nothing_private_is_printed(desk, tmp_path):
    """S11"""
    said = [
        desk("new", "alice"),
        desk("trust", "alice"),
        desk("list"),
        desk("list", "--json"),
        desk("new", "bob", "--json"),
    ]
    keys = (tmp_path / "settings" / "edgekit" / "keys").glob("*.pem")
    bodies = [
        line for file in keys if not file.name.endswith(".pub.pem") for line in file.read_text().splitlines()[1:-1]
    ]
    assert len(bodies) == 2
    assert not [line for line in bodies for one in said if line in one.out + one.err]


USAGE = {
    "who signs": (["sign", "x.ekb"], "Name a signing key"),
    "a command without a key": (["sign", "x.ekb", "--sign", "a", "--signer", "true"], None),
    "a name for two keys": (["trust", "a", "b", "--name", "c"], "--name goes with one KEY"),
    "two keys for one": (["trust", "a", "b", "--replace", "c"], "--replace goes with one KEY"),
    "a role for a key that takes another's": (
        ["trust", "a", "--replace", "b", "--role", "root"],
        "Leave out --role: --rep",
    ),
    "a threshold of a later date": (
        ["trust", "--renew", "--threshold", "2", "--key-days", "9"],
        "Leave out --threshold, --key-days: --renew changes none of it",
    ),
    "days of grace for no key": (["trust", "a", "--grace-days", "5"], "--grace-days goes with --replace"),
    "neither a key nor --renew": (["trust"], "Name a KEY, or pass --renew"),
    "a key and --renew": (["trust", "a", "--renew"], "and not both"),
    "a passphrase for a secret": (["new", "a", "--secret", "--passphrase"], "A secret has no passphrase"),
    "two keys for OpenSSF": (["sign", "x.ekb", "--openssf", "--sign", "a", "--sign", "b"], "one private key"),
    "a command for OpenSSF": (["sign", "x.ekb", "--openssf", "--sign", "a", "--signer", "true"], "one private key"),
    "no command": (["frobnicate"], "No such command"),
    "a passphrase without a terminal": (["new", "a", "--passphrase"], "--passphrase needs a terminal"),
}


@pytest.mark.parametrize(("arguments", "words"), USAGE.values(), ids=USAGE)
def test_a_mistake_on_the_command_line_is_told(desk, arguments, words):
    ran = desk(*arguments)
    assert ran.code == (2 if words else 1)
    assert words is None or words in ran.err


def test_what_cannot_be_is_one_line_that_says_what_to_do(desk, tmp_path):
    for arguments, words in (
        (["trust", "nobody"], "Make it: edgekit keys new nobody"),
        (["trust", "b", "--replace", "a"], "no root.json yet"),
        (["update", "gone.json"], "gone.json: cannot be read"),
        (["sign", "gone.ekb", "--sign", "nobody"], "no key 'nobody'"),
    ):
        desk("new", "b") if "--replace" in arguments else None
        ran = desk(*arguments)
        assert (ran.code, len(ran.err.splitlines())) == (1, 1), ran.err
        assert words in ran.err


@pytest.mark.parametrize("arguments", [("revoke", "nobody"), ("trust", "bob", "--replace", "nobody")], ids=" ".join)
def test_a_key_that_root_json_does_not_have_is_told_with_those_that_it_has(desk, arguments):
    for name in ("alice", "bob"):
        desk("new", name)
    desk("trust", "alice", "--sign", "alice")
    ran = desk(*arguments, "--sign", "alice")
    assert ran.code == 1
    assert "root.json: it has no key 'nobody'. Name one of alice, or a PEM file" in ran.err


def test_json_is_one_object_and_an_error_too(desk):
    made = desk("new", "alice", "--json").json
    assert set(made) == {"name", "keyid", "public", "private", "passphrase", "open_to_others"}
    again = desk("new", "alice", "--json")
    assert (again.code, again.json["error"]["code"]) == (1, "keys")
    assert json.loads(desk("trust", "alice", "--json").out)["missing"] == []
