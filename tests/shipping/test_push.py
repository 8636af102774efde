"""A board over ssh: a real sshd on loopback, and this machine behind it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
import tiny
from conftest import Ran
from shipping.conftest import REAL_ENGINE
from shipping.test_install import ours
from sshd import Sshd

from edgekit.shipping.package import packed_files
from edgekit.shipping.plan import BoardRefusedError, SshError
from edgekit.shipping.push import send
from edgekit.shipping.ssh import Address, SshConnection, probe, profile_for
from edgekit_profiles import load, open_catalogue
from edgekit_runtime.bundle.secrets import Secret

ENGINE = ("--engine", REAL_ENGINE)
pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    with Sshd(tmp_path_factory.mktemp("sshd")) as board:
        yield board


@pytest.fixture
def reached(board, monkeypatch):
    monkeypatch.setenv("PATH", board.path)
    return board


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """The board's disk."""
    return tmp_path_factory.mktemp("far")


def edgekit(board: Sshd, *arguments: object) -> Ran:
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"PATH": board.path},
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def pushed(board, far, tiny_bundle, real_package):
    """`edgekit deploy`, the first time."""
    given = ("--prefix", far / "apps" / "tiny", "--wheel", ours(real_package), *ENGINE, "--allow-unsigned", "--json")
    ran = edgekit(board, "deploy", tiny_bundle, board.to, *given, "--measure", far / "anchors.json")
    assert ran.code == 0, ran.err
    return ran.json


def test_it_finds_the_board_installs_tests_and_times_it(pushed, far, real_package):
    assert pushed["board"]["sure"] == "likely"
    assert pushed["profile"] == "x86-64"
    assert pushed["sent"]["kept"] == 0
    assert pushed["selftest"]["ok"] is True
    assert pushed["selftest"]["worst_steps"] == 0
    assert pushed["bench"]["asked"] >= 200
    assert {wheel["file"] for wheel in pushed["package"]["wheels"]} == {wheel.file for wheel in real_package.wheels}
    assert (far / "apps" / "tiny" / "model" / "current" / "bundle.ekb").is_file()


def test_it_brings_back_the_anchor_file_of_the_board(pushed, far):
    anchors = json.loads((far / "anchors.json").read_text())
    assert anchors == pushed["anchors"]
    assert {(one["engine"], one["precision"]) for one in anchors["times"]} == {
        (REAL_ENGINE, precision) for precision in ("float32", "int8")
    }


def test_one_connection_carries_all_of_it(pushed, board):
    """Every command of the push was a session of one connection, and that one has ended."""
    assert board.log.count("Accepted publickey") == 1
    assert int((board.folder / "connections").read_text().count("x")) > 5


def test_again_sends_only_what_changed(pushed, board, far, tiny_bundle, real_package):
    given = (
        "--prefix",
        far / "apps" / "tiny",
        "--wheel",
        ours(real_package),
        "--no-bench",
        *ENGINE,
        "--allow-unsigned",
        "--json",
    )
    changed = edgekit(board, "deploy", tiny_bundle, board.to, *given, "--service", "app {bundle}")
    assert changed.code == 0, changed.err
    assert changed.json["bench"] is None
    assert 0 < changed.json["sent"]["files"] <= 6
    assert changed.json["sent"]["kept"] >= pushed["sent"]["files"] - 8
    assert changed.json["sent"]["bytes"] < 50_000
    assert len(list((far / "apps" / "tiny" / "pushed").iterdir())) == 1


def test_bench_on_brings_the_board_s_record_in_the_form_of_ours(pushed, board, far, tiny_bundle, tmp_path):
    prefix = ("--prefix", far / "apps" / "tiny")
    there = edgekit(
        board, "bench", tiny_bundle, "--on", board.to, *prefix, "-n", 50, "-o", tmp_path / "there.json", "--json"
    )
    assert there.code == 0, there.err
    here = edgekit(board, "bench", tiny_bundle, "-n", 50, "--json").json
    assert there.json.keys() - {"on"} == here.keys()
    assert there.json["bundle"] == here["bundle"] == str(tiny_bundle)
    assert json.loads((tmp_path / "there.json").read_text()) == there.json


def test_bench_on_a_board_without_the_bundle_says_what_to_do(board, far, tiny_bundle):
    ran = edgekit(
        board, "bench", tiny_bundle, "--on", board.to, "--prefix", far / "apps" / "nothing", "-n", 10, "--json"
    )
    assert ran.code == 1
    assert ran.json["error"]["what"] == "it is not installed on the board"
    where = far / "apps" / "nothing"
    assert ran.json["error"]["do"] == f"Run: edgekit deploy {tiny_bundle} {board.to} --prefix {where}"


