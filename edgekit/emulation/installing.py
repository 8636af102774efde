"""Install a wheelhouse on an emulated board, as the board does it: its own pip, from the shipped files alone.

    site = installed(land, house)           # a folder that `Machine(..., site=site)` runs with

Rules: no index is asked; every file is checked against the wheelhouse's hashes; a wheel for another machine, Python or
glibc is refused by the board's own rules, not by ours; what has no wheel there lies beside it, from Debian's packages.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from edgekit.emulation.board import CPUS
from edgekit.emulation.errors import EmulationError
from edgekit.emulation.kept import cache_root, kept
from edgekit.emulation.machine import SITE, Machine
from edgekit.emulation.userland import Userland
from edgekit.shipping import Wheelhouse

__all__ = ["InstallError", "installed"]

_TIMEOUT_S = 400.0


class InstallError(EmulationError):
    """The board's pip refuses the wheelhouse; `what` has its own words."""

    code = "emulation-install"


def installed(land: Userland, house: Wheelhouse, *, cache_dir: Path | None = None) -> Path:
    """The folder that holds what emulated pip installed: from the cache where the same files were installed before.

    Raises InstallError with pip's words.
    """
    root = cache_root(cache_dir)
    requirements = house.requirements.read_bytes()
    key = hashlib.sha256(b"\0".join([land.root.name.encode(), requirements])).hexdigest()[:16]
    pip = _pip(house, root)
    name = f"installs/{land.image.suite}-{land.image.architecture}-{key}"
    return kept(root, name, lambda draft: _install(land, house, pip, draft))


def _pip(house: Wheelhouse, root: Path) -> Path:
    """The shipped pip, unpacked: what it compiles under the emulator is compiled once, not at every start."""

    def unpack(draft: Path) -> None:
        with zipfile.ZipFile(house.folder / house.pip.file) as archive:
            archive.extractall(draft)

    return kept(root, f"pip/{house.pip.sha256[:16]}", unpack)


def _install(land: Userland, house: Wheelhouse, pip: Path, draft: Path) -> None:
    """The processor does not matter to pip: the plainest of the machine's does it for all."""
    cpu = next(cpu for cpu in CPUS.values() if cpu.machine == land.image.machine)
    # As a package's install.sh asks it: the list is whole, and Debian's packages tell pip too little to be counted on
    # (python3-xxhash says that it is version 0.0.0). Bytecode is made of what is imported, when it is.
    asked = ["install", "--no-index", "--no-deps", "--find-links", str(house.folder.absolute()), "--require-hashes"]
    asked += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    with Machine(land, cpu, site=draft) as machine:
        done = machine.python(
            ["-m", "pip", *asked, "-r", house.requirements.absolute()],
            env={"PYTHONPATH": str(pip), "VIRTUAL_ENV": str(machine.root / SITE), "PIP_ROOT_USER_ACTION": "ignore"},
            timeout_s=_TIMEOUT_S,
        )
    if done.code != 0:
        said = [line for line in done.err.splitlines() if line.startswith("ERROR:")]
        words = "; ".join(line.removeprefix("ERROR: ") for line in said) or done.tail or done.ended
        raise InstallError(
            f"pip on the emulated board refuses it: {words}",
            where=f"{land.image}, under QEMU",
            do="Collect the wheels for this very profile again",
        )
