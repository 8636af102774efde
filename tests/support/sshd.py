"""A real sshd on a loopback port of its own, for this user alone, with keys of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from parts import missing
from ports import free_port

WHERE = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class Sshd:
    """`with Sshd(folder) as board:` and then `board.to` is an address that `board.ssh`, an ssh for these tests, knows.

    environment: what a login there has in its environment. forced: what is run there in place of every command.
    """

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, forced: str = "") -> None:
        self.folder, self.port = folder, free_port()
        self.user = getpass.getuser()
        self.to = f"{self.user}@127.0.0.1"
        self._binary = shutil.which("sshd", path=WHERE)
        client = shutil.which("ssh")
        if self._binary is None or client is None:
            missing("sshd", "sudo apt-get install openssh-server openssh-client")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("host", "mine", "other"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, timeout=60)
        (folder / "accepted").write_bytes((folder / "mine.pub").read_bytes())
        self.known = folder / "known_hosts"
        self.know_host()
        given = " ".join(f'{name}="{value}"' for name, value in (environment or {}).items())
        settings = [
            *(f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {folder / 'host'}", "PidFile none"),
            *(f"AuthorizedKeysFile {folder / 'accepted'}", "StrictModes no", "UsePAM no", "PermitRootLogin yes"),
            *("PasswordAuthentication no", "KbdInteractiveAuthentication no", "LogLevel VERBOSE"),
            *([f"SetEnv {given}"] if given else []),
            *([f"ForceCommand {forced}"] if forced else []),
        ]
        (folder / "sshd_config").write_text("\n".join(settings) + "\n")
        config = [
            f"Host *\nUserKnownHostsFile {self.known}\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes",
            f"Port {self.port}\nIdentityFile {folder / 'mine'}\nIdentitiesOnly yes",
        ]
        (folder / "ssh_config").write_text("\n".join(config) + "\n")
        self.ssh = folder / "bin" / "ssh"
        self.ssh.parent.mkdir()
        self.ssh.write_text(f'#!/bin/sh\necho x >>{folder}/connections\nexec {client} -F {folder}/ssh_config "$@"\n')
        self.ssh.chmod(0o755)
        self._log = (folder / "log").open("w")
        self._process: subprocess.Popen[bytes] | None = None

    def know_host(self, key: str = "host") -> None:
        self.known.write_text(f"[127.0.0.1]:{self.port} {(self.folder / f'{key}.pub').read_text()}")

    @property
    def path(self) -> str:
        """A PATH on which `ssh` is the one for these tests."""
        return f"{self.ssh.parent}{os.pathsep}{os.environ['PATH']}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def __enter__(self) -> Sshd:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd gives its rights up in an empty folder of this name
        command = [self._binary, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < until, "sshd does not listen"
                assert self._process.poll() is None, self.log
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20)
            self._process = None
        self._log.close()
