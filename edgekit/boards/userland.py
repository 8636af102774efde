"""A board's user land: Debian's Python and libraries for ARM, unpacked in a folder.

    land = userland(Image("bookworm", "aarch64"))            # 5 s the first time, then at once
    land.root / "usr/bin/python3"

Rules:
- nothing is installed: no root, no chroot; the host's apt lists, packages, hooks and architectures are not touched;
- packages come from this host's mirror if it is a Debian, else from the sources in the file EDGEKIT_APT_SOURCES; a
  mirror in mid-sync is tried again;
- a folder appears whole or not at all: one process makes it while others wait, and removes interrupted drafts;
- a kept folder never changes, except for Python's bytecode, which spares compiling under the emulator.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from edgekit.boards.emulated_board import (
    EmulationError,
    EmulatorMissingError,
    Image,
    MirrorUpdatingError,
    UserlandError,
)
from edgekit_runtime.system.board import state_dir
from edgekit_runtime.system.files import first_unsafe, take
from edgekit_runtime.system.strict_json import json_text, read_json

SOURCES = "EDGEKIT_APT_SOURCES"
_TIMEOUT_S = 400.0
_WAITS_S = (5.0, 20.0, 60.0)
_MID_SYNC = re.compile(r"mirror sync in progress|unexpected size|hash sum mismatch", re.IGNORECASE)
_DEBIAN = r"(?:bullseye|bookworm|trixie|forky|sid|stable|testing)"


def fetch(
    image: Image, packages: Sequence[str], folder: Path, *, sleep: Callable[[float], None] = time.sleep
) -> list[Path]:
    """Download packages and dependencies, sorted by name; apt's state stays in the folder.

    Raises EmulatorMissingError without apt, UserlandError, MirrorUpdatingError for a mirror that stays inconsistent.
    """
    for tool in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(tool) is None:
            raise EmulatorMissingError(
                f"{tool} is not installed: an emulated board is made of Debian's packages",
                do="Run this on Debian or Ubuntu, or in such a container",
            )
    config = _configure_apt(image, folder)
    for wait_s in (*_WAITS_S, None):
        said = _apt_messages(_run_apt(config, "update", "-qq"))
        done = _run_apt(config, "install", "-y", "-qq", "--no-install-recommends", "--download-only", *packages)
        if done.returncode == 0:  # even if some indexes failed
            return sorted((folder / "cache" / "archives").glob("*.deb"))
        said += _apt_messages(done) or ["apt-get failed without a message"]
        if wait_s is None or not _MID_SYNC.search(" ".join(said)):
            break
        sleep(wait_s)
    text, kind = " ".join(said), UserlandError
    if "No space left" in text or "enough free space" in text:
        do = "Free space on that disk, or set EDGEKIT_STATE_DIR to another directory"
    elif _MID_SYNC.search(text):
        kind = MirrorUpdatingError
        do = "The mirror is being updated: try again in some minutes"
    elif "Unable to locate package" in text and not re.search(r"resolv|connect|Failed to fetch", text):
        do = "That Debian release does not have it"
    else:
        do = f"Check the network and this host's apt sources, or set {SOURCES} to a file of others"
    shown = "; ".join(said[:3])
    raise kind(f"Debian's packages cannot be downloaded: {shown}", where=f"{image}: {' '.join(packages)}", do=do)


def sources(suite: str, *, environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> tuple[str, str]:
    """Sources of this host or EDGEKIT_APT_SOURCES for a release: (`list` or `sources`, text).

    Raises UserlandError without any. root: for tests.
    """
    line = re.compile(rf"^(deb\s+(?:\[[^\]]*\]\s+)?\S+\s+){_DEBIAN}((?:[-/]\S+)?\s.*)$")
    named = (os.environ if environ is None else environ).get(SOURCES)
    wanted = [Path(named)] if named else [root / "etc/apt/sources.list.d/debian.sources", root / "etc/apt/sources.list"]
    for path in wanted:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        lines = [line.sub(rf"\g<1>{suite}\g<2>", each) for each in text.splitlines() if line.match(each)]
        kind, moved = "list", "".join(f"{each}\n" for each in lines)
        if re.search(r"^Types:", text, re.MULTILINE):
            kind, moved = "sources", ""
            for stanza in re.split(r"\n\s*\n", text):  # without other distributions
                if found := re.search(rf"^Suites:.*\b{_DEBIAN}\b.*$", stanza, re.MULTILINE):
                    suites = re.sub(rf"\b{_DEBIAN}\b", suite, found[0])
                    moved += f"{stanza.replace(found[0], suites).strip()}\n\n"
        if moved:
            return kind, moved
    raise UserlandError(
        f"no Debian sources in {' or '.join(map(str, wanted))}",
        do=f"Set {SOURCES} to a file with a line such as 'deb MIRROR bookworm main', and install "
        f"debian-archive-keyring",
    )


def _configure_apt(image: Image, folder: Path) -> Path:
    """Make apt's folders and configuration; return the latter's path."""
    for name in ("state/lists/partial", "cache/archives/partial", "sources.d", "conf.d"):
        (folder / name).mkdir(parents=True)
    kind, text = sources(image.suite)
    (folder / "sources.d" / f"debian.{kind}").write_text(text)
    (folder / "status").write_text("")
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False, timeout=60).stdout
    lines = [
        # Proxies and certificates of this host
        *(line for line in dump.splitlines() if re.match(r"Acquire::(https?|ftp)::", line)),
        f'APT::Architecture "{image.architecture}";',
        f'APT::Architectures {{ "{image.architecture}"; }};',
        'APT::Sandbox::User "";',
        'APT::Update::Error-Mode "any";',
        'Acquire::Languages "none";',
        'Acquire::Retries "3";',
        f'Dir::State "{folder}/state";',
        f'Dir::State::status "{folder}/status";',
        f'Dir::Cache "{folder}/cache";',
        'Dir::Etc::SourceList "/dev/null";',
        f'Dir::Etc::SourceParts "{folder}/sources.d";',
        'Dir::Etc::Main "/dev/null";',
        f'Dir::Etc::Parts "{folder}/conf.d";',  # the host's hooks are the host's
    ]
    config = folder / "apt.conf"
    config.write_text("".join(f"{line}\n" for line in lines))
    return config


def _run_apt(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", *arguments]
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise UserlandError(
            f"apt-get {arguments[0]} did not end within {_TIMEOUT_S:.0f} s", do="Check the network, and try again"
        ) from error


def _apt_messages(done: subprocess.CompletedProcess[str]) -> list[str]:
    """apt's messages, each once; none if it succeeded."""
    if done.returncode == 0:
        return []
    lines = [line[2:].strip() for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    return list(dict.fromkeys(lines))


def cache_root(folder: Path | None = None) -> Path:
    """The absolute path of the given folder, or of `emulation` in the state folder."""
    return (folder or state_dir() / "emulation").absolute()


def make_folder(root: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name below the root, made if missing.

    Raises what `make` raises, and UserlandError for the disk's refusal or a folder that other users could change.
    """
    final = root / name
    if unsafe := first_unsafe(final):  # what lies there is run
        raise UserlandError(unsafe.what, where=str(unsafe.where), do=unsafe.do)
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked_by_us(final.with_name(f".{final.name}.lock")):
            if final.is_dir():
                return final
            for left in final.parent.glob(f".{final.name}.*.draft"):  # of a process that is gone: we hold the lock
                shutil.rmtree(left, ignore_errors=True)
            draft = final.with_name(f".{final.name}.{os.getpid()}.draft")
            draft.mkdir()
            try:
                make(draft)
                draft.rename(final)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        do = f"{'Make room there, or name' if full else 'Name'} another folder with EDGEKIT_STATE_DIR"
        raise UserlandError(f"cannot be written: {error.strerror or error}", where=str(final), do=do) from error
    return final


@contextlib.contextmanager
def _locked_by_us(lock: Path) -> Iterator[None]:
    """Locked by one process at a time, until it ends or dies."""
    with lock.open("w") as stream:
        if take(stream.fileno(), wait=True) is None:
            raise EmulationError(
                "cannot lock files here", where=str(lock), do="Set EDGEKIT_STATE_DIR to another directory"
            )
        yield


_LAYOUT = 2  # raised when what is unpacked, or how, changes
# Pulled in by a dependency, never needed to run Python.
_LEFT_OUT = re.compile(
    r"ca-certificates|debconf|dpkg|openssl|(lib)?perl[-5].*|perl|readline-common|tar|mailcap|mime-support"
)
_EXCLUDED = ("./usr/share/doc*", "./usr/share/man", "./usr/share/locale", "./usr/share/lintian", "./usr/share/info",
             "./usr/share/bug", "./usr/lib/*/gconv", "./lib/systemd")  # fmt: skip


@dataclass(frozen=True)
class Deb:
    """One unpacked package. sha256: of the .deb, verified by apt."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class _UserlandRecord:
    """The content of userland.json."""

    image: str
    packages: tuple[str, ...]
    debs: tuple[Deb, ...]


@dataclass(frozen=True)
class Userland:
    """root: its / directory. debs: what was unpacked into it."""

    image: Image
    root: Path
    debs: tuple[Deb, ...]

    def version(self, package: str) -> str | None:
        return next((deb.version for deb in self.debs if deb.package == package), None)


def userland(image: Image, packages: Sequence[str] = (), *, cache_dir: Path | None = None) -> Userland:
    """The user land of an image with these Debian packages, cached or made.

    Raises UserlandError, EmulatorMissingError.
    """
    wanted = sorted(set(packages))
    digest = hashlib.sha256(json.dumps([_LAYOUT, wanted]).encode()).hexdigest()[:12]
    name = f"userlands/{image.suite}-{image.architecture}-{digest}"
    root = make_folder(cache_root(cache_dir), name, lambda draft: _unpack(image, wanted, draft))
    record = read_json(_UserlandRecord, (root / "userland.json").read_bytes(), "userland.json")
    return Userland(image, root, record.debs)


def _unpack(image: Image, packages: Sequence[str], root: Path) -> None:
    version = image.python
    base = (f"python{version}-minimal", f"libpython{version}-stdlib", "libstdc++6", "base-files")
    apt = root / ".apt"
    apt.mkdir()
    names = {deb: deb.name.split("_")[0] for deb in fetch(image, (*base, *packages), apt)}
    debs = [deb for deb, name in names.items() if name in packages or not _LEFT_OUT.fullmatch(name)]
    (root / "usr/lib").mkdir(parents=True)
    for name in ("bin", "lib", "sbin"):  # merged /usr, as every Debian system has it
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in debs:
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
                do="Free space on that disk, or set EDGEKIT_STATE_DIR to another directory",
            )
    # In place of the packages' installation scripts
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
    unpacked = []
    for deb in debs:
        package, deb_version, _ = deb.name.removesuffix(".deb").split("_")
        unpacked.append(Deb(package, unquote(deb_version), hashlib.sha256(deb.read_bytes()).hexdigest()))
    record = _UserlandRecord(str(image), tuple(packages), tuple(unpacked))
    (root / "userland.json").write_text(json_text(record), encoding="utf-8")
    shutil.rmtree(apt)
