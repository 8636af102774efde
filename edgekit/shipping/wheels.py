"""Wheels for a board: exact versions by uv on this machine, fetched once and kept.

    target = WheelTarget.of(load("raspberry-pi-4"))
    target.uv_platform, target.debian_arch           # "aarch64-manylinux_2_36", "arm64"
    locked = resolve(target, ["ai-edge-litert>=2.1.3", "pillow"])[0]
    fetch(locked.wheel, Path("usb/wheels"), kept=state_dir() / "wheels")

Rules:
- markers are evaluated with the board's values, by uv, or here for 32-bit ARM, which uv does not know;
- a wheel's tag is compared with the board's glibc, newest first, as pip does there; nothing is compiled;
- the index is uv's own (`UV_DEFAULT_INDEX`, `uv.toml`), whatever the current folder holds;
- bytes are trusted by the resolution's SHA-256; no more than the index promised are read, or 4 GiB;
- files are cached by SHA-256, whole or not at all, and interrupted downloads resume;
- two processes that fetch the same file write to two drafts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import netrc
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.plan import NoWheelError, WheelDownloadError
from edgekit_profiles.schema import parse_toml
from edgekit_runtime.install.fetch import source_of
from edgekit_runtime.install.http import DownloadLimits, get
from edgekit_runtime.system.errors import EdgekitError, MissingExtraError
from edgekit_runtime.system.files import take, write_cache

if TYPE_CHECKING:
    from packaging.tags import Tag

    from edgekit_profiles import Profile

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

    def tags(self) -> list[Tag]:
        """The tags of wheels that install there, best first."""
        from packaging.tags import compatible_tags, cpython_tags

        platforms = []
        for minor in range(self._glibc_minor, _FIRST_GLIBC.get(self.arch, 17) - 1, -1):
            platforms.append(f"manylinux_2_{minor}_{self.arch}")
            platforms += [f"{_LEGACY[minor]}_{self.arch}"] if minor in _LEGACY else []
        platforms.append(f"linux_{self.arch}")
        interpreter = f"cp{''.join(map(str, self.version))}"
        native = cpython_tags(self.version, abis=[interpreter], platforms=platforms)
        return [*native, *compatible_tags(self.version, interpreter, platforms)]

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


_TIMEOUT_S = 300.0
_UNREACHED = re.compile(
    r"failed to fetch|error sending request|could not connect|dns error|timed out|network|403|401", re.IGNORECASE
)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class RemoteWheel:
    """One file of an index. url: http(s) or file. sha256: in hex. bytes: None if unknown."""

    name: str
    url: str
    sha256: str
    bytes: int | None


@dataclass(frozen=True)
class LockedDistribution:
    """One distribution at one version. wheel: the best for the board, or None."""

    name: str
    version: str
    wheel: RemoteWheel | None

    @property
    def pure(self) -> bool:
        """Whether that file runs on any machine."""
        return self.wheel is not None and self.wheel.name.endswith("-none-any.whl")


def resolve(
    target: WheelTarget, requirements: Sequence[str], excluded: Sequence[str] = (), *, run: Run = subprocess.run
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
        lock = parse_toml(_compiled(target, run, command, lines, folder))
    order = {tag: rank for rank, tag in enumerate(target.tags())}
    locked = []
    for package in lock.get("packages", []):
        marker = package.get("marker")
        if "wheels" not in package or (marker and not Marker(marker).evaluate(target.markers())):
            continue  # without wheels: a file that was handed over by its path
        locked.append(LockedDistribution(package["name"], package["version"], _best(package["wheels"], order)))
    return tuple(sorted(locked, key=lambda one: one.name))


def uv_binary() -> Path:
    """uv beside this Python, else on the PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.is_file() else shutil.which("uv")
    if not found:
        raise MissingExtraError("ship", "finding out which wheels a board takes")
    return Path(found)


