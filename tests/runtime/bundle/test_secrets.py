"""Where a key may come from, what each trouble is called, and that no message and no process tells it."""

from __future__ import annotations

import base64
import os
import pickle
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples
from refusing import has_code

from edgekit_runtime.bundle.secrets import Secret, find_secret, load_secret, opened_with, parse_source
from edgekit_runtime.system import children
from edgekit_runtime.system.errors import SecretError

KEY = bytes(range(100, 132))
OTHER = bytes(range(200, 232))
NEXT = bytes(range(160, 192))
NAME = "CAMERA_KEY"

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and signals are POSIX's")


@pytest.fixture
def key_file(tmp_path: Path):
    def write(content: bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "key"
        path.write_bytes(content)
        path.chmod(mode)
        return path

    return write


@pytest.mark.parametrize(
    "content",
    [
        KEY,
        KEY.hex().encode(),
        KEY.hex().upper().encode() + b"\r\n",
        base64.b64encode(KEY),
        base64.urlsafe_b64encode(KEY).rstrip(b"=") + b"\n",
        b"# of the cameras at the gate\n\n  " + KEY.hex().encode() + b"  \n",
    ],
    ids=["as it is", "hex", "HEX and a line's end", "base64", "base64 for URLs", "with a remark"],
)
def test_a_key_is_read_in_every_spelling_that_tools_print(content: bytes, key_file):
    assert load_secret(f"file:{key_file(content)}").key() == KEY


def test_a_path_alone_is_a_file(key_file, monkeypatch: pytest.MonkeyPatch):
    path = key_file(KEY)
    monkeypatch.setenv("HOME", str(path.parent))
    assert load_secret(str(path)).key() == KEY
    assert load_secret("file:~/key").key() == KEY


def test_a_variable_and_a_command_give_a_key(monkeypatch: pytest.MonkeyPatch, key_file):
    monkeypatch.setenv(NAME, KEY.hex())
    assert load_secret(f"env:{NAME}").key() == KEY
    assert load_secret(f"cmd:cat '{key_file(KEY)}'").key() == KEY


def test_a_command_is_no_line_of_a_shell(tmp_path: Path):
    with pytest.raises(SecretError, match="base64", check=has_code("secret-format")):
        load_secret(f"cmd:echo a; touch {tmp_path}/made")
    assert not (tmp_path / "made").exists()


def test_the_first_key_encrypts_and_all_of_them_open(key_file):
    secret = load_secret(str(key_file(f"{NEXT.hex()}\n{KEY.hex()}\n".encode())))
    assert secret.key() == NEXT
    assert secret.key(Secret([KEY]).id) == KEY
    assert secret.only(Secret([KEY]).id).to_pipe() == [KEY.hex()]


def lines(count: int) -> bytes:
    return b"".join(os.urandom(32).hex().encode() + b"\n" for _ in range(count))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "contains no key"),
        (b"# nothing but a remark\n", "contains no key"),
        (KEY[:16].hex().encode(), "128 bits; a key has 256"),
        (KEY + b"!", "33 bytes"),
        (os.urandom(64), "64 bytes that are not text"),
        (b"correct horse battery staple", "neither hex digits nor base64"),
        (b"this one is of thirty-two bytes.", "neither hex digits nor base64"),
        (b"this-one-is-of-thirty-two-bytes_", "192 bits"),
        (bytes(32).hex().encode(), "not random"),
        (b"abcdefghijklmnopqrstuvwxyz012345".hex().encode(), "not random"),
        (b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEI\n", "PEM"),
        (KEY.hex().encode() + b"\n" + b"xyz", "line 2"),
        (lines(17), "17 keys"),
        (bytes(20_000), "more than 16,384 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_key_is_refused_in_words_that_do_not_repeat_it(content: bytes, what: str, key_file):
    with pytest.raises(SecretError, match=what, check=has_code("secret-format")) as caught:
        load_secret(str(key_file(content)))
    assert caught.value.code == "secret-format"
    for told in (content.decode("latin-1").strip(), KEY.hex()):
        assert not told or told not in f"{caught.value} {caught.value.as_json()}"


@pytest.mark.parametrize("prefix", ["", "file:", "env:", "cmd:"])
@pytest.mark.parametrize("key", [KEY.hex(), base64.b64encode(bytes(range(31)) + b"\0").decode(), KEY.hex().upper()])
def test_a_key_where_its_place_is_asked_for_is_refused_and_not_repeated(prefix: str, key: str):
    with pytest.raises(SecretError, match="a key, not its source", check=has_code("secret-format")) as caught:
        parse_source(prefix + key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "source", ["", "file:", "env:", "cmd:", "cmd: ", "env:A B", "env:1A", "cmd:cat 'x", "file:a\0b"]
)
def test_what_names_no_place_is_refused(source: str):
    with pytest.raises(SecretError, check=has_code("secret-format")):
        parse_source(source)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("file:{folder}/absent", "No such file"),
        ("file:{folder}", "not a regular file"),
        ("file:{folder}/pipe", "not a regular file"),
        ("file:/dev/zero", "not a regular file"),
        ("file:~nobody-of-this-name/key", "No such file"),
        ("env:NOT_SET_ANYWHERE", "variable is not set"),
        ("cmd:no-such-program-here", "cannot be run: No such file"),
        ("cmd:false", r"failed \(exit code 1\)"),
        ("cmd:sh -c 'kill -9 $$'", r"failed \(exit code -9\)"),
        ("cmd:sh -c 'echo {key}; exit 3'", r"failed \(exit code 3\)"),
    ],
)
@posix
def test_where_there_is_no_key_one_error_says_so(source: str, what: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SecretError, match=what, check=has_code("secret-unreadable")) as caught:
        load_secret(source.format(folder=tmp_path, key=KEY.hex()))
    assert caught.value.code == "secret-unreadable"
    assert KEY.hex() not in str(caught.value)


