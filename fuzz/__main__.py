"""Fuzz one target, or all, one after another, and print a table of figures.

    python -m fuzz                                  # a million executions of each: `make fuzz`
    python -m fuzz window array --runs 100000 --json figures.json

Each target runs in a process of its own (`atheris_run`), so that a crash of the interpreter is a finding and not the
end. Exits 1 when an input broke the oracle; that input is left in the folder that is named.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from fuzz.targets import TARGETS


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parse(arguments)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="edgekit-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for number, name in enumerate(asked.targets or TARGETS):
        found[name] = _run(name, asked, folder, number)
        _print(name, found[name])
        if asked.json:
            _store(asked.json, found)
    broken = [name for name, figures in found.items() if "finding" in figures]
    for name in broken:
        print(f"\n{name}: {found[name]['finding']}\n  the input: {found[name]['input']}", file=sys.stderr)
    return 1 if broken else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--runs", type=int, default=1_000_000, help="executions of each")
    parser.add_argument("--seconds", type=float, default=1e9, help="at most, of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where inputs that reach something new are kept")
    parser.add_argument("--json", type=Path, help="a file of figures: what was run replaces what stands there")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.targets) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    return asked


def _run(name: str, asked: argparse.Namespace, folder: Path, number: int) -> dict[str, Any]:
    figures = folder / f"{name}.json"
    figures.unlink(missing_ok=True)
    before = set(folder.glob(f"{name}-*"))
    limits = ["--runs", str(asked.runs), "--seconds", str(asked.seconds), "--seed", str(asked.seed + number)]
    command = [
        sys.executable,
        "-m",
        "fuzz.atheris_run",
        name,
        *limits,
        "--found",
        str(folder / name),
        "--figures",
        str(figures),
    ]
    with (folder / f"{name}.log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        read: dict[str, Any] = json.loads(figures.read_text())
        return read
    inputs = sorted(set(folder.glob(f"{name}-*")) - before)
    return {
        "finding": _last_line(folder / f"{name}.log", done.returncode),
        "input": str(inputs[0]) if inputs else "none was left",
    }


def _last_line(log: Path, code: int) -> str:
    """What Python said of it, or what ended the process."""
    lines = log.read_text(errors="replace").splitlines()
    told = [
        line
        for line in lines
        if line and not line.startswith(("#", " ", "=", "INFO", "MS:", "artifact", "Base64", "0x"))
    ]
    return next((line for line in told if "Error" in line or "libFuzzer" in line), f"the process ended with {code}")


def _print(name: str, figures: dict[str, Any]) -> None:
    if "finding" in figures:
        print(f"{name:10} {figures['finding']}", flush=True)
        return
    outcomes = ", ".join(f"{word} {count:,}" for word, count in figures["outcomes"].items())
    print(
        f"{name:10} {figures['executions']:>10,} executions, {figures['per_processor_second']:,} a second; slowest "
        f"{figures['slowest_ms']} ms, +{figures['extra_mb']} MB; {outcomes}",
        flush=True,
    )


def _store(path: Path, found: dict[str, Any]) -> None:
    old = json.loads(path.read_text())["targets"] if path.exists() else {}
    versions = {name: metadata.version(name) for name in ("atheris", "numpy", "pillow")}
    value = {
        "command": "python -m fuzz",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": versions,
        "targets": old | found,
    }
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
