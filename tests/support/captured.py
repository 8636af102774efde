"""Boards' files as captures hold them, laid out again in a folder: what `edgekit profiles detect --files` reads.

A capture is a TOML file: `[files]` by path, the device tree's two properties, and the programs of whose first bytes
only the kind of machine matters.
"""

from __future__ import annotations

import struct
import tomllib
from pathlib import Path

CAPTURES = Path(__file__).parents[1] / "profiles" / "captures"
_ELF = {"aarch64": (2, 183), "armv7l": (1, 40), "x86_64": (2, 62), "riscv64": (2, 243)}


def names() -> list[str]:
    return sorted(path.stem for path in CAPTURES.glob("*.toml"))


def lay_out(name: str, root: Path) -> Path:
    """Below `root`, which is given back."""
    capture = tomllib.loads((CAPTURES / f"{name}.toml").read_text(encoding="utf-8"))
    tree = capture.get("device-tree", {})
    if tree:
        written(root / "proc/device-tree/model", tree["model"].encode() + b"\0")
        written(root / "proc/device-tree/compatible", b"".join(entry.encode() + b"\0" for entry in tree["compatible"]))
    for path, text in capture["files"].items():
        written(root / path, text.encode())
    for path, machine in capture["programs"].items():
        bits, number = _ELF[machine]
        written(root / path, b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + struct.pack("<HH", 3, number))
    for path, target in capture["links"].items():
        (root / path).symlink_to(target)
    return root


def written(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