def test_what_came_in_part_is_gone_on_with_and_what_came_damaged_is_sent_again(reached, real_package, far):
    """A transfer that broke off left half of a wheel, and the disk spoilt the half of another."""
    big, spoilt = sorted(real_package.wheels, key=lambda wheel: wheel.bytes)[-2:]
    data = (real_package.path / "wheels" / big.file).read_bytes()
    incoming = far / "broken" / "tiny" / ".store" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / big.sha256).write_bytes(data[: big.bytes // 2])
    (incoming / spoilt.sha256).write_bytes(b"x" * 1000)
    said: list[str] = []
    with SshConnection(Address(reached.to)) as connection:
        sent, kept, size = send(connection, real_package, str(far / "broken" / "tiny"), said.append)
        again = send(connection, real_package, str(far / "broken" / "tiny"), said.append)
    whole = sum(path.stat().st_size for path in real_package.path.rglob("*") if path.is_file())
    different = len(set(packed_files(real_package.path).values()))
    assert (sent, kept) == (different + 1, 0)
    assert again == (0, different, 0)
    assert said == [f"sending {different} of {different} files", f"sending 1 of {different} files"]
    assert size < whole - big.bytes // 2 + spoilt.bytes + 1_000_000
    package = far / "broken" / "tiny" / "pushed" / real_package.release
    assert (package / "wheels" / big.file).read_bytes() == data
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=package, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0


def test_nothing_is_written_beside_the_prefix(pushed, far):
    """The login may own that folder and nothing else."""
    assert [path.name for path in (far / "apps").iterdir()] == ["tiny"]
    assert (far / "apps" / "tiny" / ".store").is_dir()


def test_the_root_folder_is_no_prefix(board, tiny_bundle):
    ran = edgekit(board, "deploy", tiny_bundle, board.to, "--prefix", "/", "--json")
    assert (ran.code, ran.json["error"]["what"]) == (1, "/ itself cannot be the prefix")


def test_an_encrypted_bundle_needs_its_key_there_and_takes_none_along(pushed, far, real_package, tmp_path, monkeypatch):
    """S23: nothing on the board has the key but the file that somebody put there."""
    key, settings = hashlib.sha256(b"a key of this test").digest(), tmp_path / "settings"
    bundle = tiny.bundle(tmp_path, secret=Secret([key]))
    given = (
        "--prefix",
        far / "apps" / "tiny",
        "--wheel",
        ours(real_package),
        "--no-bench",
        *ENGINE,
        "--allow-unsigned",
        "--json",
    )
    mine = tmp_path / "mine.secret"
    mine.write_text(key.hex())
    mine.chmod(0o600)
    with Sshd(tmp_path / "sshd", {"XDG_CONFIG_HOME": str(settings)}) as board:
        monkeypatch.delenv("EDGEKIT_SECRET", raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
        unchecked = edgekit(board, "deploy", bundle, board.to, *given)
        assert (unchecked.code, unchecked.json["error"]["code"]) == (1, "secret-missing")
        assert "--no-check" in unchecked.json["error"]["do"]
        monkeypatch.setenv("EDGEKIT_SECRET", f"file:{mine}")
        without = edgekit(board, "deploy", bundle, board.to, *given)
        assert (without.code, without.json["error"]["code"]) == (1, "shipping")
        assert "/etc/edgekit/secret" in without.json["error"]["do"]
        (settings / "edgekit").mkdir(parents=True)
        mine.rename(settings / "edgekit" / "secret")
        done = edgekit(board, "deploy", bundle, board.to, *given, "--no-check")
    assert done.code == 0, done.err
    assert done.json["selftest"]["ok"] is True
    for path in (path for path in (far / "apps" / "tiny").rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert key not in data
        assert key.hex().encode() not in data


def test_removing_it_there_leaves_nothing(pushed, board, far):
    command = [board.ssh, board.to, f"sh {far}/apps/tiny/uninstall.sh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (far / "apps").exists()


def test_the_probe_reads_what_is_there(reached):
    with SshConnection(Address(reached.to)) as connection:
        found = probe(connection, open_catalogue())
    assert found.facts.machine == "x86_64"
    assert found.facts.glibc == os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    assert found.free_mb > 0
    assert found.root == (os.geteuid() == 0)
    assert any(cluster.count for cluster in found.facts.clusters)


def test_a_board_of_another_kind_is_refused_before_anything_is_copied(board, far, tiny_bundle):
    ran = edgekit(
        board, "deploy", tiny_bundle, board.to, "--profile", "raspberry-pi-4", "--prefix", far / "no", "--json"
    )
    assert ran.code == 1
    assert ran.json["error"]["code"] == "board-refused"
    assert ran.json["error"]["what"] == "its user land is x86_64, and raspberry-pi-4 is aarch64"
    assert not (far / "no").exists()


@pytest.fixture
def seen(reached):
    with SshConnection(Address(reached.to)) as connection:
        return probe(connection, open_catalogue())


REFUSED = {
    "an old Python": ({"pythons": ("3.9",)}, None, "it has Python 3.9, and edgekit's runtime needs 3.10 or later"),
    "no Python": ({"pythons": ()}, None, "it has no Python 3"),
    "another Python than asked for": ({"pythons": ("3.13",)}, "x86-64", "is packed for Python 3.11, and it has 3.13"),
    "no tar": ({"lacks": ("tar",)}, None, "tar not found"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_board_that_cannot_take_it_is_refused_with_the_reason(seen, case):
    changes, asked, reason = REFUSED[case]
    with pytest.raises(BoardRefusedError) as refused:
        profile_for(replace(seen, **changes), load(asked) if asked else None, "pi@board")
    assert reason in refused.value.what
    assert refused.value.where == "pi@board"


def test_what_is_really_there_decides_which_wheels_are_packed(seen):
    newer = replace(seen, pythons=("3.13", "3.11"), facts=replace(seen.facts, glibc="2.41", codename="trixie"))
    system = profile_for(newer, None, "pi@board").os
    assert (system.python, system.glibc, system.debian) == ("3.11", "2.41", "trixie")
    assert profile_for(replace(newer, pythons=("3.13",)), None, "pi@board").os.python == "3.13"


def test_a_host_key_that_is_not_known_is_explained(reached):
    reached.known.write_text("")
    try:
        with pytest.raises(
            SshError, match=r"its host key is not known to this machine. Run once: ssh .*127.0.0.1, and compare"
        ):
            SshConnection(Address(reached.to)).__enter__()
        reached.know_host("other")
        with pytest.raises(SshError, match=r"its host key has changed. .*ssh-keygen -R"):
            SshConnection(Address(reached.to)).__enter__()
    finally:
        reached.know_host()


def test_a_key_that_is_not_accepted_is_explained(reached, tmp_path):
    (tmp_path / "config").write_text((reached.folder / "ssh_config").read_text().replace("/mine", "/other"))
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {reached.ssh.read_text().split()[-4]} -F {tmp_path}/config "$@"\n')
    ssh.chmod(0o755)
    with pytest.raises(SshError, match=r"it accepts none of your keys. Run: ssh-copy-id"):
        SshConnection(Address(reached.to), ssh=str(ssh)).__enter__()


def test_a_key_that_is_not_there_is_refused_and_no_other_taken_in_its_place(reached, tmp_path):
    """ssh itself warns, takes the key of its configuration, and gets in."""
    with SshConnection(Address(reached.to, identity=reached.folder / "mine")) as connection:
        assert connection.check("echo in") == "in\n"
    before = (reached.folder / "connections").read_text()
    for name, why in (("nope", "No such file or directory"), (".", "Is a directory")):
        with pytest.raises(SshError, match=f"the key cannot be read: {why}") as refused:
            SshConnection(Address(reached.to, identity=tmp_path / name)).__enter__()
        assert refused.value.where == f"--identity {tmp_path / name}"
    assert (reached.folder / "connections").read_text() == before


@pytest.mark.parametrize("to", ["-oProxyCommand=touch x", "pi@-oProxyCommand=x", "pi@bo ard", "", "pi@board\nx"])
def test_what_is_no_address_never_reaches_ssh(to):
    with pytest.raises(SshError, match="is not an address"):
        Address(to)


def test_a_port_in_the_address_is_told_where_it_goes():
    with pytest.raises(SshError, match=r"it includes a port\. Write root@host --port 99"):
        Address("root@host:99")
    assert Address("root@fe80::1").host == "fe80::1"


def test_a_line_for_a_person_s_shell_survives_two_shells(tmp_path):
    plain = Address("pi@board", port=2222).by_hand("sh", "/opt/x/uninstall.sh")
    assert plain == "ssh -p 2222 pi@board sh /opt/x/uninstall.sh"
    odd = Address("pi@board").by_hand("sh", "/media/a b'c/uninstall.sh")
    *_, there = shlex.split(odd)
    assert shlex.split(there) == ["sh", "/media/a b'c/uninstall.sh"]


LOGINS = {
    "nologin": ("echo This account is currently not available.; exit 1", "This account is currently not available."),
    "false": ("exit 1", "no output"),
    "true": ("exit 0", "no output"),
}


@pytest.mark.parametrize("case", LOGINS)
def test_a_login_without_a_shell_is_explained(tmp_path, case):
    """The server runs this in place of every command, as it does with such a shell."""
    does, said = LOGINS[case]
    with Sshd(tmp_path / "sshd", forced=does) as board, pytest.raises(SshError) as refused:
        SshConnection(Address(board.to), ssh=str(board.ssh)).__enter__()
    assert refused.value.what == f"this login cannot run commands: {said}"
    assert "copied" not in str(refused.value)


def test_a_board_that_is_not_there_is_one_sentence(reached):
    with pytest.raises(SshError, match="connection refused"):
        SshConnection(Address(reached.to, port=9)).__enter__()


def test_a_command_that_fails_there_says_its_last_line(reached):
    with SshConnection(Address(reached.to)) as connection:
        with pytest.raises(SshError, match="a command on the board failed: no room"):
            connection.check("echo no room >&2; exit 3")
        assert connection.check('cat; printf %s "$1"', "a 'b' $c", given=b"in ") == "in a 'b' $c"
