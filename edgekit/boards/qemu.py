"""Run a board's Python under QEMU's user mode.

    with EmulatedBoard(land, CPUS["cortex-a72"]) as machine:
        done = machine.python(["-c", "import platform; print(platform.machine())"])
        done.out                                                     # "aarch64"

Rules:
- instructions are translated, system calls go to this host's kernel, files are looked up in the board's folder first;
- a machine is a folder of links that the `with` block removes; several of one user land can run at once;
- the environment and the current folder are the machine's own;
- a program that runs too long is ended with all that it started;
- a guest cannot start other programs, so that self-tests stay in process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.boards.emulated_board import EmulationError, EmulatorMissingError, Image, NotEmulatedError, QemuCpu, show
from edgekit.boards.userland import Userland

INSTALL = "sudo apt-get install qemu-user"
SITE = "opt/edgekit"


@dataclass(frozen=True)
class ProgramResult:
    """code: the exit status, negative for a signal, None after the time limit."""

    code: int | None
    out: str
    err: str

    @property
    def ended(self) -> str:
        """In words; empty for status 0."""
        if self.code == 0:
            return ""
        if self.code is None:
            return "did not end in time"
        if self.code < 0:
            names = {one.value: one.name for one in signal.Signals}
            return f"crashed with {names.get(-self.code, f'signal {-self.code}')}"
        return f"ended with status {self.code}"

    @property
    def tail(self) -> str:
        """The last lines of stderr."""
        return "\n".join(self.err.strip().splitlines()[-15:])


def emulator(image: Image) -> Path:
    """The emulator's path. Raises EmulatorMissingError, with the command that installs it."""
    for name in (image.emulator, f"{image.emulator}-static"):
        if found := shutil.which(name):
            return Path(found)
    raise EmulatorMissingError(f"{image.emulator} is not installed", do=f"Run: {INSTALL}")


def emulator_version(image: Image) -> str:
    """Such as `7.2.22`."""
    done = subprocess.run([emulator(image), "--version"], capture_output=True, text=True, check=False, timeout=60)
    words = done.stdout.partition("version ")[2].split()
    return words[0] if words else "unknown"


class EmulatedBoard:
    """One board: a user land, a processor and packages.

    Raises EmulatorMissingError, NotEmulatedError.

    site: a folder of packages, as `install_emulated` makes it; None for the bare system
    cores: how many a program sees
    model: the text of /proc/device-tree/model
    """

    def __init__(
        self, land: Userland, cpu: QemuCpu, *, site: Path | None = None, cores: int = 1, model: str = ""
    ) -> None:
        if cpu.machine != land.image.machine:
            raise NotEmulatedError(f"{cpu.name} does not run a {land.image.machine} system")
        self.land, self.cpu = land, cpu
        self._emulator = emulator(land.image)
        self._site, self._cores, self._model = site, cores, model

    def __enter__(self) -> EmulatedBoard:
        self._folder = tempfile.TemporaryDirectory(prefix="edgekit-board-")
        self.root = Path(self._folder.name)
        show(self.root, self.cpu, cores=self._cores, model=self._model)
        (self.root / "tmp").mkdir()
        for entry in self.land.root.iterdir():
            if not (self.root / entry.name).exists():
                (self.root / entry.name).symlink_to(entry)
        environment = self.root / SITE
        (environment / "bin").mkdir(parents=True)
        (environment / "bin/python3").symlink_to(self.root / "usr/bin/python3")
        lines = f"home = {self.root}/usr/bin\ninclude-system-site-packages = true\nversion = {self.land.image.python}\n"
        (environment / "pyvenv.cfg").write_text(lines)
        if self._site is not None:
            (environment / "lib").symlink_to(self._site)
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def python(
        self,
        arguments: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
        options: Sequence[str] = (),
        said: str = "",
    ) -> ProgramResult:
        """Run Python in the board's virtual environment.

        arguments: absolute paths of this host are readable if the board has no such file
        env: added to the machine's own
        options: QEMU's own
        said: to its standard input
        """
        program = [self.root / SITE / "bin/python3", *arguments]
        command = [self._emulator, "-cpu", self.cpu.name, *options, "-L", self.root, *program]
        home = str(self.root / "tmp")
        environment = {
            "PATH": str(self.root / "usr/bin"),
            "HOME": home,
            "TMPDIR": home,
            "LANG": "C.UTF-8",
            "PYTHONNOUSERSITE": "1",
            "PYTHONSAFEPATH": "1",
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "EDGEKIT_SELFTEST": "in-process",
            "EDGEKIT_STATE_DIR": str(self.root / "tmp/state"),
            "EDGEKIT_TUNE": "off",  # times under emulation mean nothing
            "ORT_DISABLE_TELEMETRY": "1",  # for what runs there without edgekit
            **(env or {}),
        }
        return _run([str(part) for part in command], environment, self.root / "tmp", timeout_s, said)


def _run(command: list[str], env: dict[str, str], folder: Path, timeout_s: float, said: str = "") -> ProgramResult:
    """Run it in its own session, killable as a whole, without core dumps of the emulator."""
    quiet = ["/bin/sh", "-c", 'ulimit -c 0; exec "$@"', "sh"]
    try:
        process = subprocess.Popen(
            [*quiet, *command],
            env=env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise EmulationError(f"the emulator cannot be started: {error}", where=command[0]) from error
    try:
        out, err = process.communicate(said, timeout=timeout_s)
        return ProgramResult(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate()
        return ProgramResult(None, out, err)
    finally:
        if process.poll() is None:  # interrupted
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
