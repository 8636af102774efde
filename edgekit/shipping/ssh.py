"""A board over the system's ssh: one connection, many commands, detection.

    with SshConnection(Address("pi@board")) as connection:
        connection.run("uname -m").out
        board = probe(connection, open_catalogue())
        board.detected.profile.name, board.pythons, board.free_mb

Rules:
- the user's ssh configuration, agent and known hosts decide; ssh never prompts (BatchMode);
- every command shares one connection (ControlMaster), which is closed at the end;
- the probe needs only sh, reads a fixed list of small files and writes nothing;
- answers are untrusted and bounded: what names other files, or has another form, is ignored, because a login's
  start-up files may print anything; a record is read, and printed, within `answered_by`;
- the installed user land, not the profile's image, decides about the wheels; a board that cannot take them is refused
  before a byte is copied.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from edgekit.shipping.folder import board_script
from edgekit.shipping.plan import BoardRefusedError, SshError
from edgekit_profiles import Catalogue, Profile, runtime_python
from edgekit_runtime.system.errors import EdgekitError, shorten

if TYPE_CHECKING:
    from edgekit_profiles.detect import DetectedBoard
    from edgekit_profiles.facts import BoardFacts

_CONNECT_S = 20
_MOST, _LOOK_S = 16 << 20, 0.2
_SSH_FAILED = 255
_REASONS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "If the board was reinstalled: ssh-keygen -R {host}, then ssh {to} once and compare the fingerprint. If not, "
        "another machine may be impersonating it",
    ),
    (
        r"Host key verification failed",
        "its host key is not known to this machine",
        "Run once: ssh{port} {to}, and compare the fingerprint that it shows with the board's (ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub there)",
    ),
    (
        r"Permission denied",
        "it accepts none of your keys",
        "Run: ssh-copy-id{port} {to} (edgekit never prompts for passwords), or name a key with --identity",
    ),
    (
        r"Could not resolve hostname",
        "host not found",
        "Check the spelling and the network",
    ),
    (r"Connection refused", "connection refused", "Is sshd running? Use --port for another port"),
    (r"timed out|No route to host|unreachable", "it does not respond", "Is it switched on, and on this network?"),
)


@dataclass(frozen=True)
class Address:
    """to: `user@host`, or a name of ~/.ssh/config. port, identity: None for ssh's own."""

    to: str
    port: int | None = None
    identity: Path | None = None

    @property
    def host(self) -> str:
        return self.to.rpartition("@")[2]

    def by_hand(self, *command: str) -> str:
        """A shell line that runs the command there."""
        options = [
            *(["-p", str(self.port)] if self.port else []),
            *(["-i", str(self.identity)] if self.identity else []),
        ]
        there = shlex.join(command)
        plain = there == " ".join(command)
        return f"{shlex.join(['ssh', *options, self.to])} {there if plain else shlex.quote(there)}"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.][^\s@]*(@[A-Za-z0-9_.:\[\]-]+)?", self.to) or "@-" in self.to:
            raise SshError(
                f"{self.to!r:.80} is not an address", do="Write user@host, or a host of your ssh configuration"
            )
        if match := re.fullmatch(r"([^:]+):(\d+)", self.to):
            raise SshError(
                f"{self.to!r:.80} is not an address: it includes a port", do=f"Write {match[1]} --port {match[2]}"
            )


@dataclass(frozen=True)
class CommandResult:
    """The exit status and output of a command on the board."""

    code: int
    out: str
    err: str