def test_an_empty_variable_is_told_from_an_absent_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(NAME, "")
    with pytest.raises(SecretError, match="the variable is empty", check=has_code("secret-unreadable")):
        load_secret(f"env:{NAME}")


@posix
def test_a_command_that_hangs_is_ended():
    with pytest.raises(SecretError, match=r"did not end within 0\.2 s", check=has_code("secret-unreadable")):
        load_secret("cmd:sleep 600", limit_s=0.2)


@posix
def test_a_command_whose_child_keeps_the_pipe_open_is_not_waited_for():
    with pytest.raises(SecretError, match="did not end", check=has_code("secret-unreadable")):
        load_secret("cmd:sh -c 'sleep 3 & exit 0'", limit_s=0.2)


@posix
def test_a_command_that_prints_without_end_is_ended():
    with pytest.raises(SecretError, match="more than", check=has_code("secret-format")):
        load_secret("cmd:yes")


@posix
def test_a_command_is_told_nothing_on_its_standard_input():
    with pytest.raises(SecretError, match="contains no key", check=has_code("secret-format")):
        load_secret("cmd:cat", limit_s=20)


def test_only_a_commands_program_is_ever_repeated():
    with pytest.raises(SecretError, check=has_code("secret-unreadable")) as caught:
        load_secret("cmd:false --token=hunter2")
    assert caught.value.where == "cmd:false"
    assert "hunter2" not in str(caught.value)


@posix
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o777])
def test_a_file_that_everybody_may_read_holds_no_secret(mode: int, key_file):
    """S23"""
    path = key_file(KEY, mode)
    with pytest.raises(
        SecretError, match=rf"every user .* \(mode {mode:04o}\).*chmod 600 {path}", check=has_code("secret-unreadable")
    ):
        load_secret(str(path))


