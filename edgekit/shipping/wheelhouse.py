"""What a board installs, as files with hashes: edgekit, the engine, their dependencies.

    house = collect(load("raspberry-pi-4"), "litert", Path("usb/wheels"))
    [wheel.file for wheel in house.wheels], house.debian, house.requirements

Rules:
- exact versions for the board's Python, glibc and machine; wheels only, sorted;
- on 32-bit ARM compiled packages come from the image's Debian release if it has them, so that compiled libraries of
  different origin never meet; Debian's version must satisfy every wheel;
- pip's own wheel is included: a board needs only Python to install from the folder;
- edgekit's own wheel is built of a source tree, or put together of the installed files without network or tools; the
  same input gives the same bytes.
"""

from __future__ import annotations

import base64
import contextlib
import email.parser
import errno
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from edgekit.shipping.plan import NoWheelError, ShippingError
from edgekit.shipping.wheels import LockedDistribution, WheelTarget, download, resolve, sha256_of, uv_binary
from edgekit_profiles import Profile
from edgekit_profiles.wheels import DebianPackage, debian_packages, wheels
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.system.errors import MissingExtraError
from edgekit_runtime.system.strict_json import load_json


def image_packages(profile: Profile) -> dict[str, DebianPackage]:
    """Distribution -> Debian's package on this image; empty for machines that have wheels."""
    if profile.arch != "armv7l" or not profile.os.debian:
        return {}
    engines = [
        DebianPackage(ENGINES[row.engine].distribution, row.package, row.version)
        for row in wheels()
        if row.package and row.debian == profile.os.debian and profile.arch in row.arch
    ]
    return {one.distribution: one for one in [*engines, *debian_packages(profile)]}


DISTRIBUTION = "edgekit-deploy"
_OF_THIS_INSTALL = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_ROOM = 8 << 20  # for a wheel of one megabyte and what it is made of
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can name


def own_wheel(folder: Path) -> Path:
    """Write the wheel into `folder`, which is made. Raises ShippingError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    direct = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    value = load_json(direct) if direct else {}
    if not value.get("dir_info", {}).get("editable"):
        return _repack_installed(folder)
    tree = Path(url2pathname(urlsplit(value["url"]).path))
    with tempfile.TemporaryDirectory(prefix="edgekit-ship-", dir=folder) as made:
        command = [str(uv_binary()), "build", "--quiet", "--wheel", "--out-dir", made, str(tree)]
        if importlib.util.find_spec("hatchling") is not None:
            command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", made]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300, check=False)
        wheels = sorted(Path(made).glob("edgekit_deploy-*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[-1].replace(folder / wheels[-1].name)
        if shutil.disk_usage(folder).free < _ROOM:  # of which the builder says nothing
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
        why = " ".join(lines[-3:]) or "no output"
        raise ShippingError(
            f"building edgekit's own wheel failed: {why}", where=str(tree), do="Run: pip install 'hatchling>=1.25'"
        )


def _repack_installed(folder: Path) -> Path:
    """The wheel put together again from the installed files."""
    distribution = importlib.metadata.distribution(DISTRIBUTION)
    info = f"edgekit_deploy-{distribution.version}.dist-info"
    content = {}
    for file in distribution.files or ():
        name = file.as_posix()
        own = name not in [f"{info}/{one}" for one in _OF_THIS_INSTALL]
        if own and not name.startswith("..") and file.suffix != ".pyc":
            content[name] = Path(str(file.locate())).read_bytes()
    if not any(name.startswith("edgekit_runtime/") for name in content):
        raise ShippingError("the installed edgekit has no file list", do="Install edgekit-deploy again, from its wheel")
    record = f"{info}/RECORD"
    lines = []
    for name, data in sorted(content.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    content[record] = "".join(f"{line}\n" for line in [*lines, f"{record},,"]).encode()
    wheel = folder / f"edgekit_deploy-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(content, key=lambda name: (".dist-info/" in name, name)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content[name])
    return wheel


REQUIREMENTS = "requirements.txt"
_PIP = "pip"
_MAIN = {"extra": ""}


@dataclass(frozen=True)
class WheelFile:
    """name, version: of the distribution. file: its name in the wheelhouse. sha256: in hex."""

    name: str
    version: str
    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Wheelhouse:
    """folder: with every wheel, and `requirements.txt` with the hash of each but pip's
    engine_version: on the board; Debian's if the engine is a Debian package
    wheels: sorted by name, with pip's
    debian: packages that the board's system must have, sorted
    """

    folder: Path
    target: WheelTarget
    engine: str
    engine_version: str
    wheels: tuple[WheelFile, ...]
    debian: tuple[str, ...]

    @property
    def requirements(self) -> Path:
        return self.folder / REQUIREMENTS

    @property
    def pip(self) -> WheelFile:
        return next(wheel for wheel in self.wheels if wheel.name == _PIP)


def collect(
    profile: Profile, engine: str, dest: Path, *, wheel: Path | None = None, extras: Sequence[str] = ("image",)
) -> Wheelhouse:
    """Fill `dest` with what a bundle for `engine` needs on that board, and remove other wheels.

    wheel: edgekit's own, None to build it
    extras: of edgekit, in addition to the engine's

    Raises NoWheelError, WheelDownloadError, MissingExtraError, ShippingError.
    """
    try:
        import packaging.tags  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("ship", "resolving a board's wheels") from error
    target = WheelTarget.of(profile)
    dest.mkdir(parents=True, exist_ok=True)
    ours = _place_own_wheel(dest, wheel)
    wanted = _requirements(ours, target, engine, [ENGINES[engine].extra, *extras], profile.pins.get(engine))
    files, from_debian = _download_closure(target, wanted, image_packages(profile), dest)
    _check_against_debian(target, [ours, *files], from_debian)
    wheels = tuple(sorted((_describe(path) for path in (ours, *files)), key=lambda one: one.name))
    needed = {one.file for one in wheels}
    for path in dest.glob("*.whl"):
        if path.name not in needed:
            path.unlink()
    distribution = ENGINES[engine].distribution
    versions = {one.name: one.version for one in wheels} | {name: one.version for name, one in from_debian.items()}
    version = versions.get(distribution)
    if version is None:
        what = f"{distribution} has no wheel for {target}"
        raise NoWheelError(what, where=target.profile, do="Use another engine")
    debian = tuple(sorted(one.package for one in from_debian.values()))
    house = Wheelhouse(dest, target, engine, version, wheels, debian)
    lines = [f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in wheels if one.name != _PIP]
    house.requirements.write_text("".join(lines), encoding="utf-8")
    return house


def metadata_of(wheel: Path) -> Any:
    """The METADATA of a wheel, an email.message.Message."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1
        )
        return email.parser.BytesParser().parsebytes(archive.read(name))


