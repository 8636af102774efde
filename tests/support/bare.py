"""The base install without a network: an empty environment with edgekit and what it cannot do without, linked out of
the environment that runs the tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import distribution, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def base_install(folder: Path, *extras: str) -> Path:
    """Its python. extras: those that are installed, too."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    here = Path(sysconfig.get_path("purelib"))
    for name in needed("edgekit-deploy", extras):
        for top in {
            file.parts[0] for file in distribution(name).files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            (site / top).symlink_to(here / top)
    return python


def needed(name: str, extras: Sequence[str] = ()) -> set[str]:
    """It and the distributions that it needs."""
    known: set[tuple[str, str]] = set()
    new = {(name, extra) for extra in ("", *extras)}
    while new:
        known |= new
        asked = [(Requirement(line), extra) for name, extra in new for line in requires(name) or ()]
        wanted = [one for one, extra in asked if one.marker is None or one.marker.evaluate({"extra": extra})]
        new = {(canonicalize_name(one.name), extra) for one in wanted for extra in ("", *one.extras)} - known
    return {name for name, _ in known}