def _compiled(target: WheelTarget, run: Run, command: list[str], lines: str, folder: str) -> str:
    """uv's output. Raises NoWheelError, or WheelDownloadError without the index."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _TIMEOUT_S, "check": False}
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
    try:
        done = run(command, input=lines, cwd=folder, env=environment, **options)
    except subprocess.TimeoutExpired as error:
        what = f"uv did not end within {_TIMEOUT_S:.0f} s"
        raise WheelDownloadError(what, do="Is the package index slow? Try again") from error
    if done.returncode == 0:
        return done.stdout
    why = " ".join(re.sub(r"[×│╰├─▶]+", " ", done.stderr).split()).removeprefix("error: ")
    if _UNREACHED.search(why) and "No solution" not in why:
        raise WheelDownloadError(
            f"the package index cannot be asked: {why}",
            do="Connect this machine, or name another index in UV_DEFAULT_INDEX, then run it again: what is here is "
            "kept",
        )
    raise NoWheelError(
        f"no set of wheels fits {target}: {why}",
        where=target.profile,
        do="Take another engine (--engine), or a system image with another Python",
    )


def _best(files: list[dict[str, Any]], order: dict[Any, int]) -> RemoteWheel | None:
    from packaging.utils import parse_wheel_filename

    ranked = []
    for file in files:
        name = file.get("name") or file["url"].rpartition("/")[2].partition("#")[0]
        ranks = [order[tag] for tag in parse_wheel_filename(name)[3] if tag in order]
        if ranks:
            ranked.append((min(ranks), name, file))
    if not ranked:
        return None
    _, name, file = min(ranked, key=lambda one: one[:2])
    url = file.get("url") or Path(file["path"]).absolute().as_uri()
    return RemoteWheel(name, url, file["hashes"]["sha256"], file.get("size"))


_DOWNLOAD_TIMEOUT_S = 60.0
_CHUNK = 1 << 20
_MOST_BYTES = 4 << 30
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def fetch(wheel: RemoteWheel, folder: Path, *, kept: Path) -> Path:
    """The file in `folder`, under its own name.

    Raises WheelDownloadError and keeps the bytes so far for the next try, OutputError if `kept` cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place, store = folder / wheel.name, kept / wheel.sha256
    if place.is_file() and sha256_of(place) == wheel.sha256:
        return place
    if not (store.is_file() and sha256_of(store) == wheel.sha256):
        try:
            kept.mkdir(parents=True, exist_ok=True)
            _download(wheel, kept / f"{wheel.sha256}.part", store)
        except OSError as error:
            do = "Make room there, or name another folder with EDGEKIT_STATE_DIR"
            raise OutputError(f"cannot be written: {error.strerror or error}", where=str(kept), do=do) from error
    with store.open("rb") as file:
        write_cache(place, iter(partial(file.read, _CHUNK), b""))
    return place


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(wheel: RemoteWheel, part: Path, store: Path) -> None:
    with _draft(part) as draft:
        try:
            _append(wheel, draft)
        except (OSError, EdgekitError) as error:
            if getattr(error, "errno", None) in _OF_THE_DISK:
                raise
            raise WheelDownloadError(
                f"{wheel.name}: {error.what}"
                if isinstance(error, EdgekitError)
                else f"{wheel.name} cannot be fetched: {error}",
                where=urllib.parse.urlsplit(wheel.url).hostname or wheel.url,
                do="Run it again when the network is back: what has been fetched is kept",
            ) from error
        if sha256_of(draft) != wheel.sha256:
            draft.unlink()
            raise WheelDownloadError(
                f"{wheel.name} is not the file that the index promised: its SHA-256 is another",
                where=wheel.url,
                do="Run it again; if that does not help, something between here and the index changes files",
            )
        draft.replace(store)


@contextlib.contextmanager
def _draft(part: Path) -> Iterator[Path]:
    """`part`, locked, to resume; a temporary file of this process's own if another writes it."""
    handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:  # another process may have renamed it just now
            ours = take(handle) is True and os.path.samestat(os.fstat(handle), part.stat())
        except OSError:
            ours = False
        if ours:
            yield part
            return
    finally:
        os.close(handle)
    own, name = tempfile.mkstemp(prefix=f"{part.stem}.", suffix=".own", dir=part.parent)
    os.close(own)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _append(wheel: RemoteWheel, part: Path) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if wheel.bytes is not None and have >= wheel.bytes:
        if have == wheel.bytes:
            return
        have = 0
    url, limits = _with_credentials(wheel.url), DownloadLimits(silence_s=_DOWNLOAD_TIMEOUT_S)
    # A local index is read from its first byte
    local = url.startswith("file:")
    opened = source_of(url).opens(0, "") if local else get(url, start=have, limits=limits, by_digest=True)
    with contextlib.closing(opened) as stream:
        left = (_MOST_BYTES if wheel.bytes is None else wheel.bytes) - stream.start
        short = 0 if stream.total is None else stream.total - stream.start
        with part.open("ab" if stream.start else "wb") as file:
            end = time.monotonic() + limits.total_s
            while left > 0 and (piece := stream.read()):
                if time.monotonic() > end:
                    raise ConnectionError(f"it took longer than {limits.total_s / 3600:g} hours")
                file.write(piece[:left])
                left, short = left - len(piece), short - len(piece)
        if left > 0 and short > 0:
            raise ConnectionError("the connection broke off")


def _with_credentials(url: str) -> str:
    """With user and password of ~/.netrc, which are never printed or stored."""
    parts = urllib.parse.urlsplit(url)
    found = None
    if parts.hostname:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            found = netrc.netrc().authenticators(parts.hostname)
    if not found:
        return url
    user, password = (urllib.parse.quote(part, safe="") for part in (found[0], found[2]))
    return parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