@posix
def test_a_file_of_a_group_is_good_enough(key_file):
    path = key_file(KEY, 0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert load_secret(str(path)).key() == KEY


def test_who_names_no_place_gets_the_first_there_is(tmp_path: Path, key_file):
    named, user, system = (tmp_path / name for name in ("named", "user", "system"))
    for place, key in ((named, KEY), (user / "edgekit" / "secret", NEXT), (system / "secret", OTHER)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(key.hex().encode())
        place.chmod(0o600)
    all_of_them = {"EDGEKIT_SECRET": f"file:{named}", "XDG_CONFIG_HOME": str(user)}

    def found(environ: dict[str, str], folder: Path = system) -> bytes | None:
        secret = find_secret(environ, system=folder)
        return None if secret is None else secret.key()

    assert found(all_of_them) == KEY
    assert found({"XDG_CONFIG_HOME": str(user)}) == NEXT
    assert found({"HOME": str(tmp_path)}) == OTHER
    assert found({}) == OTHER
    assert found({}, tmp_path / "nowhere") is None
    (user / "edgekit").rename(tmp_path / ".config")
    (tmp_path / ".config" / "secret").rename(tmp_path / "kept")
    (tmp_path / ".config" / "edgekit").mkdir()
    (tmp_path / "kept").rename(tmp_path / ".config" / "edgekit" / "secret")
    assert found({"HOME": str(tmp_path)}) == NEXT


def test_a_key_in_the_variable_that_names_its_place_is_refused():
    with pytest.raises(SecretError, match="a key, not its source", check=has_code("secret-format")):
        find_secret({"EDGEKIT_SECRET": KEY.hex()})


def test_a_place_that_exists_and_cannot_be_used_is_not_passed_over(tmp_path: Path):
    (tmp_path / "secret").symlink_to(tmp_path / "gone")
    with pytest.raises(SecretError, check=has_code("secret-unreadable")):
        find_secret({}, system=tmp_path)


def test_nothing_is_fetched_for_who_gave_nothing():
    assert opened_with(None, Secret([KEY]).id, "net.ekb") is None


@pytest.mark.parametrize("given", [KEY, Secret([NEXT, KEY]), lambda: Secret([KEY])])
def test_a_bundle_gets_the_one_key_that_it_needs(given):
    secret = opened_with(given, Secret([KEY]).id, "net.ekb")
    assert secret is not None
    assert secret.to_pipe() == [KEY.hex()]


def test_another_key_is_named_by_its_id_as_is_the_one_that_is_needed():
    wanted = Secret([KEY]).id
    with pytest.raises(SecretError, check=has_code("secret-wrong")) as caught:
        opened_with(Secret([NEXT, OTHER], "file:/etc/edgekit/secret"), wanted, "net.ekb")
    assert (caught.value.code, caught.value.where) == ("secret-wrong", "net.ekb")
    for name in (wanted[:12], Secret([NEXT]).id[:12], Secret([OTHER]).id[:12], "/etc/edgekit/secret"):
        assert name in caught.value.what


def test_where_nobody_has_a_key_the_message_says_how_to_give_one():
    with pytest.raises(SecretError, match=r"secret='file:PATH'.*EDGEKIT_SECRET", check=has_code("secret-missing")):
        opened_with(lambda: None, Secret([KEY]).id, "net.ekb")


def test_a_secret_is_neither_printed_nor_pickled():
    """S23"""
    secret = Secret([KEY, NEXT], "env:X")
    for text in (repr(secret), str(secret), f"{secret}", repr([secret])):
        assert KEY.hex() not in text
        assert repr(KEY) not in text
        assert secret.id[:12] in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
    assert not hasattr(secret, "__dict__")


def test_no_child_gets_the_variable_that_held_a_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(NAME, KEY.hex())
    monkeypatch.setattr(children, "_withheld", set())
    assert children.environment()[NAME] == KEY.hex()
    load_secret(f"env:{NAME}")
    assert NAME not in children.environment()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and prctl are Linux's")
def test_a_process_that_was_handed_a_key_leaves_no_image_on_a_disk():
    import subprocess

    code = (
        "import json, resource, sys; from edgekit_runtime.bundle.secrets import Secret\nsecret = "
        "Secret.from_pipe(json.load(sys.stdin))\nimport ctypes; print(secret.id, "
        "resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=f'["{KEY.hex()}"]', capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [Secret([KEY]).id, "0", "0"]


@given(content=st.binary(max_size=120) | st.text("0123456789abcdefABC+/=-_# \n", max_size=150).map(str.encode))
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_in_a_file_is_a_key_or_one_error_that_does_not_repeat_it(content: bytes, tmp_path: Path):
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    try:
        secret = load_secret(str(path))
    except SecretError as error:
        if error.code != "secret-format":
            raise
        told = str(error)
        assert "\n" not in told
        assert all(line not in told for line in content.decode("latin-1").split() if len(line) > 12)
    else:
        assert all(len(bytes.fromhex(key)) == 32 for key in secret.to_pipe())
