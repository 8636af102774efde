"""A hostile board: what it answers over ssh is data, and never a path, a command or an untyped error."""

from __future__ import annotations

import hashlib
import re
import shlex

import pytest
import tiny
from hypothesis import example, given
from hypothesis import strategies as st
from sshd import Sshd

from edgekit.shipping.plan import SshError
from edgekit.shipping.push import missing_files
from edgekit.shipping.ssh import Address, RemoteBoard, SshConnection, probe, probe_files, probe_words, profile_for
from edgekit_profiles import open_catalogue

pytestmark = pytest.mark.network
ELF = "7f454c4602010100000000000000000003003e00"
GOOD = f"""head /bin/sh {ELF}
head /usr/bin/python3.11 {ELF}
file /etc/os-release {b'PRETTY_NAME="Debian"'.hex()}
file /proc/cpuinfo {b"processor : 0".hex()}
python 3.11
libc glibc 2.36
uid 1000
home /home/pi/.local/share
free_kb 2048000
"""


class HostileBoard:
    """A real sshd whose login answers every command with what the tests put beside it."""

    def __init__(self, server: Sshd) -> None:
        self.server, self.to = server, server.to

    def answers(self, **answers: str | bytes) -> None:
        """probe: to every command but these. digest: to sha256sum. record: to `edgekit bench`."""
        for name, text in answers.items():
            (self.server.folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    def connect(self, probe: str | bytes) -> SshConnection:
        self.answers(probe=probe)
        return SshConnection(Address(self.to), ssh=str(self.server.ssh))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    script = folder / "shell"
    script.write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(folder / 'sshd'))}\n"
        "case $SSH_ORIGINAL_COMMAND in *'echo edgekit'*) echo edgekit ;; *sha256sum*bundle.ekb*) cat digest ;;"
        " *' bench '*) cat record ;; *) cat probe ;; esac\n"
    )
    script.chmod(0o755)
    with Sshd(folder / "sshd", forced=str(script)) as server:
        yield HostileBoard(server)


@pytest.fixture(scope="module")
def asked(hostile):
    """Probes the board, which answers with this text, over a connection that stays."""
    with hostile.connect("") as connection:

        def ask(text: str | bytes) -> RemoteBoard:
            hostile.answers(probe=text)
            return probe(connection, open_catalogue())

        yield ask


def test_an_honest_answer_is_read(asked):
    board = asked(GOOD)
    assert (board.facts.machine, board.facts.glibc, board.pythons) == ("x86_64", "2.36", ("3.11",))
    assert (board.home, board.root, board.free_mb) == ("/home/pi/.local/share", False, 2000.0)


