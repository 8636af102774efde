"""Wheels for a board: uv resolves exact versions on this machine, pip downloads them.

    target = WheelTarget.of(load("raspberry-pi-4"))
    target.uv_platform, target.debian_arch           # "aarch64-manylinux_2_36", "arm64"
    locked = resolve(target, ["ai-edge-litert>=2.1.3", "pillow"])
    download(locked, target, Path("usb/wheels"))

Rules:
- markers are evaluated with the board's values, by uv, or here for 32-bit ARM, which uv does not know;
- a wheel's tag is compared with the board's glibc, newest first, as pip does there; nothing is compiled;
- the index is uv's own (`UV_DEFAULT_INDEX`, `uv.toml`), regardless of the current directory;
- pip checks each file by the resolution's SHA-256, and keeps whole files in its own cache;
- pip's settings say how the index is reached (proxy, certificate, `~/.netrc`), never which wheel is taken.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.plan import NoWheelError, WheelDownloadError
from edgekit_profiles import Profile
from edgekit_profiles.schema import parse_toml
from edgekit_runtime.system.errors import MissingExtraError, shorten

if TYPE_CHECKING:
    from packaging.tags import Tag

DEBIAN_ARCH = {"aarch64": "arm64", "armv7l": "armhf", "x86_64": "amd64"}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # by glibc's minor version: PEP 600
_FIRST_GLIBC = {"x86_64": 5}  # PEP 600: of the other machines manylinux begins with 2.17
_UV_GLIBC = (17, 28, *range(31, 41))  # the platforms that uv knows, by glibc's minor version


@dataclass(frozen=True)
class WheelTarget:
    """profile: its name, for messages. arch: of `uname -m`. python: "3.11". glibc: "2.36"."""

    profile: str
    arch: str
    python: str
    glibc: str

    @classmethod
    def of(cls, profile: Profile) -> WheelTarget:
        """Raises NoWheelError for a system without Python or glibc."""
        if not (profile.os.python and profile.os.glibc):
            raise NoWheelError(
                f"{profile.os.name} has no glibc, which every wheel for Linux needs",
                where=profile.name,
                do="Ship the artifact inside an app of that system instead",
            )
        return cls(profile.name, profile.arch, ".".join(profile.os.python.split(".")[:2]), profile.os.glibc)

    @property
    def version(self) -> tuple[int, int]:
        major, minor = self.python.split(".")
        return int(major), int(minor)

    @property
    def debian_arch(self) -> str:
        """Debian's name of the machine, or its own."""
        return DEBIAN_ARCH.get(self.arch, self.arch)

    @property
    def uv_platform(self) -> str | None:
        """uv's platform with the newest glibc that is not newer than the board's, or None."""
        if self.arch not in ("aarch64", "x86_64"):
            return None
        fitting = [minor for minor in _UV_GLIBC if minor <= self._glibc_minor]
        return f"{self.arch}-manylinux_2_{fitting[-1]}" if fitting else None

    @property
    def interpreter(self) -> str:
        """Such as cp311."""
        return f"cp{''.join(map(str, self.version))}"

    @property
    def platforms(self) -> list[str]:
        """The platform tags of its glibc and of older ones, newest first."""
        found = []
        for minor in range(self._glibc_minor, _FIRST_GLIBC.get(self.arch, 17) - 1, -1):
            found.append(f"manylinux_2_{minor}_{self.arch}")
            found += [f"{_LEGACY[minor]}_{self.arch}"] if minor in _LEGACY else []
        return [*found, f"linux_{self.arch}"]

    def tags(self) -> list[Tag]:
        """The tags of wheels that install there, best first."""
        from packaging.tags import compatible_tags, cpython_tags

        native = cpython_tags(self.version, abis=[self.interpreter], platforms=self.platforms)
        return [*native, *compatible_tags(self.version, self.interpreter, self.platforms)]

    def markers(self) -> dict[str, str]:
        """The environment that dependencies' markers are evaluated in."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def __str__(self) -> str:
        return f"{self.arch}, CPython {self.python}, glibc {self.glibc}"

    @property
    def _glibc_minor(self) -> int:
        return int(self.glibc.split(".")[1])


_TIMEOUT_S, _DOWNLOAD_S = 300.0, 3600.0
_REACHING = ("PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_PROXY", "PIP_RETRIES")
_UNWRITTEN = re.compile(r"(?i)no space left on device|disk quota exceeded|read-only file system|file too large")
_CHANGED = "DO NOT MATCH THE HASHES"
_OF_THE_CACHE = re.compile(f"{_CHANGED}|incomplete-download")
"""What pip's cache may cause: it keeps wrong bytes, too, and where it cannot be written the network is blamed."""
_CAUSES = (
    r"\[Errno -?\d+\] ([^'\")\n]+)",
    r"(?m)^[×╰]\S* (?!URL: )(.+)",
    r"because of (.+?) for ",
    r"Caused by (.+)\)",
    ".+",
)
"""Patterns of the cause in what pip says, the best first."""
_UNREACHED = re.compile(
    r"(?i)failed to fetch|error sending request|could not connect|dns error|timed out|network|40[13]"
)


