"""Exact versions for a board that is not this machine, by uv, and the wheel files that the index has of them.

Rules:
- markers are evaluated with the board's values: uv does for the platforms it knows; for 32-bit ARM, which it does not, it
  resolves for every platform and the markers of its answer are evaluated here;
- wheels only: nothing is compiled, neither here nor on the board;
- the index and its settings are uv's own (`UV_DEFAULT_INDEX`, `uv.toml`); the folder that a command runs in says nothing.

    resolve(Target.of(profile), ["ai-edge-litert>=2.1.3", "pillow"])[0].version
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.shipping.errors import DownloadError, NoWheelError
from edgekit.shipping.target import Target
from edgekit_profiles.schema import parse_toml
from edgekit_runtime.errors import MissingExtraError

__all__ = ["Locked", "RemoteWheel", "resolve", "uv_binary"]

_TIMEOUT_S = 300.0
_UNREACHED = re.compile(
    r"failed to fetch|error sending request|could not connect|dns error|timed out|network|403|401", re.IGNORECASE
)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class RemoteWheel:
    """One file of an index. url: http(s) or file. sha256: lower-case hex. bytes: None where the index does not say."""

    name: str
    url: str
    sha256: str
    bytes: int | None


@dataclass(frozen=True)
class Locked:
    """One distribution at one version. wheel: the best file for the board, None where no wheel fits it.

    pure: that file runs on any machine.
    """

    name: str
    version: str
    wheel: RemoteWheel | None

    @property
    def pure(self) -> bool:
        return self.wheel is not None and self.wheel.name.endswith("-none-any.whl")


def resolve(
    target: Target, requirements: Sequence[str], excluded: Sequence[str] = (), *, run: Run = subprocess.run
) -> tuple[Locked, ...]:
    """The whole closure of `requirements` on the board, sorted by name.

    excluded: distributions that something else brings; neither they nor what only they need are in the answer.
    Raises NoWheelError where nothing satisfies the requirements, DownloadError where the index cannot be asked,
    MissingExtraError without uv.
    """
    with tempfile.TemporaryDirectory(prefix="edgekit-ship-") as folder:
        left_out = Path(folder) / "excluded.txt"
        left_out.write_text("".join(f"{name}\n" for name in excluded), encoding="utf-8")
        lines = "".join(f"{line}\n" for line in requirements)
        done = _asked(run, _command(target, left_out), lines, folder)
    if done.returncode != 0:
        raise _refused(target, done.stderr)
    return _read(target, parse_toml(done.stdout))


def uv_binary() -> Path:
    """uv beside this Python, else on the PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.is_file() else shutil.which("uv")
    if not found:
        raise MissingExtraError("ship", "finding out which wheels a board takes")
    return Path(found)


def _command(target: Target, excluded: Path) -> list[str]:
    where = ["--python-platform", target.uv_platform] if target.uv_platform else ["--universal"]
    fixed = ["--only-binary", ":all:", "--format", "pylock.toml", "--quiet", "--no-header", "--no-sources"]
    asked = ["--python", sys.executable, "--python-version", target.python, "--excludes", str(excluded)]
    return [str(uv_binary()), "pip", "compile", "-", *where, *fixed, *asked]


def _asked(run: Run, command: list[str], lines: str, folder: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
    try:
        return run(
            command,
            input=lines,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=folder,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(
            f"uv did not end within {_TIMEOUT_S:.0f} s", do="Is the package index slow? Try again"
        ) from error


def _refused(target: Target, stderr: str) -> NoWheelError | DownloadError:
    told = " ".join(re.sub(r"[×│╰├─▶]+", " ", stderr).split()).removeprefix("error: ")
    if _UNREACHED.search(told) and "No solution" not in told:
        return DownloadError(
            f"the package index cannot be asked: {told}",
            do="Connect this machine, or name another index in UV_DEFAULT_INDEX, then run it again: what is here is kept",
        )
    return NoWheelError(
        f"no set of wheels fits {target}: {told}",
        where=target.profile,
        do="Take another engine (--engine), or a system image with another Python",
    )


def _read(target: Target, lock: dict[str, Any]) -> tuple[Locked, ...]:
    from packaging.markers import Marker

    order = {tag: rank for rank, tag in enumerate(target.tags())}
    locked = []
    for package in lock.get("packages", []):
        marker = package.get("marker")
        if "wheels" not in package or (marker and not Marker(marker).evaluate(target.markers())):
            continue  # without wheels: a file that was handed over by its path
        locked.append(Locked(package["name"], package["version"], _best(package["wheels"], order)))
    return tuple(sorted(locked, key=lambda one: one.name))


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
