"""A board over the system's own ssh: one connection, many commands.

Rules:
- the user's ssh configuration, agent and known hosts decide; nothing is asked (BatchMode) and no password is ever handled;
- one connection is opened and shared by every command (ControlMaster), and it is closed at the end, whatever happened;
- a key that was named is the one that is used: ssh itself only warns where there is no such file, and takes another;
- what ssh says when it fails is turned into what to do about it.

    with Connection(Address("pi@board")) as board:
        board.run("uname -m").out
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from edgekit.shipping.errors import SshError
from edgekit_runtime.errors import shortened

__all__ = ["Address", "Connection", "Done"]

_CONNECT_S = 20
_SSH_FAILED = 255
_REASONS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another than the one that this machine knows",
        "If the board was set up again: ssh-keygen -R {host}, then ssh {to} once and compare the fingerprint. If not, "
        "somebody may be answering in its place",
    ),
    (
        r"Host key verification failed",
        "its host key is not known to this machine",
        "Run once: ssh{port} {to}, and compare the fingerprint that it shows with the board's (ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub there)",
    ),
    (
        r"Permission denied",
        "it does not accept any key of yours",
        "Run: ssh-copy-id{port} {to} (passwords are never asked for), or name a key with --identity",
    ),
    (
        r"Could not resolve hostname",
        "there is no machine of that name",
        "Is it spelt as it should be, and on this network?",
    ),
    (r"Connection refused", "nothing answers on that port", "Is sshd running there? Another port is --port"),
    (r"timed out|No route to host|unreachable", "it does not answer", "Is it switched on, and on this network?"),
)


@dataclass(frozen=True)
class Address:
    """to: `user@host`, or a name of ~/.ssh/config. port, identity: None for what the configuration says."""

    to: str
    port: int | None = None
    identity: Path | None = None

    @property
    def host(self) -> str:
        return self.to.rpartition("@")[2]

    def by_hand(self, *command: str) -> str:
        """A line for a person's shell, which runs the command there."""
        options = [
            *(["-p", str(self.port)] if self.port else []),
            *(["-i", str(self.identity)] if self.identity else []),
        ]
        there = shlex.join(command)
        plain = there == " ".join(command)
        return f"{shlex.join(['ssh', *options, self.to])} {there if plain else shlex.quote(there)}"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.][^\s@]*(@[A-Za-z0-9_.:\[\]-]+)?", self.to) or "@-" in self.to:
            raise SshError(f"{self.to!r:.80} is no address", do="Write user@host, or a name of your ssh configuration")
        if told := re.fullmatch(r"([^:]+):(\d+)", self.to):
            raise SshError(f"{self.to!r:.80} is no address: it names a port", do=f"Write {told[1]} --port {told[2]}")


@dataclass(frozen=True)
class Done:
    """What a command on the board came back with."""

    code: int
    out: str
    err: str


class Connection:
    """One shared connection. Entering it connects, and raises SshError where that is not possible."""

    def __init__(self, address: Address, *, ssh: str | None = None) -> None:
        self.address = address
        found = ssh or shutil.which("ssh")
        if found is None:
            raise SshError("there is no ssh on this machine", do="Run: sudo apt-get install openssh-client")
        if address.identity is not None:
            _refuse_no_key(address.identity)
        self._ssh = found
        self._folder = Path()
        self._open = False

    def __enter__(self) -> Connection:
        self._folder = Path(tempfile.mkdtemp(prefix="ek-"))  # a socket's path has 104 letters at most
        try:
            self._check_shell(self.run("echo edgekit", timeout_s=_CONNECT_S + 10))
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
        self, script: str, *arguments: str, given: bytes | IO[bytes] | None = None, timeout_s: float | None = 600
    ) -> Done:
        """`script` by the board's sh, with its arguments. given: its stdin. A failure of ssh itself raises SshError."""
        command = ["sh", "-c", script, "edgekit", *arguments]
        stdin: dict[str, Any] = {"input": given} if isinstance(given, bytes) else {"stdin": given or subprocess.DEVNULL}
        try:
            done: subprocess.CompletedProcess[bytes] = subprocess.run(
                [*self._base(), "--", self.address.to, shlex.join(command)],
                capture_output=True,
                timeout=timeout_s,
                check=False,
                **stdin,
            )
        except subprocess.TimeoutExpired as error:
            raise self._failed(
                f"a command there did not end within {timeout_s:.0f} s", "Is the board very busy?"
            ) from error
        out, err = (told.decode("utf-8", "replace") for told in (done.stdout, done.stderr))
        if done.returncode == _SSH_FAILED:
            raise self._why(err)
        return Done(done.returncode, out, err)

    def check(
        self,
        script: str,
        *arguments: str,
        given: bytes | IO[bytes] | None = None,
        timeout_s: float = 600,
        do: str = "Run it again",
    ) -> str:
        """As `run`; what it printed. A command that fails raises SshError with the last line that it said, and `do`."""
        done = self.run(script, *arguments, given=given, timeout_s=timeout_s)
        if done.code != 0:
            said = [line for line in done.err.splitlines() if line.strip()] or [f"exit code {done.code}"]
            raise self._failed(f"a command there failed: {said[-1]}", do)
        return done.out

    def _check_shell(self, done: Done) -> None:
        """A login may be let in and run nothing: nologin, false, or an account for files alone."""
        if done.code != 0 or "edgekit" not in done.out:
            said = shortened(" ".join((done.out + done.err).split()), 200) or "it said nothing"
            raise self._failed(f"the login there runs no commands: {said}", "Take a login that has a shell, such as sh")

    def _base(self) -> list[str]:
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

    def _why(self, said: str) -> SshError:
        port = f" -p {self.address.port}" if self.address.port else ""
        for pattern, what, do in _REASONS:
            if re.search(pattern, said, re.IGNORECASE):
                return self._failed(what, do.format(host=self.address.host, to=self.address.to, port=port))
        lines = [line for line in said.splitlines() if line.strip()]
        last = lines[-1].strip() if lines else "ssh said nothing"
        if not self._open:
            return self._failed(f"there is no connection: {last}", f"Try it by hand: ssh{port} {self.address.to}")
        return self._failed(f"the connection was lost: {last}", "What was copied is kept: run it again")

    def _failed(self, what: str, do: str) -> SshError:
        return SshError(what, where=self.address.to, do=do)

    def _close(self) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            end: Sequence[str] = [*self._base(), "-O", "exit", "--", self.address.to]
            subprocess.run(end, capture_output=True, timeout=10, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _refuse_no_key(path: Path) -> None:
    """Raises SshError where ssh would find no key there."""
    try:
        with path.expanduser().open("rb"):
            return
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no such user's home; ValueError: a NUL
        why = getattr(error, "strerror", None) or str(error)
    raise SshError(
        f"the key cannot be read: {why}",
        where=f"--identity {path}",
        do="Name the file of a private key, or leave --identity out for ssh's own choice",
    )
