"""Debian's packages for another architecture, through apt with a state of its own.

    debs = fetch(Image("bookworm", "aarch64"), ["python3-numpy"], folder)

Rules:
- apt resolves, downloads and verifies, as any user; the host's own lists, packages, hooks and architectures stay as they are;
- the mirror is the one this host installs from, where the host is a Debian; elsewhere EDGEKIT_APT_SOURCES names a file
  of Debian sources;
- a mirror in mid-sync is asked again after a while; what apt says in the end is in the error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgekit.emulation.errors import EmulatorMissingError, UserlandError
from edgekit.emulation.image import Image

__all__ = ["fetch", "sources"]

SOURCES = "EDGEKIT_APT_SOURCES"
_TIMEOUT_S = 400.0
_WAITS_S = (5.0, 20.0)
_MID_SYNC = re.compile(r"mirror sync in progress|unexpected size|hash sum mismatch", re.IGNORECASE)
_DEBIAN = r"(?:bullseye|bookworm|trixie|forky|sid|stable|testing)"


def fetch(
    image: Image, packages: Sequence[str], folder: Path, *, sleep: Callable[[float], None] = time.sleep
) -> list[Path]:
    """Download the packages and all that they depend on, sorted by name. folder: new; apt's state stays in it.

    Raises EmulatorMissingError where there is no apt, UserlandError where the packages cannot be had.
    """
    for tool in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(tool) is None:
            raise EmulatorMissingError(
                f"{tool} is not installed: an emulated board is made of Debian's packages",
                do="Run this on Debian or Ubuntu, or in a container of one",
            )
    config = _state(image, folder)
    for wait_s in (*_WAITS_S, None):
        said = _complaints(_apt(config, "update", "-qq"))
        done = _apt(config, "install", "-y", "-qq", "--no-install-recommends", "--download-only", *packages)
        if done.returncode == 0:  # the indexes that could be had were enough
            return sorted((folder / "cache" / "archives").glob("*.deb"))
        said += _complaints(done) or ["apt-get ended without saying why"]
        if wait_s is None or not _MID_SYNC.search(" ".join(said)):
            break
        sleep(wait_s)
    raise _unavailable(image, packages, said)


def sources(suite: str, *, environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> tuple[str, str]:
    """This host's Debian sources, or those of EDGEKIT_APT_SOURCES, for another release: (`list` or `sources`, the text).

    root: where /etc is, for tests. Raises UserlandError where there are none.
    """
    named = (os.environ if environ is None else environ).get(SOURCES)
    wanted = [Path(named)] if named else [root / "etc/apt/sources.list.d/debian.sources", root / "etc/apt/sources.list"]
    for path in wanted:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        kind = "sources" if re.search(r"^Types:", text, re.MULTILINE) else "list"
        moved = _deb822(text, suite) if kind == "sources" else _one_line(text, suite)
        if moved:
            return kind, moved
    raise UserlandError(
        f"no Debian sources in {' or '.join(map(str, wanted))}",
        do=f"Set {SOURCES} to a file with a line such as 'deb MIRROR bookworm main', and install debian-archive-keyring",
    )


def _deb822(text: str, suite: str) -> str:
    """Stanzas of other distributions are left out."""
    stanzas = [
        stanza for stanza in re.split(r"\n\s*\n", text) if re.search(rf"^Suites:.*\b{_DEBIAN}\b", stanza, re.MULTILINE)
    ]
    moved = [
        re.sub(r"^Suites:.*$", lambda line: re.sub(rf"\b{_DEBIAN}\b", suite, line[0]), stanza, flags=re.MULTILINE)
        for stanza in stanzas
    ]
    return "".join(f"{stanza.strip()}\n\n" for stanza in moved)


def _one_line(text: str, suite: str) -> str:
    line = re.compile(rf"^(deb\s+(?:\[[^\]]*\]\s+)?\S+\s+){_DEBIAN}((?:[-/]\S+)?\s.*)$")
    moved = [line.sub(rf"\g<1>{suite}\g<2>", each) for each in text.splitlines() if line.match(each)]
    return "".join(f"{each}\n" for each in moved)


def _state(image: Image, folder: Path) -> Path:
    """apt's folders and its configuration, whose path is returned."""
    for name in ("state/lists/partial", "cache/archives/partial", "sources.d", "conf.d"):
        (folder / name).mkdir(parents=True)
    kind, text = sources(image.suite)
    (folder / "sources.d" / f"debian.{kind}").write_text(text)
    (folder / "status").write_text("")
    lines = [
        *_transport(),
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


def _transport() -> list[str]:
    """How this host reaches its mirror: proxies and certificates."""
    done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False, timeout=60)
    return [line for line in done.stdout.splitlines() if re.match(r"Acquire::(https?|ftp)::", line)]


def _apt(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
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
            f"apt-get {arguments[0]} did not end within {_TIMEOUT_S:.0f} s", do="Look at the network, and try again"
        ) from error


def _complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """apt's own words, each once; none where it did what it was asked."""
    if done.returncode == 0:
        return []
    lines = [line[2:].strip() for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    return list(dict.fromkeys(lines))


def _unavailable(image: Image, packages: Sequence[str], said: Sequence[str]) -> UserlandError:
    text = " ".join(said)
    if "No space left" in text or "enough free space" in text:
        do = "Make room on that disk, or name another with EDGEKIT_STATE_DIR"
    elif _MID_SYNC.search(text):
        do = "The mirror is being updated: try again in some minutes"
    elif "Unable to locate package" in text and not re.search(r"resolv|connect|Failed to fetch", text):
        do = "That release of Debian does not have it"
    else:
        do = f"Look at the network and at this host's apt sources, or set {SOURCES} to a file of others"
    shown = "; ".join(said[:3])
    return UserlandError(f"Debian's packages cannot be had: {shown}", where=f"{image}: {' '.join(packages)}", do=do)
