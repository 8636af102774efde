"""A board's user land: Debian's Python and libraries for ARM, unpacked in a folder.

    land = userland(Image("bookworm", "aarch64"))            # 5 s the first time, then at once
    land.root / "usr/bin/python3"

Nothing in it is installed: no root, no chroot, no change to the host. Bytecode of what is imported is kept beside it, as
Debian's installation would, or every start would compile the standard library under the emulator.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from edgekit.emulation.errors import UserlandError
from edgekit.emulation.image import Image
from edgekit.emulation.kept import cache_root, kept
from edgekit.emulation.packages import fetch
from edgekit_runtime.bundle.codec import json_text, read_json

__all__ = ["Deb", "Userland", "userland"]

_LAYOUT = 2  # raised when what is unpacked, or how, changes
# Pulled in by a dependency, never needed to run Python.
_LEFT_OUT = re.compile(
    r"ca-certificates|debconf|dpkg|openssl|(lib)?perl[-5].*|perl|readline-common|tar|mailcap|mime-support"
)
_EXCLUDED = ("./usr/share/doc*", "./usr/share/man", "./usr/share/locale", "./usr/share/lintian", "./usr/share/info",
             "./usr/share/bug", "./usr/lib/*/gconv", "./lib/systemd")  # fmt: skip


@dataclass(frozen=True)
class Deb:
    """One unpacked package. sha256: of the .deb, which apt verified against Debian's signed lists."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class _Record:
    """What userland.json keeps."""

    image: str
    packages: tuple[str, ...]
    debs: tuple[Deb, ...]


@dataclass(frozen=True)
class Userland:
    """root: the folder that stands for /. debs: what was unpacked into it."""

    image: Image
    root: Path
    debs: tuple[Deb, ...]

    def version(self, package: str) -> str | None:
        return next((deb.version for deb in self.debs if deb.package == package), None)


def userland(image: Image, packages: Sequence[str] = (), *, cache_dir: Path | None = None) -> Userland:
    """The user land of an image with these Debian packages beside Python, from the cache or made now.

    packages: as Debian names them, e.g. `python3-numpy`. Raises UserlandError, EmulatorMissingError.
    """
    wanted = sorted(set(packages))
    digest = hashlib.sha256(json.dumps([_LAYOUT, wanted]).encode()).hexdigest()[:12]
    name = f"userlands/{image.suite}-{image.architecture}-{digest}"
    root = kept(cache_root(cache_dir), name, lambda draft: _make(image, wanted, draft))
    record = read_json(_Record, (root / "userland.json").read_bytes(), "userland.json")
    return Userland(image, root, record.debs)


def _make(image: Image, packages: Sequence[str], root: Path) -> None:
    version = image.python
    base = (f"python{version}-minimal", f"libpython{version}-stdlib", "libstdc++6", "base-files")
    apt = root / ".apt"
    apt.mkdir()
    debs = [deb for deb in fetch(image, (*base, *packages), apt) if _is_needed(deb.name.split("_")[0], packages)]
    (root / "usr/lib").mkdir(parents=True)
    for name in ("bin", "lib", "sbin"):  # merged /usr, as every Debian system has it
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in debs:
        _unpack(deb, root)
    _finish(image, root)
    record = _Record(str(image), tuple(packages), tuple(map(_described, debs)))
    (root / "userland.json").write_text(json_text(record), encoding="utf-8")
    shutil.rmtree(apt)


def _is_needed(package: str, asked: Sequence[str]) -> bool:
    return package in asked or not _LEFT_OUT.fullmatch(package)


def _unpack(deb: Path, root: Path) -> None:
    excluded = [f"--exclude={pattern}" for pattern in _EXCLUDED]
    command = ["tar", "-x", "-C", str(root), "--keep-directory-symlink", "--no-same-owner", *excluded]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as reading:
        done = subprocess.run(command, stdin=reading.stdout, capture_output=True, text=True, check=False)
    if done.returncode != 0 or reading.returncode != 0:
        lines = done.stderr.strip().splitlines()
        said = next((line for line in lines if "No space left" in line), lines[-1] if lines else "dpkg-deb failed")
        raise UserlandError(
            f"{deb.name} cannot be unpacked: {said}",
            where=str(root),
            do="Make room on that disk, or name another with EDGEKIT_STATE_DIR",
        )


def _finish(image: Image, root: Path) -> None:
    """What the packages' installation scripts would have done."""
    python = root / "usr/bin/python3"
    python.unlink(missing_ok=True)
    python.symlink_to(f"python{image.python}")
    for name in ("blas", "lapack"):
        library = root / "usr/lib" / image.libraries / name / f"lib{name}.so.3"
        if library.exists():
            (library.parents[1] / library.name).symlink_to(f"{name}/{library.name}")
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(b"")  # or the host's own would be read
    (root / "tmp").mkdir(exist_ok=True)


def _described(deb: Path) -> Deb:
    package, version, _ = deb.name.removesuffix(".deb").split("_")
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    return Deb(package, unquote(version), digest)
