"""Where a machine's trust is looked for, and what a trust= may name."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import rooted
from refusing import has_code

from edgekit_runtime.bundle.signature import load_public_key
from edgekit_runtime.bundle.trust_finding import find_trust, load_trust, trust_paths
from edgekit_runtime.system.errors import SignatureError, TrustError


@pytest.fixture
def places(tmp_path):
    return places_in(tmp_path)


def places_in(tmp_path):
    """The environment of a user, and a function that puts a root.json of some version at one of the three places."""
    environ = {"HOME": str(tmp_path / "home")}
    where = {
        "named": tmp_path / "named.json",
        "own": tmp_path / "home" / ".config" / "edgekit" / "trust" / "root.json",
        "system": tmp_path / "etc" / "root.json",
    }

    def put(place, version):
        where[place].parent.mkdir(parents=True, exist_ok=True)
        where[place].write_bytes(rooted.document(rooted.signed_part(version=version), "ann"))
        return where[place]

    return environ, put, where["system"]


def test_a_machine_that_was_never_told_has_none(places):
    """S9"""
    environ, _, system = places
    assert find_trust(environ, system=system) is None


def test_the_variable_comes_before_the_user_and_the_user_before_the_machine(places):
    environ, put, system = places
    put("system", 1)
    assert find_trust(environ, system=system).version == 1
    put("own", 2)
    assert find_trust(environ, system=system).version == 2
    environ["EDGEKIT_TRUST"] = str(put("named", 3))
    assert find_trust(environ, system=system).version == 3


def test_a_variable_that_names_nothing_is_an_error_not_a_reason_to_look_on(places, tmp_path):
    """S9"""
    environ, put, system = places
    put("own", 2)
    environ["EDGEKIT_TRUST"] = str(tmp_path / "misspelt.json")
    with pytest.raises(TrustError, match=r"misspelt\.json: EDGEKIT_TRUST names a file that does not exist"):
        find_trust(environ, system=system)
    assert trust_paths(environ, system=system) == (tmp_path / "misspelt.json",)


def test_a_broken_root_is_an_error_not_a_reason_to_look_on(places):
    """S9"""
    environ, put, system = places
    put("system", 1)
    put("own", 2).write_text("{")
    with pytest.raises(TrustError):
        find_trust(environ, system=system)


DAMAGED = {"cut off": b'{"signed": ', "empty": b"", "zeros": bytes(4096), "another's": b"{}"}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_root_in_force_names_the_way_out_and_whose_word_that_is(places, data):
    environ, put, system = places
    path = put("own", 2)
    path.write_bytes(data)
    with pytest.raises(TrustError, match=f"^{path}: the trusted keys of this machine cannot be read") as caught:
        find_trust(environ, system=system)
    assert f"Move it away, then run: edgekit keys update ROOT.json --to {path}" in caught.value.do
    assert "trusted without a check" in caught.value.do


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("what", ["the file", "its folder", "a folder above"])
def test_what_everybody_may_write_decides_nothing(places, what):
    """S11"""
    environ, put, system = places
    path = put("own", 2)
    changed = {"the file": path, "its folder": path.parent, "a folder above": path.parents[2]}[what]
    changed.chmod(changed.stat().st_mode | 0o002)
    with pytest.raises(TrustError, match="other users may write to it", check=has_code("unsafe-path")) as caught:
        find_trust(environ, system=system)
    assert caught.value.do == f"Run: chmod go-w {changed}. Then check that it still lists your keys: edgekit keys list"


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_named_file_that_others_may_replace_decides_nothing_either(files):
    """S11"""
    key, folder = files / "bea.pub.pem", files
    for changed in (key, folder):
        before = changed.stat().st_mode
        changed.chmod(before | 0o002)
        with pytest.raises(TrustError, check=has_code("unsafe-path")) as caught:
            load_trust([key])
        assert caught.value.where == str(changed)
        changed.chmod(before)
    assert load_trust([key]) is not None


def test_a_public_key_may_be_named_in_the_variable(places, tmp_path):
    environ, _, system = places
    (tmp_path / "bea.pub.pem").write_bytes(rooted.public_pem("bea"))
    environ["EDGEKIT_TRUST"] = str(tmp_path / "bea.pub.pem")
    assert find_trust(environ, system=system).bundle.keyids == (rooted.keyid("bea"),)


def test_an_empty_variable_is_one_that_is_not_set(places):
    environ, put, system = places
    put("system", 1)
    assert find_trust({**environ, "EDGEKIT_TRUST": "", "XDG_CONFIG_HOME": ""}, system=system).version == 1


def test_the_folder_of_settings_can_be_moved(places, tmp_path):
    environ, *_ = places
    moved = trust_paths({**environ, "XDG_CONFIG_HOME": str(tmp_path / "settings")})
    assert moved[0] == tmp_path / "settings" / "edgekit" / "trust" / "root.json"


@pytest.fixture
def files(tmp_path):
    for name in ("bea", "ben"):
        (tmp_path / f"{name}.pub.pem").write_bytes(rooted.public_pem(name))
    (tmp_path / "root.json").write_bytes(rooted.document(rooted.signed_part(), "ann"))
    (tmp_path / "bea.pem").write_bytes(rooted.private_pem("bea"))
    return tmp_path


def test_any_one_of_several_public_keys_is_enough(files):
    found = load_trust([files / "bea.pub.pem", str(files / "ben.pub.pem")])
    assert (set(found.bundle.keyids), found.bundle.threshold) == ({rooted.keyid("bea"), rooted.keyid("ben")}, 1)


def test_a_key_that_is_named_twice_is_one(files):
    assert load_trust([files / "bea.pub.pem"] * 2).bundle.keyids == (rooted.keyid("bea"),)


def test_a_root_names_every_trusted_key(files):
    assert load_trust(files / "root.json").version == 1
    with pytest.raises(TrustError, match="lists every trusted key"):
        load_trust([files / "root.json", files / "bea.pub.pem"])


def test_a_store_passes_and_nothing_is_nothing(files):
    store = load_trust(files / "root.json")
    assert load_trust(store) is store
    assert load_trust(()) is None


def test_a_private_key_is_refused_with_the_command_for_its_public_half(files):
    """S11"""
    with pytest.raises(SignatureError, match=r"this is a private key.*openssl pkey -in bea\.pem -pubout"):
        load_trust(files / "bea.pem")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(files):
    os.mkfifo(files / "pipe")
    with pytest.raises(TrustError, match="not a regular file"):
        load_trust(files / "pipe")
    with pytest.raises(SignatureError, match="not a regular file"):
        load_public_key(files / "pipe")


class Closed(type(Path())):
    """A path in a folder that this user may not enter, for tests that run as root, whom no mode keeps out."""

    def exists(self, **options):
        raise PermissionError(13, "Permission denied")


def test_what_may_not_be_looked_at_turns_no_checking_off(places, tmp_path):
    """S9"""
    environ, _, _ = places
    with pytest.raises(TrustError, match="cannot be accessed: Permission denied"):
        find_trust(environ, system=Closed(tmp_path / "root.json"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_service_with_the_home_of_another_asks_the_machine():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to others whenever another pytest starts
        service_asks_the_machine(Path(folder))


def service_asks_the_machine(folder):
    _, put, system = places_in(folder)
    put("own", 7)
    put("system", 1)
    folder.chmod(0o755)
    (folder / "home").chmod(0o700)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from edgekit_runtime.bundle.trust_finding import find_trust\n"
        "def found(): return find_trust({'HOME': sys.argv[1]}, system=Path(sys.argv[2])).version\n"
        "before = found()\n"
        "os.setuid(65534)\n"
        "print(before, found())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "home"), str(system)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "7 1\n", done.stderr