def test_a_board_writes_no_file_on_the_machine_that_asks_it(asked, tmp_path, monkeypatch):
    """S28: it planted a link of its own, and then a file behind it; and named files outside."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    planted = (
        f"link /door {home}\nfile /door/.bash_profile {b'evil'.hex()}\nlink /proc {home}\n"
        f"file /proc/cpuinfo {b'evil'.hex()}\nlink /usr/bin/python3 {home}/python\nfile {home}/.profile 00\n"
        f"file //{home}/x 00\nfile /proc/device-tree/../../../../../..{home}/y 00\n"
    )
    board = asked(planted + GOOD)
    assert list(home.iterdir()) == []
    assert board.facts.machine == "x86_64"


MANY = "9" * 5000
CPUS = "/sys/devices/system/cpu"


def held(path: str, text: str) -> str:
    return f"file {path} {text.encode().hex()}"


ODD = {
    "no hexadecimal": "file /proc/cpuinfo zz",
    "half a byte": "file /proc/cpuinfo 0",
    "a folder in place of a file": "file /proc 00",
    "a file in place of a folder": "file /proc/cpuinfo 00\nfile /proc/cpuinfo/x 00",
    "a long name": f"file /{'x' * 5000} 00",
    "a zero in a name": "file /proc/\0 00",
    "a number of 5,000 digits as room": f"free_kb {MANY}",
    "a number of 5,000 digits as glibc": f"libc glibc 2.{MANY}",
    "a number of 5,000 digits as Python": f"python 3.{MANY}",
    "a Python that is words": "python three",
    "a program of 5,000 digits": f"head /usr/bin/python3.{MANY} {ELF}",
    "a processor of 5,000 digits": held("/proc/cpuinfo", f"processor : {MANY}"),
    "memory of 5,000 digits": held("/proc/meminfo", f"MemTotal: {MANY} kB"),
    "a clock of 5,000 digits": held(f"{CPUS}/cpufreq/policy0/scaling_max_freq", MANY),
    "processors without end": held(f"{CPUS}/online", ",".join(f"{5000 * i}-{5000 * i + 4999}" for i in range(4000))),
    "a core of 5,000 digits": held("/proc/cpuinfo", f"processor : 0\nCPU implementer : {MANY}\nCPU part : {MANY}"),
    "nothing": "",
    "bytes that are no text": "\x80\xff",
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_not_an_answer_is_passed_over(asked, case):
    board = asked(ODD[case] + "\n" + GOOD)
    assert board.home == "/home/pi/.local/share"
    assert profile_for(board, None, "pi@board").os.python == "3.11"


WORDS = st.sampled_from(["file", "head", "link", "python", "libc", "uid", "home", "free_kb", "lacks", "x", ""])
PLACES = st.sampled_from(["/proc/cpuinfo", "/bin/sh", "/proc", "/../x", "/usr/bin/python3.11", "3.9"])
TEXTS = st.text(max_size=20) | st.just("00")
LINES = st.lists(st.builds("{} {} {}".format, WORDS, PLACES | st.text(max_size=9), TEXTS), max_size=5)


@given(LINES)
@example(["file /proc/cpuinfo é"])
def test_no_answer_of_a_probe_is_an_untyped_error_or_another_place(lines):
    text = "\n".join(lines)
    assert all(".." not in name and not name.startswith("/") for name in probe_files(text))
    words = probe_words(text)
    assert all(one.startswith("3.") for one in words["python"])
    assert all(one.startswith("/") for one in words["home"])


def test_an_answer_without_end_is_one_error(asked):
    with pytest.raises(SshError, match="printed more than"):
        asked(b"x" * (17 << 20))


@pytest.fixture
def bench_on(hostile, tmp_path, monkeypatch, in_process):
    """`edgekit bench --on` a board that says that it has this very bundle."""
    monkeypatch.setenv("PATH", hostile.server.path)
    bundle = tiny.bundle(tmp_path)
    hostile.answers(probe="uid 0\n", digest=hashlib.sha256(bundle.read_bytes()).hexdigest())
    return lambda *options: in_process("bench", bundle, "--on", hostile.to, *options)


RECORDS = {
    "nothing in it": "{}",
    "words in place of figures": '{"conditions": {"during": {}}, "load": {}, "n": "many"}',
    "an error without words": '{"error": {}}',
    "nested too deep": "[" * 100_000,
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_of_another_form_is_one_sentence(hostile, bench_on, case):
    hostile.answers(record=RECORDS[case])
    ran = bench_on()
    assert ran.code == 1
    assert hostile.to in ran.err
    assert re.search(r"\[(ssh|shipping)\]$", ran.err.strip()), ran.err


@pytest.mark.parametrize("probe", ["", "uid 1000\nhome nowhere\n"])
def test_a_board_that_has_no_place_for_data_needs_a_prefix(hostile, bench_on, probe):
    hostile.answers(probe=probe)
    ran = bench_on()
    assert ran.code == 1
    assert "Name a folder there with --prefix [shipping]" in ran.err


def test_what_a_board_says_that_it_has_is_never_more_than_there_is(hostile, tmp_path):
    """Its counts are bounded by the file's size: nothing is read from behind the end, or before the start."""
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    name, other = "a" * 64, "b" * 64
    said = f"{name} 99\n{other} 1\nhello\n{name} -3\n{name} {MANY}\n{name}\n"
    with hostile.connect(said) as connection:
        assert missing_files(connection, "/opt/x", {name: file}) == {name: 5}