@dataclass(frozen=True)
class LockedDistribution:
    """One distribution at one version.

    file: the name of the best wheel for the board, empty if none fits
    url: http(s) or file
    """

    name: str
    version: str
    file: str = ""
    url: str = ""
    sha256: str = ""

    @property
    def pure(self) -> bool:
        """Whether that file runs on any machine."""
        return self.file.endswith("-none-any.whl")


def resolve(
    target: WheelTarget, requirements: Sequence[str], excluded: Sequence[str] = ()
) -> tuple[LockedDistribution, ...]:
    """The whole closure of `requirements` on the board, sorted by name.

    excluded: distributions left out with what only they need

    Raises NoWheelError if nothing satisfies the requirements, WheelDownloadError without the index, MissingExtraError
    without uv.
    """
    from packaging.markers import Marker

    with tempfile.TemporaryDirectory(prefix="edgekit-ship-") as folder:
        left_out = Path(folder) / "excluded.txt"
        left_out.write_text("".join(f"{name}\n" for name in excluded), encoding="utf-8")
        lines = "".join(f"{line}\n" for line in requirements)
        where = ["--python-platform", target.uv_platform] if target.uv_platform else ["--universal"]
        fixed = ["--only-binary", ":all:", "--format", "pylock.toml", "--quiet", "--no-header", "--no-sources"]
        python = ["--python", sys.executable, "--python-version", target.python, "--excludes", str(left_out)]
        command = [str(uv_binary()), "pip", "compile", "-", *where, *fixed, *python]
        lock = parse_toml(_run_uv(target, command, lines, folder))
    order = {tag: rank for rank, tag in enumerate(target.tags())}
    locked = []
    for package in lock.get("packages", []):
        marker = package.get("marker")
        if "wheels" not in package or (marker and not Marker(marker).evaluate(target.markers())):
            continue  # without wheels: a file that was handed over by its path
        locked.append(_pick_wheel(package, order))
    return tuple(sorted(locked, key=lambda one: one.name))


def uv_binary() -> Path:
    """uv of this Python's environment, else of the PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.is_file() else shutil.which("uv")
    if not found:
        raise MissingExtraError("ship", "resolving a board's wheels")
    return Path(found)


def _run_uv(target: WheelTarget, command: list[str], lines: str, folder: str) -> str:
    """uv's output. Raises NoWheelError, or WheelDownloadError without the index."""
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            command, input=lines, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        what = f"uv did not finish within {_TIMEOUT_S:.0f} s"
        raise WheelDownloadError(what, do="The package index may be slow: try again") from error
    if done.returncode == 0:
        return done.stdout
    why = " ".join(re.sub(r"[×│╰├─▶]+", " ", done.stderr).split()).removeprefix("error: ")
    if _UNREACHED.search(why) and "No solution" not in why:
        raise WheelDownloadError(
            f"the package index cannot be reached: {why}",
            do="Connect this machine, or name another index in UV_DEFAULT_INDEX, then run it again",
        )
    raise NoWheelError(
        f"no set of wheels fits {target}: {why}",
        where=target.profile,
        do="Use another engine (--engine), or a system image with another Python",
    )


