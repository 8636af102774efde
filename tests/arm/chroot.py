"""A whole emulated system: a change of root in which every ARM program starts by itself, without a right on this host.

    with System(land, CPUS["cortex-a15"], folder, emulators / EMULATORS["armv7l"]) as system:
        done = system.run("sh /package/install.sh", {"/package": packed.path})

A private binfmt_misc in a user namespace (Linux 6.7 and later) tells the kernel what an ARM executable is; the emulator
is static and is opened when it is registered (flag F), so it need not lie inside. Children, shells and pipes are real
there.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from parts import missing

from edgekit.boards.emulated_board import QemuCpu, show
from edgekit.boards.userland import Userland

TOOLS = ("dash", "coreutils", "sed", "grep", "findutils", "dpkg")
"""Debian packages that install.sh needs of a system beside Python; every Debian has them."""
EMULATORS = {"armv7l": "qemu-arm", "aarch64": "qemu-aarch64"}
LIMIT_S = 400
_MAGIC = {  # the first 20 bytes of an executable: class, byte order, version, machine
    "armv7l": r"\x7fELF\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x28\x00",
    "aarch64": r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
}
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_ENTER = r"""
set -e
root=$1 line=$2 script=$3 cpu=$4
shift 4
mount -t proc proc "$root/proc"
if [ -n "$line" ]; then
    mount -t binfmt_misc binfmt_misc "$root/binfmt"
    printf '%s' "$line" >"$root/binfmt/register"
    mount --bind "$root/cpuinfo" "$root/proc/cpuinfo"
fi
mount --rbind /dev "$root/dev"
while [ $# -gt 0 ]; do mount --bind "$1" "$root$2"; shift 2; done
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 QEMU_CPU="$cpu" \
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 /bin/sh -c "$script"
"""
_PROBE = 'mount -t binfmt_misc binfmt_misc "$0" && [ -w "$0/register" ] && mount -t proc proc "$0"'
_UNSHARE = ("unshare", "-Urmnp", "--fork", "--kill-child", "sh", "-c")


class System:
    """A copy of the user land, in `folder`, that may be written to; it is removed with the `with` block.

    No network reaches it. No process outlives `run`. Without a cpu it is this machine's own kind, and not emulated.
    """

    def __init__(self, land: Userland, cpu: QemuCpu | None, folder: Path, emulator: Path | None) -> None:
        self.root, self._cpu, self._emulator = folder, cpu, emulator
        self._machine = land.image.machine
        shutil.copytree(land.root, folder, symlinks=True)
        if cpu is not None:
            shown = folder.with_name(f"{folder.name}-shown")
            show(shown, cpu)
            shutil.copy(shown / "proc/cpuinfo", folder / "cpuinfo")
            shutil.copytree(shown / "sys", folder / "sys", dirs_exist_ok=True)
        for name in ("proc", "dev", "binfmt", "tmp", "root", "srv", "var/lib/dpkg"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / "bin/sh").exists():
            (folder / "bin/sh").symlink_to("dash")
        stanzas = [
            f"Package: {deb.package}\nStatus: install ok installed\nVersion: {deb.version}\n" for deb in land.debs
        ]
        (folder / "var/lib/dpkg/status").write_text("\n".join(stanzas))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root)

    def run(self, script: str, mounts: Mapping[str, Path]) -> subprocess.CompletedProcess[str]:
        """Run lines of shell in it. mounts: place in it -> folder of this host."""
        places: list[str] = []
        for place, here in mounts.items():
            (self.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
            places += [str(here), place]
        line, cpu = "", ""
        if self._cpu is not None:
            line, cpu = f":edgekit:M::{_MAGIC[self._machine]}:{_MASK}:{self._emulator}:F", self._cpu.name
        command = [*_UNSHARE, _ENTER, "sh", str(self.root), line, script, cpu, *places]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, errors="replace")


def check_kernel() -> None:
    """Skip where a user cannot have a binfmt_misc of their own; fail then where CI=true."""
    if shutil.which("unshare") is None:
        missing("unshare", "sudo apt-get install util-linux")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*_UNSHARE, _PROBE, folder], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["unshare failed"])[-1]
        missing(
            f"a private binfmt_misc (Linux {platform.release()}: {why})",
            "a kernel of 6.7 or later, with user namespaces on",
        )


def static_emulators(folder: Path) -> None:
    """Put QEMU's static programs into `folder`: this host's, or those of Debian's package, which is not installed for
    it.
    """
    left = [name for name in EMULATORS.values() if not _linked(name, folder)]
    if not left:
        return
    command = ["apt-get", "download", "-q", "qemu-user-static"]
    if shutil.which("apt-get") is None or subprocess.run(command, cwd=folder, capture_output=True).returncode != 0:
        missing("QEMU's static emulator", "sudo apt-get install qemu-user-static")
    (deb,) = folder.glob("qemu-user-static_*.deb")
    subprocess.run(["dpkg-deb", "--extract", deb, folder / "unpacked"], check=True)
    for name in left:
        (folder / "unpacked/usr/bin" / f"{name}-static").rename(folder / name)
    shutil.rmtree(folder / "unpacked")
    deb.unlink()


def _linked(name: str, folder: Path) -> bool:
    """Debian 12 has it static beside the dynamic one; since 13 there is one, which is static."""
    for found in map(shutil.which, (f"{name}-static", name)):
        if found is not None and b"/ld-linux" not in Path(found).read_bytes()[:4096]:
            (folder / name).symlink_to(found)
            return True
    return False
