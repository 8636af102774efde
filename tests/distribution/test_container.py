"""The container images' file trees, made without a registry: Debian's packages and the wheel by the Containerfile's own
lines, entered by a change of root. amd64 runs as it is, arm64 under QEMU.

Not tested: what podman or docker make of the file, its user, and its base image.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny
from arm.chroot import EMULATORS, System, check_kernel, static_emulators
from arm.conftest import parts_are_there
from distribution.conftest import ROOT
from once import once

from edgekit.boards.emulated_board import CPUS, Image
from edgekit.boards.userland import userland

FOLDER = ROOT / "container"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
SHELL = ("coreutils", "dash")
"""Every Debian has them."""
VOLUME = "/var/lib/edgekit"
# A network of its own begins with its loopback down. SIGTERM is what `podman stop` sends.
SCRIPT = """
python3 -c "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 1))"
cd {volume}; export {environment}
{start} >/tmp/out 2>&1 & server=$!
for second in $(seq 200); do {healthy} 2>/tmp/why && break; kill -0 $server || break; sleep 1; done
{healthy} && echo "=== healthy" || cat /tmp/why
{ask}
kill -TERM $server; wait $server; echo "=== ended $?"; cat /tmp/out
"""
ASK = (
    "import json, urllib.request as u; print(json.load(u.urlopen('http://127.0.0.1:8000/v2/models/tiny'))['platform'])"
)


@dataclass(frozen=True)
class Stage:
    """What one target of the Containerfile says."""

    packages: tuple[str, ...]
    extras: str
    environment: str
    health: tuple[str, ...]
    start: tuple[str, ...]


def stage(name: str) -> Stage:
    text = (FOLDER / "Containerfile").read_text().replace("\\\n", " ")
    parts = {part.partition("\n")[0].split()[-1]: part for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]}
    base, own = parts["base"], parts[name]
    (installed,) = re.findall(r"--no-install-recommends ([^&]+)&&", base)
    (extras,) = re.findall(r"\*\.whl (\S+) ", parts[f"{name}-packages"])
    (environment,) = re.findall(r"^ENV (.+)$", base, re.MULTILINE)
    (health,), (start,) = (re.findall(rf"^{word}.*?(\[.+\])$", own, re.MULTILINE) for word in ("HEALTH", "ENTRY"))
    return Stage(tuple(installed.split()), extras, environment, tuple(json.loads(health)), tuple(json.loads(start)))


class _Native(Image):
    """Debian on this machine's own kind of processor."""

    architecture, libraries = "amd64", "x86_64-linux-gnu"


def start(
    target: str, architecture: str, arguments: str, request, wheel: Path, uv: Path, folder: Path
) -> tuple[str, str]:
    """What the script printed, and what the kernel and the shell said. The image of a target, started and stopped."""
    said, machine = stage(target), MACHINES[architecture]
    check_kernel()
    native = machine == "x86_64"
    if native and platform.machine() != machine:
        pytest.skip(f"this machine is {platform.machine()}, and only arm64 is emulated")
    with parts_are_there():
        image = _Native("trixie", machine) if native else Image("trixie", machine)
        cache = once(request, "emulation", lambda _: None)
        land = userland(image, tuple(sorted({*said.packages, *SHELL})), cache_dir=cache)
    emulator = None if native else once(request, "qemu-static", static_emulators) / EMULATORS[machine]
    with System(land, None if native else CPUS["cortex-a72"], folder / "root", emulator) as system:
        command = ["sh", FOLDER / "packages.sh", wheel, said.extras, architecture, system.root / "opt/edgekit"]
        subprocess.run(list(map(str, command)), check=True, env={**os.environ, "UV": str(uv)}, timeout=500)
        (system.root / "opt/healthy.py").write_bytes((FOLDER / "healthy.py").read_bytes())
        (system.root / VOLUME.lstrip("/")).mkdir(parents=True)
        before = _files(system.root)
        lines = SCRIPT.format(
            volume=VOLUME,
            environment=said.environment,
            start=f"{shlex.join(said.start)} {arguments}",
            healthy=shlex.join(said.health),
            ask=f"python3 -c {shlex.quote(ASK)}" if target == "host" else "",
        )
        done = system.run(lines, {"/bundles": folder / "bundles"})
        assert _files(system.root) == before, "it writes outside of its volume"
    return done.stdout, done.stderr


def _files(root: Path) -> set[Path]:
    """Those that an image has, without bytecode: the Containerfile compiles it, this test does not."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {
        path for path in found if path.parts[0] not in ("tmp", "proc", "dev", "bundles") and VOLUME[1:] not in str(path)
    }


pytestmark = [pytest.mark.network, pytest.mark.timeout(1200)]
each_architecture = pytest.mark.parametrize("architecture", MACHINES)


@each_architecture
def test_the_host_image_answers_for_a_bundle_says_that_it_is_healthy_and_ends(
    architecture, request, wheel, uv, tmp_path
):
    (tmp_path / "bundles").mkdir()
    tiny.bundle(tmp_path / "bundles")
    arguments = "/bundles/tiny-tflite-int8.ekb --unencrypted --allow-unsigned"
    out, err = start("host", architecture, arguments, request, wheel, uv, tmp_path)
    assert "=== healthy" in out, out + err
    assert "=== ended 0" in out, out + err
    assert "litert_tflite" in out.partition("=== healthy")[2].partition("=== ended")[0], out + err


@each_architecture
def test_the_fleet_image_serves_its_page_behind_a_password_and_ends(architecture, request, wheel, uv, tmp_path):
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles/password").write_text("correct-horse-battery\n")
    (tmp_path / "bundles/password").chmod(0o600)
    arguments = "--embedded-broker --password file:/bundles/password"
    out, err = start("fleet", architecture, arguments, request, wheel, uv, tmp_path)
    assert "=== healthy" in out, out + err
    assert "=== ended 0" in out, out + err


def test_an_architecture_without_an_image_is_refused(tmp_path):
    command = ["sh", str(FOLDER / "packages.sh"), "x.whl", "host", "riscv64", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "amd64 and arm64, not for 'riscv64'" in done.stderr) == (2, True)