def _pick_wheel(package: dict[str, Any], order: dict[Tag, int]) -> LockedDistribution:
    from packaging.utils import parse_wheel_filename

    ranked = []
    for file in package["wheels"]:
        name = file.get("name") or file["url"].rpartition("/")[2].partition("#")[0]
        ranks = [order[tag] for tag in parse_wheel_filename(name)[3] if tag in order]
        if ranks:
            url = file.get("url") or Path(file["path"]).absolute().as_uri()
            ranked.append((min(ranks), name, url, file["hashes"]["sha256"]))
    return LockedDistribution(package["name"], package["version"], *(min(ranked)[1:] if ranked else ()))


def download(locked: Sequence[LockedDistribution], target: WheelTarget, folder: Path) -> list[Path]:
    """Their wheels in `folder`, checked by the resolution's hashes.

    Raises WheelDownloadError, OutputError for a disk that is full or cannot be written, MissingExtraError without pip.
    """
    from packaging.version import Version

    if importlib.util.find_spec("pip") is None:
        raise MissingExtraError("ship", "downloading wheels")
    # How to reach the index, and none of pip's choices: those are made
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name in _REACHING
    }
    lines = "".join(f"{one.name} @ {one.url} --hash=sha256:{one.sha256}\n" for one in locked)
    chosen = [f"--platform={one}" for one in target.platforms]
    chosen += [f"--abi={abi}" for abi in (target.interpreter, "abi3", "none")]
    fixed = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--ignore-requires-python", "--no-input"]
    quiet = ["--quiet", "--disable-pip-version-check", "--progress-bar=off"]
    if Version(importlib.metadata.version("pip")) >= Version("25.1"):  # an older one begins the file again
        quiet.append("--resume-retries=5")
    with tempfile.TemporaryDirectory(prefix="edgekit-ship-") as place:
        listed = Path(place, "requirements.txt")
        listed.write_text(lines, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", *fixed, *quiet, *chosen, "--implementation=cp"]
        command += [f"--python-version={target.python}", "--dest", str(folder), "--requirement", str(listed)]
        environment["TMPDIR"] = place  # a pip that is killed leaves nothing behind
        run = functools.partial(
            subprocess.run, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False, env=environment
        )
        try:
            done = run(command)
            if done.returncode and _OF_THE_CACHE.search(done.stderr):
                done = run([*command, "--no-cache-dir"])
        except subprocess.TimeoutExpired as error:
            what = f"the wheels did not arrive within {_DOWNLOAD_S:.0f} s"
            raise WheelDownloadError(what, do="Run it again: whole files are kept") from error
    if done.returncode == 0:
        return [folder / one.file for one in locked]
    why = " ".join(done.stderr.removeprefix("ERROR: ").split())
    if unwritten := _UNWRITTEN.search(why):  # pip begins each file in the temporary folder
        do = f"Make room there and in {tempfile.gettempdir()}, and see that both can be written"
        raise OutputError(f"cannot be written: {unwritten[0]}", where=str(folder), do=do)
    if _CHANGED in why:
        file = next((one.file for one in locked if one.file in why), "a wheel")
        raise WheelDownloadError(
            f"{file} is not the file that the index promised: its SHA-256 differs",
            do="Run it again; if that does not help, something between here and the index changes files",
        )
    causes = next(filter(None, (re.findall(cause, done.stderr) for cause in _CAUSES)), ["pip said nothing"])
    raise WheelDownloadError(
        f"a wheel cannot be downloaded: {shorten(causes[-1], 300)}",
        where=next((urlsplit(one.url).netloc.rpartition("@")[2] for one in locked if one.url in why), ""),
        do="Run it again when the network is back: whole files are kept",
    )


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