class SshConnection:
    """One shared connection. Entering it connects, and raises SshError if that fails."""

    def __init__(self, address: Address, *, ssh: str | None = None) -> None:
        self.address = address
        found = ssh or shutil.which("ssh")
        if found is None:
            raise SshError("ssh is not installed", do="Run: sudo apt-get install openssh-client")
        if address.identity is not None:
            try:
                address.identity.expanduser().open("rb").close()
            except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no such user's home; ValueError: a NUL
                raise SshError(
                    f"the key cannot be read: {getattr(error, 'strerror', None) or error}",
                    where=f"--identity {address.identity}",
                    do="Name the file of a private key, or omit --identity for ssh's own choice",
                ) from error
        self._ssh = found
        self._folder = Path()
        self._open = False

    def __enter__(self) -> SshConnection:
        self._folder = Path(tempfile.mkdtemp(prefix="ek-"))  # a socket's path has 104 letters at most
        try:
            # A login may run nothing: nologin, false, or an account for files alone
            done = self.run("echo edgekit", timeout_s=_CONNECT_S + 10)
            if done.code != 0 or "edgekit" not in done.out:
                said = shorten(" ".join((done.out + done.err).split()), 200) or "no output"
                raise self._error(f"this login cannot run commands: {said}", "Use a login with a shell, such as sh")
            self._open = True
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def run(
        self, script: str, *arguments: str, given: bytes | IO[bytes] | None = None, timeout_s: float = 600
    ) -> CommandResult:
        """Run `script` by the board's sh. given: its stdin. Raises SshError if ssh itself fails."""
        command = [*self._command(), "--", self.address.to, shlex.join(["sh", "-c", script, "edgekit", *arguments])]
        stdin = subprocess.PIPE if isinstance(given, bytes) else given or subprocess.DEVNULL
        with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ssh:
            try:
                printed = self._communicate(ssh, given if isinstance(given, bytes) else None, timeout_s)
            except BaseException:
                ssh.kill()
                raise
        out, err = (output.decode("utf-8", "replace") for output in printed)
        if ssh.returncode == _SSH_FAILED:
            raise self._explain(err)
        return CommandResult(ssh.returncode, out, err)

    def _communicate(self, ssh: subprocess.Popen[bytes], given: bytes | None, timeout_s: float) -> tuple[bytes, bytes]:
        """Return its output. Raises SshError beyond _MOST bytes, or after timeout_s."""
        end, ended = time.monotonic() + timeout_s, False
        while not ended:
            try:
                out, err = ssh.communicate(given, timeout=_LOOK_S)
                ended = True
            except subprocess.TimeoutExpired as error:
                out, err, given = error.stdout or b"", error.stderr or b"", None
            if len(out) + len(err) > _MOST:
                raise self._error(f"a command on the board printed more than {_MOST >> 20} MiB", "Is it the board?")
            if not ended and time.monotonic() > end:
                raise self._error(
                    f"a command on the board did not finish within {timeout_s:.0f} s", "Is the board very busy?"
                )
        return out, err

    def check(
        self,
        script: str,
        *arguments: str,
        given: bytes | IO[bytes] | None = None,
        timeout_s: float = 600,
        do: str = "Run it again",
    ) -> str:
        """The output of `run`. Raises SshError with the last line and `do` if the command fails."""
        done = self.run(script, *arguments, given=given, timeout_s=timeout_s)
        if done.code != 0:
            said = [line for line in done.err.splitlines() if line.strip()] or [f"exit code {done.code}"]
            raise self._error(f"a command on the board failed: {said[-1]}", do)
        return done.out

    def _command(self) -> list[str]:
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(_CONNECT_S),
            "ServerAliveInterval": "15",
            "ControlMaster": "auto",
            "ControlPath": str(self._folder / "c"),
            "ControlPersist": "600",
        }
        words = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        words += ["-p", str(self.address.port)] if self.address.port else []
        words += ["-i", str(self.address.identity), "-o", "IdentitiesOnly=yes"] if self.address.identity else []
        return [self._ssh, "-T", *words]

    def _explain(self, said: str) -> SshError:
        port = f" -p {self.address.port}" if self.address.port else ""
        for pattern, what, do in _REASONS:
            if re.search(pattern, said, re.IGNORECASE):
                return self._error(what, do.format(host=self.address.host, to=self.address.to, port=port))
        lines = [line for line in said.splitlines() if line.strip()]
        last = lines[-1].strip() if lines else "no output from ssh"
        if not self._open:
            return self._error(f"cannot connect: {last}", f"Try it by hand: ssh{port} {self.address.to}")
        return self._error(f"the connection was lost: {last}", "What was copied is kept: run it again")

    def _error(self, what: str, do: str) -> SshError:
        return SshError(what, where=self.address.to, do=do)

    def _close(self) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            end: Sequence[str] = [*self._command(), "-O", "exit", "--", self.address.to]
            subprocess.run(end, capture_output=True, timeout=10, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


_FILE = re.compile(
    r"(?:file|head) /((?:proc/(?:device-tree/(?:model|compatible)|cpuinfo|meminfo)|etc/os-release|bin/sh"
    r"|usr/bin/python3\.[0-9]{1,2}|sys/devices/system/cpu/(?:online|cpufreq/policy[0-9]{1,4}/(?:scaling_max_freq"
    r"|cpuinfo_max_freq|related_cpus|scaling_governor)))) ((?:[0-9a-f]{2}){0,65536})"
)
_WORDS = {
    "python": re.compile(r"3\.[0-9]{1,2}"),
    "libc": re.compile(r"glibc [0-9]{1,3}\.[0-9]{1,3}"),
    "uid": re.compile(r"[0-9]{1,10}"),
    "home": re.compile(r"/[^\x00-\x1f\x7f]{0,1000}"),
    "free_kb": re.compile(r"[0-9]{1,15}"),
    "lacks": re.compile(r"sha256sum|tar|readlink"),
}


def probe_files(out: str) -> dict[str, bytes]:
    """Path without its first slash -> content, of the files that the probe read."""
    found = filter(None, map(_FILE.fullmatch, out.split("\n")))
    return {match[1]: bytes.fromhex(match[2]) for match in found}


def probe_words(out: str) -> dict[str, list[str]]:
    """The probe's other answers by `python`, `libc`, `uid` and so on, each in order."""
    said = [line.partition(" ") for line in out.split("\n")]
    return {
        name: [text for word, _, text in said if word == name and form.fullmatch(text)] for name, form in _WORDS.items()
    }


@contextlib.contextmanager
def answered_by(where: str) -> Iterator[None]:
    """Turn errors of work on a board's record into SshError."""
    try:
        yield
    except EdgekitError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SshError(
            "the board sent an unexpected record",
            where=where,
            do="Its edgekit may be another version: run edgekit deploy again",
        ) from error


@dataclass(frozen=True)
class RemoteBoard:
    """detected: as `edgekit profiles detect` there
    pythons: every CPython, such as `3.11`
    free_mb: where the package would be installed
    home: where data goes
    root: whether the login is root's
    """

    detected: DetectedBoard
    facts: BoardFacts
    pythons: tuple[str, ...]
    free_mb: float
    home: str
    root: bool
    lacks: tuple[str, ...]


def probe(connection: SshConnection, catalogue: Catalogue, folder: str = "") -> RemoteBoard:
    """folder: of the package, to measure its free space. Raises SshError."""
    from edgekit_profiles.detect import detect
    from edgekit_profiles.facts import read_facts

    out = connection.check(board_script("probe"), *([folder] if folder else []))
    said = probe_words(out)
    with tempfile.TemporaryDirectory(prefix="edgekit-board-") as copied:
        for name, data in probe_files(out).items():
            place = Path(copied, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        facts = read_facts(Path(copied))
    pythons, libc = tuple(dict.fromkeys(said["python"])), [text.removeprefix("glibc ") for text in said["libc"]]
    facts = replace(facts, glibc=(libc or [facts.glibc])[-1], python=(pythons or (facts.python,))[0])
    return RemoteBoard(
        detect(facts, catalogue),
        facts,
        pythons,
        int((said["free_kb"] or ["0"])[-1]) / 1024,
        (said["home"] or [""])[-1],
        said["uid"][-1:] == ["0"],
        tuple(said["lacks"]),
    )


def profile_for(board: RemoteBoard, asked: Profile | None, where: str) -> Profile:
    """The profile to pack for: the named or the detected one, with the real user land.

    Raises BoardRefusedError without a profile, for another machine, no usable Python, or an older glibc.
    """
    facts = board.facts
    if board.lacks:
        raise _board_refused(where, f"{', '.join(board.lacks)} not found", "Install what is missing (coreutils, tar)")
    profile = asked or board.detected.profile
    if profile is None:
        raise _board_refused(where, board.detected.why, "Name the board with --profile, or write your own profile")
    if facts.machine and facts.machine != profile.arch:
        what = f"its user land is {facts.machine}, and {profile.name} is {profile.arch}"
        raise _board_refused(where, what, "Omit --profile to use what the board reports")
    wanted = ".".join(profile.os.python.split(".")[:2])
    if asked is not None and wanted not in board.pythons:
        have = ", ".join(board.pythons) or "no Python 3"
        what = f"{profile.name} is packed for Python {wanted}, and it has {have}"
        raise _board_refused(where, what, "Omit --profile to use what the board reports")
    python = (
        wanted if wanted in board.pythons else next(iter(sorted(board.pythons, key=_version_key, reverse=True)), "")
    )
    lowest = runtime_python()
    if not python or _version_key(python) < _version_key(lowest):
        what = (
            f"it has {f'Python {python}' if python else 'no Python 3'}, and edgekit's runtime needs {lowest} or later"
        )
        raise _board_refused(
            where, what, "Install a newer system image: Debian 12 or Raspberry Pi OS bookworm at least"
        )
    if asked is not None and facts.glibc and _version_key(facts.glibc) < _version_key(profile.os.glibc):
        what = f"{profile.name} is packed for glibc {profile.os.glibc}, and it has {facts.glibc}"
        raise _board_refused(where, what, "Omit --profile to use what the board reports")
    system = replace(profile.os, python=python, glibc=facts.glibc or profile.os.glibc, debian=facts.codename)
    return profile if asked is not None else replace(profile, os=system)


def _board_refused(where: str, what: str, do: str) -> BoardRefusedError:
    return BoardRefusedError(what, where=where, do=do)


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