def _place_own_wheel(dest: Path, wheel: Path | None) -> Path:
    if wheel is None:
        for old in dest.glob("edgekit_deploy-*.whl"):
            old.unlink()
        return own_wheel(dest)
    if not wheel.is_file() or not zipfile.is_zipfile(wheel):
        raise ShippingError("not a wheel", where=str(wheel), do="Name a built edgekit_deploy-*.whl")
    place = dest / wheel.name
    with contextlib.suppress(shutil.SameFileError):
        shutil.copyfile(wheel, place)
    return place


def _requirements(ours: Path, target: WheelTarget, engine: str, extras: Sequence[str], pin: str | None) -> list[str]:
    """What edgekit and these extras require on the board, the engine's pin, and pip."""
    from packaging.requirements import Requirement

    environments = [target.markers() | {"extra": extra} for extra in ("", *extras)]
    needs = [Requirement(text) for text in metadata_of(ours).get_all("Requires-Dist", [])]
    wanted = [one for one in needs if one.marker is None or any(one.marker.evaluate(e) for e in environments)]
    lines = []
    for one in wanted:
        if one.name != DISTRIBUTION:
            extra = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
            lines.append(f"{one.name}{extra}{one.specifier}")
    distribution = ENGINES[engine].distribution
    if not any(one.name == distribution for one in wanted):
        lines.append(distribution)  # left out of the extra without a wheel: the resolution gives the reason
    return [*lines, *([f"{distribution}=={pin}"] if pin else []), _PIP]


def _resolve_closure(
    target: WheelTarget, wanted: list[str], known: dict[str, DebianPackage]
) -> tuple[tuple[LockedDistribution, ...], dict[str, DebianPackage]]:
    """Wheels for all of it, and Debian's packages, of which every step may add more."""
    from packaging.requirements import Requirement

    from_debian: dict[str, DebianPackage] = {}
    while True:
        wheels_for = [line for line in wanted if Requirement(line).name not in from_debian]
        locked = resolve(target, wheels_for, tuple(from_debian))
        more = {one.name: known[one.name] for one in locked if one.name in known and not one.pure}
        if not more:
            break
        from_debian |= more
    for one in locked:
        if not one.file:
            raise NoWheelError(
                f"{one.name} {one.version} has no wheel for {target}, and no Debian package that edgekit knows of",
                where=target.profile,
                do="Use another engine (--engine), or a 64-bit system image",
            )
    return locked, from_debian


def _download_closure(
    target: WheelTarget, wanted: list[str], known: dict[str, DebianPackage], dest: Path
) -> tuple[list[Path], dict[str, DebianPackage]]:
    """The closure's wheels, without versions that the board's pip refuses.

    uv ignores the upper bound of Requires-Python.
    """
    from packaging.specifiers import SpecifierSet

    def takes(wheel: Path) -> bool:
        return SpecifierSet(metadata_of(wheel).get("Requires-Python", "")).contains(f"{target.python}.0")

    while True:
        locked, from_debian = _resolve_closure(target, wanted, known)
        files = download(locked, target, dest)
        refused = [f"{one.name}!={one.version}" for one in map(_describe, files) if not takes(dest / one.file)]
        if not refused:
            return files, from_debian
        wanted = [*wanted, *refused]


def _check_against_debian(target: WheelTarget, wheels: list[Path], from_debian: dict[str, DebianPackage]) -> None:
    """Refuse Debian's versions that a wheel does not accept."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for wheel in wheels:
        for text in metadata_of(wheel).get_all("Requires-Dist", []):
            need = Requirement(text)
            have = from_debian.get(canonicalize_name(need.name))
            applies = need.marker is None or need.marker.evaluate(target.markers() | _MAIN)
            if have is not None and applies and not need.specifier.contains(have.version):
                raise NoWheelError(
                    f"{wheel.name} needs {need.name}{need.specifier}, and Debian's {have.package} is {have.version}",
                    where=target.profile,
                    do="Use a 64-bit system image, which has wheels of it",
                )


def _describe(path: Path) -> WheelFile:
    from packaging.utils import parse_wheel_filename

    name, version, _, _ = parse_wheel_filename(path.name)
    return WheelFile(str(name), str(version), path.name, sha256_of(path), path.stat().st_size)
